"""What a figure is: points, and a function that draws them and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Figure:
    """A figure that can be drawn, or that cannot because nothing of it was measured.

    Attributes:
        name: of its files (``fig3``, ``acceptance_lengths``).
        title: one line.
        caption: what is shown, of how many documents, how its intervals are made; plain sentences.
        points: exactly what is plotted, a row each; its CSV file. Empty: nothing was measured.
        draw: makes the drawing of ``points`` alone; ``style.render`` calls it with the look of all figures.
        missing: of a figure without points: what has to be run for it, as a command where there is one.
        extra: further files of the figure, content by suffix (``html``, ``txt``).
    """

    name: str
    title: str
    caption: str
    points: pd.DataFrame
    draw: Callable[[pd.DataFrame], Drawing]
    missing: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
