"""Finished cells as data frames: ``load`` reads them, ``schema`` says what every column means."""

from harness.analysis.aggregate import summed, with_ratios
from harness.analysis.frames import Results, load, paired

__all__ = ["Results", "load", "paired", "summed", "with_ratios"]
