"""The paper's measured figures and those that it lacks, each from a frame of the points that it plots.

make_figures(open_data())  # all of them, in the order of a reader; ``style.save`` writes one, ``style.render`` draws it
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from harness.analysis.data import Data
from harness.analysis.figures.base import Figure

# Functions that make a figure or a list of them, from what a reader wants first to details.
MAKERS = (
    "equal_quality:make", "frontier:fig3", "speed:speedup", "speed:tokens_per_forward", "lengths:make",
    "generation:make", "frontier:fig6", "calibration:make", "training:make",
)  # fmt: skip


def tell(maker: str, error: Exception) -> None:
    """Say on stderr that a figure is broken."""
    print(f"figure {maker} could not be made: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def make_figures(data: Data, broken: Callable[[str, Exception], None] = tell) -> list[Figure]:
    """All figures, also those of which nothing was measured (without points).

    Args:
        broken: is told the maker and the error of figures that cannot be made; the others are made all the same.
    """
    figures: list[Figure] = []
    for maker in MAKERS:
        module, name = maker.split(":")
        try:
            made = getattr(importlib.import_module(f"{__name__}.{module}"), name)(data)
        except Exception as error:  # one broken figure must not lose the others
            broken(maker, error)
        else:
            figures += [made] if isinstance(made, Figure) else made
    return figures


__all__ = ["MAKERS", "Figure", "make_figures"]
