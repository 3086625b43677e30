"""The paper's Figure 1: one answer, with the tokens that one forward committed together, beside AR SFT's.

``choose`` says which answer; ``typesetting`` lays it out.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle

from harness.analysis.data import Data
from harness.analysis.figures.base import Figure
from harness.analysis.figures.style import DPI, PAGE, display, new_figure, panel_title
from harness.analysis.figures.typesetting import EMPTY, EOS, FAMILY, NEWLINE, Glyphs, Mark, joined, lay_out, visible
from harness.analysis.published import FORWARD
from harness.analysis.trace import Step, read_steps
from harness.results.tables import AVERAGE, BASELINE

NAME, TITLE = "generation", "One generation: tokens committed by one forward are shaded alike"
METHOD = "mars"
CONFIDENCE = "probability"
LEAST = 1.05  # tokens per forward: below it there is nothing to show
SHADES = ("#DCEBF7", "#9CC5E6")  # of one forward and the next; 92 % and 74 % grey
EDGE = "#2B4C66"
BAR = "│"  # in plain text: ends what a forward committed
ADVANCE = 9 * 72 / DPI  # points from a character to the next: 9 pixels
LEADING = 1.9  # line height over font size
MARGIN = 0.06  # inches, around the page
GAP = 0.22  # inches, between the panels
MOST_LINES = 60  # of a panel; the rest of a longer answer is left out, and said to be


def make(data: Data) -> list[Figure]:
    """The figure ``generation`` with its text and HTML."""
    chosen = choose(data)
    if chosen is None:
        command = "python -m harness.run -m method=mars,ar_sft tau=0.95"
        return [Figure(NAME, TITLE, "", pd.DataFrame(), draw, f"answers of MARS and of AR SFT: `{command}`")]
    points = pd.DataFrame([row for cell, document in chosen.sides for row in _points(cell, document)])
    caption = _caption(points, chosen.loses)
    return [Figure(NAME, TITLE, caption, points, draw, extra={"txt": as_text(points), "html": as_html(points)})]


@dataclass(frozen=True)
class Choice:
    """What is shown: of AR SFT and of MARS the cell (a row of ``usual``) and the document.

    Attributes:
        loses: MARS's loss in score is beyond its sampling error, as that of every other cell that could be shown.
    """

    sides: Sequence[tuple[dict[str, Any], dict[str, Any]]]
    loses: bool


def choose(data: Data) -> Choice | None:
    """The answer to show; always the same for the same records.

    The cell: of MARS's that accept by the top probability, commit more than one token per forward and have a reference,
    those whose paired loss in score from AR SFT is not shown (the interval of the difference reaches zero), of these
    the one with most tokens per forward; where all lose, that which loses least. The document: of those that both
    answered correctly and whose tokens are known, the one of median length in MARS's tokens.

    Returns:
        None where there is no such document.
    """
    documents = data.results.documents
    known = set(documents["key"][documents["token_ends"].notna()])
    rows = data.usual[(data.usual["metric"] == FORWARD) & (data.usual["task"] != AVERAGE)]
    rows = rows[(rows["method"] == METHOD) & (rows["confidence"] == CONFIDENCE) & (rows["value"] >= LEAST)]
    rows = rows[rows["key"].isin(known)]
    losing: list[tuple[float, Choice]] = []
    for row in rows.sort_values(["value", "n", "key"], ascending=[False, False, True]).to_dict("records"):
        cell = {str(name): value for name, value in row.items()}
        reference = data.results.reference(cell["key"])
        compared = reference and data.pairs.difference(cell["key"], reference, cell["task"])
        sides = _document(documents, cell, reference) if reference and compared else None
        if compared and sides and compared.difference.high >= 0:
            return Choice(sides, loses=False)
        if compared and sides:
            losing.append((compared.difference.value, Choice(sides, loses=True)))
    return max(losing, key=lambda one: one[0])[1] if losing else None


def _document(
    documents: pd.DataFrame, cell: Mapping[str, Any], reference: str
) -> list[tuple[dict[str, Any], dict[str, Any]]] | None:
    sides = []
    for key in (reference, cell["key"]):
        rows = documents[(documents["key"] == key) & (documents["benchmark"] == cell["task"])]
        right = rows[rows["score"] >= 1].to_dict("records")
        sides.append({(row["task"], row["doc_id"]): row for row in right})
    shared = sorted(sides[0].keys() & sides[1].keys(), key=lambda place: (sides[1][place]["new_tokens"], *place))
    # From the median outwards, the shorter first, to the first whose tokens are known.
    middle = (len(shared) - 1) / 2
    for i in sorted(range(len(shared)), key=lambda i: (abs(i - middle), i)):
        pair = [dict(side[shared[i]]) for side in sides]
        if all(read_steps(row) for row in pair):
            return [(dict(cell) | {"key": reference, "method": BASELINE}, pair[0]), (dict(cell), pair[1])]
    return None


def _points(cell: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each token."""
    steps = read_steps(document) or []
    is_mars = cell["method"] == METHOD
    about = {
        "key": cell["key"], "model": document["model"], "benchmark": cell["task"], "task": document["task"],
        "doc_id": document["doc_id"], "method": cell["method"], "tau": cell["tau"] if is_mars else None,
        "block_size": cell["block_size"] if is_mars else None, "forwards": len(steps),
        "tokens": sum(step.num_tokens for step in steps),
    }  # fmt: skip
    token = 0
    for number, step in enumerate(steps, start=1):
        for piece in step.pieces:
            token += 1
            ends = token == about["tokens"] and document["finish_reason"] == "eos" and not piece
            yield about | {"step": number, "token": token, "text": piece, "is_eos": ends}


def _caption(points: pd.DataFrame, loses: bool) -> str:
    first = points.iloc[-1]
    cell = (
        "the MARS cell that loses least in score against AR SFT (every one loses more than its sampling error)"
        if loses
        else "the MARS cell with most tokens per forward whose loss in score from AR SFT, on the same documents, is "
        "within its sampling error"
    )
    return (
        "The same document answered by AR SFT and by MARS. Each box is one forward (where it goes on in the next line, "
        f"more than one box), each underline in it one token; neighbouring forwards alternate in shade. {NEWLINE}: "
        f"newline; {EOS}: end of the answer; {EMPTY}: a token that adds no character. "
        f"{panel_title(first['model'], first['benchmark'])}, document {first['doc_id']} of {first['task']}: of the "
        f"documents that both answered correctly the one of median length, in {cell}. One document, chosen by this "
        "rule and not by its speed; rates over all documents are in the tables."
    )


# --- the views


def _sides(points: pd.DataFrame) -> Iterator[tuple[str, list[Step], bool]]:
    """Heading, forwards that committed something, and whether the last token is EOS, of each side."""
    for _, part in points.groupby("key", sort=False):
        steps = [Step(tuple(one["text"].fillna(""))) for _, one in part.groupby("step")]
        first = part.iloc[0]
        settings = "" if pd.isna(first["tau"]) else f" (τ = {first['tau']:g}, B = {first['block_size']:g})"
        tokens, forwards = int(first["tokens"]), int(first["forwards"])
        heading = (
            f"{display(first['method'])}{settings}: {tokens} tokens in {forwards} forward{'s' * (forwards != 1)}, "
            f"{tokens / forwards:.2f} per forward"
        )
        yield heading, steps, bool(part["is_eos"].any())


def as_text(points: pd.DataFrame) -> str:
    """For a terminal: a bar ends each forward, control characters are shown, not sent."""
    blocks = []
    for heading, steps, is_eos in _sides(points):
        texts = [visible(step.text, newline="\n") for step in steps]
        texts[-1] += EOS * is_eos
        # The bar of a forward that ends in newlines stands before them, not at the beginning of a line.
        lines = [text.rstrip("\n") + BAR + "\n" * (len(text) - len(text.rstrip("\n"))) for text in texts]
        blocks.append(f"{heading}\n\n{''.join(lines)}\n")
    return f"{TITLE} ({BAR} ends a forward)\n\n" + "\n".join(blocks)


def as_html(points: pd.DataFrame) -> str:
    """A snippet that needs nothing else: two columns, a box for each forward, an underline for each token."""
    token = f'<span style="border-bottom:1px solid {EDGE};margin:0 1px">'
    columns = []
    for heading, steps, is_eos in _sides(points):
        seen = [[visible(piece, newline=NEWLINE + "\n") or EMPTY for piece in step.pieces] for step in steps]
        if is_eos:
            seen[-1][-1] = EOS
        boxes = [
            f'<span title="{len(pieces)} token{"s" * (len(pieces) != 1)}" style="background:{SHADES[number % 2]};'
            f'outline:1px solid {EDGE};padding:2px 0">'
            f"{''.join(f'{token}{html.escape(piece)}</span>' for piece in pieces)}</span>"
            for number, pieces in enumerate(seen)
        ]
        columns.append(
            f'<figure style="flex:1 1 22em;margin:0"><figcaption>{html.escape(heading)}</figcaption>'
            '<pre style="white-space:pre-wrap;overflow-wrap:anywhere;color:#000;line-height:1.7;margin:.5em 0">'
            f"{''.join(boxes)}</pre></figure>"
        )
    return f'<div style="display:flex;flex-wrap:wrap;gap:1.5em">{"".join(columns)}</div>\n'


def draw(points: pd.DataFrame) -> Drawing:
    """Two panels of monospaced text: a box for each forward in a line, an underline for each token."""
    sides = list(_sides(points))
    width = (PAGE - 2 * MARGIN - GAP * (len(sides) - 1)) / len(sides)
    glyphs = Glyphs(ADVANCE)
    columns = int((width * 72 - 4) / ADVANCE)
    laid = [lay_out(steps, columns, glyphs, is_eos, MOST_LINES) for _, steps, is_eos in sides]
    lines = max(1 + max((mark.line for mark in marks), default=0) for marks in laid)
    line = glyphs.size * LEADING / 72  # inches
    head = 2.2 * line
    drawing, _ = new_figure(PAGE, head + (lines + 0.5) * line + 2 * MARGIN)
    drawing.clear()
    drawing.set_layout_engine("none")
    height = drawing.get_figheight()
    for i, ((heading, _, _), marks) in enumerate(zip(sides, laid, strict=True)):
        left = MARGIN + i * (width + GAP)
        axis = drawing.add_axes((left / PAGE, MARGIN / height, width / PAGE, (height - head - MARGIN) / height))
        axis.set(xlim=(-2, width * 72 - 2), ylim=((height - head - MARGIN) / line, 0))  # points across, lines down
        axis.set_axis_off()
        title, _, counts = heading.partition(": ")
        at = (left / PAGE, 1 - MARGIN / height)
        drawing.text(*at, title, size=glyphs.size + 1, weight="bold", va="top")
        drawing.text(at[0], at[1] - 1.0 * line / height, counts, size=glyphs.size, va="top", color="#333333")
        _draw_boxes(axis, marks, glyphs)
    return drawing


def _draw_boxes(axis: Axes, marks: Sequence[Mark], glyphs: Glyphs) -> None:
    """In lines from the top: a line's box from 0.08 to 0.94, its letters on 0.6, underlines at 0.8."""
    for (step, line), (start, end) in _extents(marks, "step").items():
        place, size = (start * ADVANCE, line + 0.08), ((end - start) * ADVANCE, 0.86)
        axis.add_patch(Rectangle(place, *size, facecolor=SHADES[step % 2], edgecolor=EDGE, linewidth=0.5))
    underlines = [
        [((start + 0.12) * ADVANCE, line + 0.8), ((end - 0.12) * ADVANCE, line + 0.8)]
        for (_, line), (start, end) in _extents(marks, "token").items()
    ]
    axis.add_collection(LineCollection(underlines, colors="#333333", linewidths=0.5, capstyle="butt"), autolim=False)
    for mark in joined(marks):
        axis.text(
            mark.column * ADVANCE, mark.line + 0.6, mark.text, family=FAMILY, size=glyphs.size, va="baseline",
            ha="left", color="#555555" if mark.is_sign else "black", parse_math=False,
        )  # fmt: skip


def _extents(marks: Sequence[Mark], of: str) -> dict[tuple[int, int], tuple[int, int]]:
    """First column and the one after the last, of each forward or token in each line."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for mark in marks:
        if (number := getattr(mark, of)) >= 0:
            start, end = found.get((number, mark.line), (mark.column, mark.column))
            found[number, mark.line] = min(start, mark.column), max(end, mark.column + mark.width)
    return found
