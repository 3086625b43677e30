"""What a table is: numbers in a long frame, and grids of text that show them; written as Markdown, LaTeX, CSV, HTML."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd

EMPTY, ABSENT = "·", "—"  # never measured; what there cannot be, or the paper does not print
LEGEND = f"{EMPTY} was never measured; {ABSENT} does not exist, or is not printed in the paper."
LINES = 48  # of a LaTeX float: what a page holds in \scriptsize with its caption
_LATEX = {
    "\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "−": "$-$", "±": r"$\pm$",
    "τ": r"$\tau$", "Δ": r"$\Delta$", "→": r"$\to$", "≥": r"$\ge$", "≤": r"$\le$", "×": r"$\times$", "·": r"$\cdot$",
    "—": "---", "–": "--", "…": r"\dots{}", "\u00a0": "~", "²": "$^2$", "*": "$^*$", "“": "``", "”": "''",
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A block of a table as it is shown.

    Attributes:
        title: of the block ("Qwen2.5-0.5B: published and measured"); may be empty.
        header: texts of the columns.
        rows: texts of the cells, as many as the header has; "" is a cell that was never measured.
        num_labels: the first columns, which say what a row is and stand to the left; the others are numbers. Where the
            first is empty, the row belongs to the one above it.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_labels: int


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: of its files (``table2``).
        title: one line.
        caption: what the columns are, how intervals and differences are made; plain sentences.
        grids: what is shown, block after block.
        numbers: every number that the grids show, a row each, unrounded; the CSV file.
    """

    name: str
    title: str
    caption: str
    grids: tuple[Grid, ...]
    numbers: pd.DataFrame


def to_markdown(table: Table) -> str:
    """Title, caption and grids; columns are padded, so that it reads as text too."""
    parts = [f"## {table.title}\n", f"{table.caption} {LEGEND}\n"]
    for grid in table.grids:
        parts += [f"**{grid.title}**\n"] if grid.title else []
        parts.append(_markdown_grid(grid))
    return "\n".join(parts)


def _markdown_grid(grid: Grid) -> str:
    lines = [[text.replace("|", "\\|") for text in line] for line in (grid.header, *_shown(grid))]
    widths = [max(3, *(_width(line[i]) for line in lines)) for i in range(len(grid.header))]
    rule = ["-" * (w - 1) + ("-" if i < grid.num_labels else ":") for i, w in enumerate(widths)]
    padded = [[_padded(text, widths[i], i < grid.num_labels) for i, text in enumerate(line)] for line in lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in (padded[0], rule, *padded[1:]))


def _shown(grid: Grid) -> Iterator[tuple[str, ...]]:
    """Rows with the mark of what was never measured."""
    for row in grid.rows:
        yield tuple(text if text or i < grid.num_labels else EMPTY for i, text in enumerate(row))


def _width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _padded(text: str, width: int, is_label: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if is_label else space + text


def to_latex(table: Table) -> str:
    """A float for each grid (booktabs), several where it is longer than a page; the first has the caption.

    A grid that is wider than the line is scaled down to it (graphicx).
    """
    parts = [r"% \usepackage{booktabs,graphicx}"]
    for number, (grid, rows) in enumerate(_pages(table.grids), start=1):
        title = re.sub("^Table ", "The paper's Table ", table.title)  # LaTeX gives it another number
        title += f". {grid.title}" if grid.title else ""
        caption = f"{title}. {table.caption} {LEGEND}" if number == 1 else title
        spec = "l" * grid.num_labels + "r" * (len(grid.header) - grid.num_labels)
        parts += [
            "",
            r"\begin{table}[p]",
            rf"\caption{{{latex(caption)}}}",
            rf"\label{{tab:{table.name}-{number}}}",
            r"\centering\scriptsize\setlength{\tabcolsep}{3pt}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            _latex_row(grid.header),
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
        ]
    return "\n".join(parts) + "\n"


def _pages(grids: Sequence[Grid]) -> Iterator[tuple[Grid, list[str]]]:
    """Rows of each float, broken where a row of its own begins; a little space stands before it."""
    for grid in grids:
        groups: list[list[str]] = []
        for row in _shown(grid):
            if row[0] or not groups:
                groups.append([])
            groups[-1].append(_latex_row(row))
        has_groups = any(len(group) > 1 for group in groups)
        page: list[str] = []
        for group in groups:
            if page and len(page) + len(group) > LINES:
                yield grid, page
                page = []
            page += ([r"\addlinespace[2pt]"] if page and has_groups else []) + group
        yield grid, page


def _latex_row(texts: Sequence[str]) -> str:
    return " & ".join(latex(text) for text in texts) + r" \\"


def latex(text: str) -> str:
    """The text with LaTeX's own characters escaped and symbols in mathematics."""
    return "".join(_LATEX.get(c, c) for c in text)


def to_csv(table: Table) -> str:
    """The numbers, unrounded; empty is what was never measured or does not exist."""
    return table.numbers.to_csv(index=False, lineterminator="\n")


def to_html(table: Table) -> str:
    """A section without any style; cells that were never measured have the class ``empty``."""
    parts = [f'<section class="table" id="{escape(table.name)}">', f"<h3>{escape(table.title)}</h3>"]
    parts.append(f"<p>{escape(table.caption)} {escape(LEGEND)}</p>")
    for grid in table.grids:
        parts.append("<table>")
        parts += [f"<caption>{escape(grid.title)}</caption>"] if grid.title else []
        head = "".join(f'<th scope="col"{_label(i, grid)}>{escape(text)}</th>' for i, text in enumerate(grid.header))
        parts += [f"<thead><tr>{head}</tr></thead>", "<tbody>"]
        for row in grid.rows:
            first = ' class="first"' if row[0] else ""
            parts.append(f"<tr{first}>" + "".join(_html_cell(i, text, grid) for i, text in enumerate(row)) + "</tr>")
        parts += ["</tbody>", "</table>"]
    return "\n".join([*parts, "</section>"]) + "\n"


def _label(i: int, grid: Grid) -> str:
    return ' class="label"' if i < grid.num_labels else ""


def _html_cell(i: int, text: str, grid: Grid) -> str:
    if i < grid.num_labels:
        return f'<th scope="row" class="label">{escape(text)}</th>'
    return f"<td>{escape(text)}</td>" if text else f'<td class="empty" title="never measured">{EMPTY}</td>'
