"""Monospaced text on a grid: which glyphs there are, how wide they stand, and where each token goes."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import FT2Font, LoadFlags

from harness.analysis.trace import Step

FAMILY = "DejaVu Sans Mono"  # comes with matplotlib
NEWLINE, TAB, EMPTY, EOS, UNKNOWN, MORE = "↵", "⇥", "·", "⟨eos⟩", "□", "…"
TAB_WIDTH = 4
JOINERS = "\u200c\u200d"  # of no width, in emoji and Indic scripts


@dataclass(frozen=True)
class Mark:
    """A part of a token in one line.

    Attributes:
        step: number of the forward, from 0; −1 of what belongs to none (the sign that something is left out).
        token: number of the token, from 0; −1 likewise.
        line, column: of its first character, from 0.
        width: columns.
        text: as drawn, one column for each character, but wide ones that take two.
        is_sign: it stands for what cannot be seen.
    """

    step: int
    token: int
    line: int
    column: int
    width: int
    text: str
    is_sign: bool = False


class Glyphs:
    """The monospaced font at a size, chosen by its advance.

    Where the advance is a whole number of pixels, hinting changes nothing, and a long text stands in a bitmap where it
    stands in a PDF: column by column.

    Args:
        advance: points from a character to the next.
    """

    def __init__(self, advance: float) -> None:
        self.advance = advance

    @cached_property
    def size(self) -> float:
        """Font size in points."""
        font = _font()
        font.set_size(100, 72)
        return 100 * self.advance / (font.load_char(ord("0"), flags=LoadFlags.NO_HINTING).linearHoriAdvance / 65536)

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(_font().get_charmap())

    def shown(self, character: str) -> str:
        """The character, or a box where the font lacks it."""
        return character if ord(character) in self._known else UNKNOWN


def _font() -> FT2Font:
    return get_font(findfont(FontProperties(family=FAMILY)))


def visible(text: str, newline: str = NEWLINE) -> str:
    """Text whose newlines, tabs and control characters are signs; nothing in it moves a terminal's cursor.

    Newlines become ``newline``, other control characters their pictures (U+2400 …); what reorders or hides text, and
    lone surrogates, the replacement character.
    """
    signs = {"\n": newline, "\t": TAB + " " * (TAB_WIDTH - 1)}
    return "".join(signs[character] if character in signs else _printable(character) for character in text)


def _printable(character: str) -> str:
    kind, number = unicodedata.category(character), ord(character)
    if character in JOINERS:
        return character
    if number < 0x20:
        return chr(0x2400 + number)
    if number == 0x7F:
        return "\u2421"
    return "\N{REPLACEMENT CHARACTER}" if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") else character


def width(character: str) -> int:
    """Columns of a character: none of a combining one, two of a wide one (East Asian scripts, most emoji)."""
    if unicodedata.category(character) in ("Mn", "Me") or character in JOINERS:
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def lay_out(
    steps: Sequence[Step], columns: int, glyphs: Glyphs, is_eos: bool = False, most_lines: int | None = None
) -> list[Mark]:
    """Where each part of each token stands, in lines of at most ``columns``.

    Lines break at newlines and before words that do not fit; words longer than a line break anywhere.

    Args:
        steps: forwards, those that committed nothing left out.
        is_eos: the last token is EOS.
        most_lines: what needs more is left out, and a sign says so.
    """
    cells = list(_cells(steps, glyphs, is_eos))
    marks: list[Mark] = []
    line = column = 0
    i = 0
    while i < len(cells):
        word = _word(cells, i)
        needed = sum(cell.width for cell in word)
        if column and column + needed > columns and needed <= columns:
            line, column = line + 1, 0
        for cell in word:
            if column and column + cell.width > columns:
                line, column = line + 1, 0
            _put(marks, cell, line, column)
            column += cell.width
            if cell.breaks:
                line, column = line + 1, 0
        i += len(word)
    if most_lines is not None and any(mark.line >= most_lines for mark in marks):
        kept = [mark for mark in marks if mark.line < most_lines - 1]
        return [*kept, Mark(-1, -1, most_lines - 1, 0, 1, MORE, True)]
    return marks


@dataclass(frozen=True)
class _Cell:
    """A character with the combining ones after it, or a sign."""

    step: int
    token: int
    text: str
    width: int
    is_sign: bool
    is_space: bool = False
    breaks: bool = False


def _cells(steps: Sequence[Step], glyphs: Glyphs, is_eos: bool) -> Iterator[_Cell]:
    token, last = -1, sum(step.num_tokens for step in steps) - 1
    for number, step in enumerate(steps):
        for piece in step.pieces:
            token += 1
            if not piece:
                sign = EOS if is_eos and token == last else EMPTY
                shown = "".join(glyphs.shown(one) for one in sign)
                yield _Cell(number, token, shown, len(sign), True)
            for text in _clusters(piece):
                sign = visible(text)
                wide = sum(width(one) for one in sign)
                shown = "".join(glyphs.shown(one) for one in sign)
                is_sign = sign != text or shown != sign
                yield _Cell(number, token, shown, max(wide, 1), is_sign, text in " \t", text == "\n")


def _clusters(text: str) -> Iterator[str]:
    start = 0
    for i in range(1, len(text) + 1):
        if i == len(text) or width(text[i]) > 0:
            yield text[start:i]
            start = i


def _word(cells: Sequence[_Cell], start: int) -> Sequence[_Cell]:
    """Spaces, each alone, or all up to the next space; a newline ends it."""
    if cells[start].is_space or cells[start].breaks:
        return cells[start : start + 1]
    end = start
    while end < len(cells) and not cells[end].is_space and not cells[end].breaks:
        end += 1
    return cells[start:end]


def _put(marks: list[Mark], cell: _Cell, line: int, column: int) -> None:
    """Add a character: to the mark before it where it goes on with that, unless one of the two is wide."""
    before = marks[-1] if marks else None
    if (
        before is not None
        and (before.step, before.token, before.line, before.is_sign) == (cell.step, cell.token, line, cell.is_sign)
        and _is_plain(before.text, before.width)
        and _is_plain(cell.text, cell.width)
    ):
        marks[-1] = replace(before, width=before.width + cell.width, text=before.text + cell.text)
    else:
        marks.append(Mark(cell.step, cell.token, line, column, cell.width, cell.text, cell.is_sign))


def joined(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Marks that follow each other in a line as one, whatever tokens they are of: as few texts as can be drawn."""
    before: Mark | None = None
    for mark in marks:
        if (
            before is not None
            and (before.line, before.is_sign, before.column + before.width) == (mark.line, mark.is_sign, mark.column)
            and _is_plain(before.text, before.width)
            and _is_plain(mark.text, mark.width)
        ):
            before = replace(before, width=before.width + mark.width, text=before.text + mark.text)
        else:
            if before is not None:
                yield before
            before = mark
    if before is not None:
        yield before


def _is_plain(text: str, columns: int) -> bool:
    return len(text) == columns and all(width(one) == 1 for one in text)
