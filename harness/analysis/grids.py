"""What a table is: numbers in a long frame, and grids of text that show them; written as Markdown, LaTeX, CSV, HTML."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Grid:
    """A block of a table as it is shown.

    Attributes:
        title: of the block ("Qwen2.5-0.5B: published and measured"); may be empty.
        header: texts of the columns.
        rows: texts of the cells, as many as the header has; "" is a cell that was never measured.
        num_labels: the first columns, which say what a row is and stand to the left; the others are numbers.
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
