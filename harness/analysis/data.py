"""Everything that tables, figures, claims and the report are made of, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from harness.analysis.frames import Results, load
from harness.analysis.measured import measured, usual
from harness.analysis.pairs import Pairs
from harness.analysis.published import PAPER, read_published, with_errors
from harness.analysis.training import read_training
from harness.config import ROOT
from harness.errors import UserError
from harness.models.checkpoints import default_checkpoints_dir

REFERENCE = ROOT / "results" / "reference"
RESULTS = ROOT / "results"


@dataclass(frozen=True)
class Data:
    """Measured and published numbers.

    Attributes:
        results: the cells' frames (``harness.analysis.load``), documents with texts and lists.
        roots: folders that they come from.
    """

    results: Results
    roots: tuple[Path, ...]

    @cached_property
    def measured(self) -> pd.DataFrame:
        """``measured.measured``: every greedy cell in the published numbers' columns."""
        return measured(self.results)

    @cached_property
    def usual(self) -> pd.DataFrame:
        """``measured.usual``: of cells that differ in nothing that the paper tells apart, one."""
        return usual(self.measured)

    @cached_property
    def published(self) -> pd.DataFrame:
        """The paper's numbers with their errors (``published.with_errors``)."""
        return with_errors(read_published(PAPER))

    @cached_property
    def pairs(self) -> Pairs:
        """Paired differences between cells."""
        return Pairs(self.results)

    @cached_property
    def training(self) -> pd.DataFrame:
        """``training.read_training``: logs beside the checkpoints and those kept with the results."""
        return read_training(default_checkpoints_dir(), *self.roots, report=self.results.report)


def open_named(folders: Sequence[Path], quiet: bool = False) -> Data:
    """The records of the folders that a user names, or of the default ones; the paper's numbers alone if none is there.

    Raises:
        UserError: a folder that is not there.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UserError("FOLDER", str(folder), "a results folder, such as results/runs")
    if not folders and not any(path.is_dir() for path in (REFERENCE, RESULTS / "runs")):
        folders = [RESULTS]
    return open_data(*folders, quiet=quiet)


def open_data(*roots: str | Path, quiet: bool = False) -> Data:
    """Read some results folders; without any, the reference results and whatever was run here.

    Raises:
        UserError: no folder can be read.
    """
    places = [Path(root) for root in roots] or [path for path in (REFERENCE, RESULTS / "runs") if path.is_dir()]
    lists = ("acceptance_lengths", "token_ends", "draft_depths", "draft_confidences", "draft_right")
    return Data(load(*places, texts=True, lists=lists, quiet=quiet), tuple(places))
