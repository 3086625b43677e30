"""Results folders as data frames, on which every table, figure and claim stands.

    from harness.analysis import load
    results = load("results")            # or several folders, in any order
    results.cells, results.tasks, results.documents

What is damaged is named in ``results.problems`` and left out; nothing of it raises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd

from harness.analysis import aggregate, schema
from harness.analysis.cells import Damage, LoadedCell, read_cell
from harness.analysis.documents import make_documents, read_documents
from harness.errors import UserError
from harness.results.records import Record
from harness.results.tables import BASELINE, reference


class Results:
    """The healthy cells of some folders, oldest first.

    Frames are made when they are first asked for. A damage inside a documents file shows only when ``documents`` is
    read; its cell then leaves all frames.
    """

    def __init__(self, cells: Sequence[LoadedCell], optional: Sequence[str], quiet: bool) -> None:
        self._found = sorted(cells, key=lambda cell: (cell.record.created, cell.key))
        self._optional = tuple(optional)
        self._quiet = quiet
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> pd.DataFrame:
        """What was skipped: its path and the reason."""
        rows = [{"path": path, "reason": self._problems[path]} for path in sorted(self._problems)]
        return schema.make_frame(schema.PROBLEMS, rows)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell and benchmark, and one for its whole suite (``is_average``) where it has several."""
        return schema.make_frame(schema.CELLS, [row for cell in self._found for row in cell.rows])

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """One row per cell, benchmark and task or subtask."""
        return schema.make_frame(schema.TASKS, [row for cell in self._found for row in cell.tasks])

    @cached_property
    def documents(self) -> pd.DataFrame:
        """One row per cell and document."""
        healthy, tables = [], []
        for cell in self._found:
            try:
                tables.append(read_documents(cell, self._optional))
                healthy.append(cell)
            except Damage as error:
                self.report(cell.path, str(error))
        if len(healthy) < len(self._found):
            self._found = healthy
            for name in ("cells", "tasks", "_records", "_baselines"):
                self.__dict__.pop(name, None)
        return make_documents(healthy, tables)

    def report(self, path: str, reason: str) -> None:
        """Add to ``problems``, and tell in one line on stderr."""
        path = os.fsencode(path).decode("utf-8", "backslashreplace")  # a name may hold bytes that are no text
        reason = " ".join(reason.split())
        if path not in self._problems and not self._quiet:
            print(f"skipped: {path}: {reason}", file=sys.stderr, flush=True)
        self._problems[path] = reason

    def describe(self, *frames: str) -> None:
        """Print type, unit and meaning of every column.

        Args:
            frames: of "cells", "tasks", "documents", "problems"; all of them if none is named.
        """
        for frame in frames or schema.COLUMNS:
            if frame not in schema.COLUMNS:
                raise UserError("frame", frame, f"one of {', '.join(schema.COLUMNS)}")
            print(schema.describe(frame, list(getattr(self, frame).columns)), end="\n\n")

    def verify(self, intervals: bool = False) -> pd.DataFrame:
        """Where a record's numbers are not those of its documents; empty if all agree (see ``aggregate.verify``)."""
        documents = self.documents  # first, because damaged cells leave with it
        return aggregate.verify(self.cells, self.tasks, documents, intervals)

    def reference(self, key: str) -> str | None:
        """Run key of the AR SFT cell that a cell is compared with, by the rule of the results table; None: not here.

        Raises:
            UserError: no such cell.
        """
        if key not in self._records:
            raise UserError("key", key, "the run key of a loaded cell (column `key` of `cells`)")
        found = reference(self._records[key], self._baselines)
        return None if found is None else found.key

    @cached_property
    def _records(self) -> dict[str, Record]:
        return {cell.key: cell.record for cell in self._found}

    @cached_property
    def _baselines(self) -> list[Record]:
        return [one for one in self._records.values() if one.identity["method"]["name"] == BASELINE]


def load(*roots: str | Path, texts: bool = False, lists: Collection[str] = (), quiet: bool = False) -> Results:
    """Read every finished cell below some folders; the same frames whatever their order.

    A cell that is there more than once (copies, merged folders) counts once: the one that finished last.

    Args:
        roots: results folders (``results_dir`` of the runs), or folders of cells, or single cells.
        texts: ``documents`` has answers, what was extracted from them, right answers and hashes of prompts.
        lists: which columns of lists ``documents`` has: acceptance_lengths, token_ids, confidences, loglikelihoods,
            is_greedy.
        quiet: do not tell on stderr what was skipped.

    Raises:
        UserError: no folder named, or a list that does not exist.
    """
    if not roots:
        raise UserError("roots", "", "at least one results folder", 'load("results")')
    if isinstance(lists, str):
        lists = (lists,)
    for name in lists:
        if name not in schema.LISTS:
            raise UserError("lists", name, f"of {', '.join(schema.LISTS)}")
    problems: list[tuple[str, str]] = []
    cells: list[LoadedCell] = []
    for path in _folders(roots, problems):
        try:
            cells.append(read_cell(path))
        except Damage as error:
            problems.append((str(path), str(error)))
    kept = _once(cells, problems)
    results = Results(kept, (*(schema.TEXTS if texts else ()), *lists), quiet)
    for where, reason in sorted(problems):
        results.report(where, reason)
    return results


def _folders(roots: Iterable[str | Path], problems: list[tuple[str, str]]) -> list[Path]:
    """Folders of finished cells, each once however often and in which ways it is named."""
    found: dict[Path, Path] = {}
    for root in sorted(Path(root) for root in roots):
        count = 0
        for path in _below(root, problems):
            found.setdefault(path.resolve(), path)
            count += 1
        if not count:
            problems.append((str(root), "no finished cell is here" if os.path.isdir(root) else "no such folder"))
    return sorted(found.values())


def _below(root: Path, problems: list[tuple[str, str]]) -> Iterator[Path]:
    exists, is_dir = os.path.exists, os.path.isdir  # unlike those of a path they do not raise where nothing may be read
    if exists(root / "record.json"):
        yield root
        return
    runs = root / "runs" if is_dir(root / "runs") else root
    try:
        paths = sorted(path for path in runs.iterdir() if is_dir(path) and not path.name.startswith("."))
    except OSError:
        return
    for path in paths:
        if not os.access(path, os.X_OK):
            problems.append((str(path), "cannot be read: Permission denied"))
        elif exists(path / "record.json"):
            yield path
        elif exists(path / "documents.parquet") and not exists(path / "partial.jsonl"):
            problems.append((str(path), "record.json is missing"))


def _once(cells: Sequence[LoadedCell], problems: list[tuple[str, str]]) -> list[LoadedCell]:
    """Of several cells with one key the newest; of equal ones that of the first path."""
    kept: dict[str, LoadedCell] = {}
    for cell in cells:  # by path
        other = kept.setdefault(cell.key, cell)
        if other is cell:
            continue
        newest, older = sorted((other, cell), key=lambda c: (c.record.created, c.digest), reverse=True)
        kept[cell.key] = newest
        what = "a copy of" if newest.digest == older.digest else "the same cell as"
        problems.append((older.path, f"{what} {newest.path}" + (", which is newer" if what != "a copy of" else "")))
    return list(kept.values())


def paired(documents: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """The documents that two cells share, side by side.

    Args:
        documents: the frame ``documents``, or some rows of it.
        first, second: run keys; their columns end in ``_a`` and ``_b``.

    Returns:
        A row per document that both have, by benchmark, task and doc_id, with ``difference`` = score_a − score_b.

    Raises:
        UserError: a cell that has no document here.
    """
    places = ["benchmark", "task", "doc_id"]
    sides = []
    for key in (first, second):
        rows = documents[documents["key"] == key]
        if rows.empty:
            raise UserError("key", key, "the run key of a cell with documents (column `key` of `documents`)")
        sides.append(rows)
    joined = sides[0].merge(sides[1], on=places, suffixes=("_a", "_b"))
    joined["difference"] = joined["score_a"] - joined["score_b"]
    return joined.sort_values(places, ignore_index=True)
