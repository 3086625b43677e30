"""What the figures of cells share: one cell for each setting, its name for readers, its documents, resampled ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.data import Data
from harness.analysis.measured import SCALES, is_current
from harness.results.stats import LEVEL

# A method's settings on a model and benchmark: everything that a user may choose for it.
WHERE = ("model", "benchmark")
SETTING = (
    "method", "variant", "alignment", "block_size", "tau", "confidence", "options", "draft_model", "cache",
    "cache_block", "accept_limit", "max_gen_toks", "dtype",
)  # fmt: skip
CONDITIONS = ("hardware", "device", "threads", "dtype", "batch_size")  # which a comparison on the clock has to share
RESAMPLES = 2_000
_SIDES = {"ar_sft": "AR", "mars": "MARS"}
_CHUNK = 2_000_000  # documents drawn at once, so that memory stays small


def settings(data: Data, *conditions: str) -> pd.DataFrame:
    """Of every greedy setting one cell: the one with most documents, of these the newest (seeds repeat a setting).

    All settings of a method are of the same weights (``measured.is_current``).

    Args:
        conditions: further columns that tell settings apart (``CONDITIONS``).

    Returns:
        Rows of ``cells`` sorted by ``WHERE`` and ``SETTING``; objects with None where something is not known; and
        ``options_shown``, of ``options`` what differs among the method's settings here.
    """
    data.results.documents  # noqa: B018 (cells whose documents are damaged leave only when these are read)
    cells = data.results.cells
    cells = cells[cells["temperature"].fillna(0) == 0]
    cells = cells[is_current(cells)]
    by = [*WHERE, *SETTING, *(name for name in conditions if name not in SETTING)]
    whole = cells.groupby("key")["n"].transform("max")  # a cell is chosen whole, not benchmark by benchmark
    ranked = cells.assign(whole=whole).sort_values(["whole", "created", "key"], ascending=False, kind="stable")
    kept = ranked.drop_duplicates(subset=by).sort_values(by, kind="stable").drop(columns="whole")
    plain = kept.astype(object).where(kept.notna(), None).reset_index(drop=True)
    return plain.assign(options_shown=_options_shown(plain))


def _options_shown(cells: pd.DataFrame) -> list[str]:
    axes = [name for name in cells.columns if name.startswith("axis.")]
    counts = cells.groupby("method")[axes].nunique(dropna=False)
    varying = {method: [name for name in axes if row[name] > 1] for method, row in counts.iterrows()}
    return [", ".join(_shown(row, varying[row["method"]])) for row in cells.to_dict("records")]


def _shown(row: dict[str, Any], varying: Sequence[str]) -> Iterator[str]:
    """Who drafts for whom is always told, as in Table 6; other options where they differ."""
    is_speculative = row["method"] == "speculative"
    if is_speculative:
        draft, target = (str(row.get(f"axis.{side}")) for side in ("draft", "target"))
        yield f"{_SIDES.get(draft, draft)} → {_SIDES.get(target, target)}"
    for name in varying:
        axis = name.removeprefix("axis.")
        if row[name] and not (is_speculative and axis in ("draft", "target")):
            yield f"{'K' if is_speculative and axis == 'num_drafts' else axis}={row[name]}"


def scale_of(model: str) -> str:
    """The paper's scale where the model is one of its, else the model itself."""
    return SCALES.get(model, model)


def setting_name(row: Any, skip: Sequence[str] = ()) -> str:
    """What a setting has beside its method, as short as it can be ("τ=0.95 B=4 no cache").

    Args:
        row: with ``tau``, ``block_size``, ``confidence``, ``cache``, its size and limit where it has them, and, if it
            has options, ``options_shown``.
        skip: columns that are told elsewhere.
    """
    parts = []
    for column, symbol in (("tau", "τ"), ("block_size", "B")):
        if column not in skip and known(row.get(column)):
            parts.append(f"{symbol}={row[column]:g}")
    if "confidence" not in skip and row.get("confidence") in ("margin", "entropy"):
        parts.append(str(row["confidence"]))
    if "cache" not in skip and row.get("cache") in ("none", "block"):
        size = f" {row['cache_block']:g}" if known(row.get("cache_block")) else ""
        is_wide = row.get("accept_limit") == "cache_block"
        parts.append("no cache" if row["cache"] == "none" else f"block cache{size}{' accepted whole' * is_wide}")
    if "options" not in skip and row.get("options_shown"):
        text = str(row["options_shown"]).replace("window_length=", "n=").replace("_", " ")
        parts.append(text if len(text) <= 22 else text[:20].rstrip(" ,=[(") + "…")
    return " ".join(parts)


def known(value: Any) -> bool:
    """Whether a cell of a frame has a value."""
    return value is not None and value is not pd.NA and value == value


@dataclass(frozen=True)
class Matrix:
    """Values of some cells on the documents of a benchmark.

    Attributes:
        keys: of the cells, the columns.
        tasks: the subtask of each document.
        values: float64 ``[documents, cells]`` by column of the documents; NaN where a cell lacks a document.
    """

    keys: tuple[str, ...]
    tasks: np.ndarray
    values: dict[str, np.ndarray]

    @cached_property
    def places(self) -> dict[str, int]:
        """The column of each cell."""
        return {key: place for place, key in enumerate(self.keys)}


def matrices(data: Data, keys: Sequence[str], columns: Sequence[str]) -> dict[str, Matrix]:
    """The documents of some cells by benchmark, each document a row for all cells that answered it."""
    documents = data.results.documents
    rows = documents.loc[documents["key"].isin(list(keys)), ["key", "benchmark", "task", "doc_id", *columns]]
    return {str(name): _matrix(part, columns) for name, part in rows.groupby("benchmark", observed=True)}


def _matrix(rows: pd.DataFrame, columns: Sequence[str]) -> Matrix:
    tasks, task_names = pd.factorize(rows["task"].astype("string"), sort=True)
    keys, key_names = pd.factorize(rows["key"].astype("string"), sort=True)
    places = tasks.astype(np.int64) << 40 | rows["doc_id"].to_numpy(np.int64)
    known, document = np.unique(places, return_inverse=True)
    values = {}
    for name in columns:
        values[name] = np.full((len(known), len(key_names)), np.nan)
        values[name][document, keys] = rows[name].to_numpy(np.float64, na_value=np.nan)
    return Matrix(tuple(map(str, key_names)), np.asarray(task_names[known >> 40], dtype=object), values)


def resampled_ratios(above: np.ndarray, below: np.ndarray, seed: int = 0) -> np.ndarray:
    """Ratios of sums when documents are resampled, the same ones for all cells that have the same documents.

    Args:
        above, below: float64 ``[documents, cells]``; NaN where a cell lacks a document: cells are resampled from the
            documents that they have.

    Returns:
        Float64 ``[RESAMPLES, cells]``; NaN of cells with fewer than two documents.
    """
    ratios = np.full((RESAMPLES, above.shape[1]), np.nan)
    there = ~(np.isnan(above) | np.isnan(below))
    patterns, which = np.unique(there, axis=1, return_inverse=True)
    for index in range(patterns.shape[1]):
        cells, rows = np.flatnonzero(which.ravel() == index), patterns[:, index]
        if rows.sum() > 1:
            sums = [_resampled(side[np.ix_(rows, cells)], seed) for side in (above, below)]
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios[:, cells] = sums[0] / sums[1]
    return ratios


def ends(ratios: np.ndarray) -> tuple[float, float]:
    """The percentile interval at ``LEVEL`` of resampled values ``[RESAMPLES]``."""
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _resampled(values: np.ndarray, seed: int) -> np.ndarray:
    """Sums over resampled rows: ``[RESAMPLES, cells]``."""
    return np.concatenate([counts @ values for counts in _counts(len(values), seed)])


def _counts(n: int, seed: int) -> Iterator[np.ndarray]:
    """How often each of n rows is drawn: float64 ``[some resamples, n]``, ``RESAMPLES`` in all."""
    generator, chunk = np.random.default_rng(seed), max(1, _CHUNK // n)
    for start in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - start)
        drawn = generator.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
