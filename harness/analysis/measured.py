"""Measured cells in the shape of the published ones, so that tables, figures and claims read both alike.

measured(results)         # every cell: a row for each benchmark and metric, in the columns of ``published``
usual(measured(results))  # of cells that differ in nothing that the paper tells apart, one
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pandas as pd
import yaml

from harness.analysis.frames import Results
from harness.analysis.published import FORWARD, IDENTITY, RATE, SCORE, SECONDS, UNITS
from harness.analysis.schema import plain_rows
from harness.config import CONF
from harness.results.tables import AVERAGE

# The paper's scales, by the models that they are of; every other model is a scale of its own.
SCALES = {"qwen2.5-0.5b": "0.5b", "qwen2.5-7b": "7b"}
# Of a suite's average FORWARD is over all documents; TASK_MEAN, which the paper prints, is the mean of tasks' ratios.
TASK_MEAN, POSITIONS, EQUIVALENT = (
    "tokens_per_forward_task_mean",
    "positions_per_token",
    "tokens_per_equivalent_forward",
)
SPEEDS = {
    FORWARD: UNITS[FORWARD], TASK_MEAN: UNITS[FORWARD], EQUIVALENT: UNITS[FORWARD], POSITIONS: "positions / token",
    RATE: UNITS[RATE], SECONDS: UNITS[SECONDS],
}  # fmt: skip
# What a speed on the clock depends on besides; ``is_usual``: the method's options are those of conf/method.
MACHINE = ("hardware", "threads")
# Which weights a cell is of: cells that agree in all but the last are of one checkpoint, or of several trainings of it.
WEIGHTS = ("model", "method", "variant", "alignment", "block_size", "draft_model", "options", "checkpoint")
BESIDES = (
    "key", "model", "options", "seed", "dtype", "limit", "created", *MACHINE, "alignment", "draft_model", "checkpoint",
    "is_usual",
)  # fmt: skip
COLUMNS = (*IDENTITY, "value", "unit", "low", "high", "n", "se", *BESIDES)
_NUMBERS = ("block_size", "tau", "cache_block", "batch_size", "num_drafts", "value", "low", "high", "n", "se")


def measured(results: Results) -> pd.DataFrame:
    """Score and speeds (``SPEEDS``) of every greedy cell, a row each.

    Returns:
        ``COLUMNS``: the cell (``IDENTITY``, as in ``published``; ``scale`` is the paper's where the model is one of
        its, else the model's name; ``task`` is the benchmark, or ``average``); value with unit (scores in percent) and
        95 % interval (of speeds, one run: the value itself); ``n`` documents; ``se`` empty; run key, model, the
        method's other options, seed, dtype, limit, time, machine, and whether the options are the usual ones. Cells
        with a temperature are left out: the paper has none.
    """
    cells = results.cells
    rows = [row for cell in plain_rows(cells) if not cell["temperature"] for row in _rows(cell)]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    kept = ("created", "is_usual")
    return frame.astype(
        {name: "float64" if name in _NUMBERS else "object" for name in COLUMNS if name not in kept} | {"is_usual": bool}
    )


def _rows(cell: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The metrics of a row of ``cells``."""
    identity = {name: cell.get(name) for name in IDENTITY if name not in ("scale", "task", "metric")}
    identity |= {name: cell.get(f"axis.{name}") for name in ("target", "draft")}
    drafts = cell.get("axis.num_drafts") if cell["method"] == "speculative" else None
    identity |= {"scale": SCALES.get(cell["model"], cell["model"]), "num_drafts": number(drafts)}
    row = identity | {name: cell[name] for name in BESIDES if name != "is_usual"}
    row["is_usual"] = _is_usual(cell)
    row |= {"task": AVERAGE if cell["is_average"] else cell["benchmark"], "n": cell["n"]}
    score = {name: 100 * cell[column] for name, column in
             (("value", "score"), ("low", "score_low"), ("high", "score_high"))}  # fmt: skip
    yield row | score | {"metric": SCORE, "unit": UNITS[SCORE]}
    for metric, unit in SPEEDS.items():
        value = cell[metric] if cell["new_tokens"] else None
        if value is not None:
            yield row | {"metric": metric, "unit": unit, "value": value, "low": value, "high": value}


def number(text: str | None) -> float | None:
    """An option that is a number; None where it is another word, which a user's own method may have there."""
    try:
        found = math.nan if text is None else float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _is_usual(cell: Mapping[str, Any]) -> bool:
    """Whether a method's further options are those that its entry in conf/method has."""
    defaults = _defaults(cell["method"].removesuffix(" verified"))
    return all((cell.get(f"axis.{name}") or "null") == value for name, value in defaults.items())


@cache
def _defaults(method: str) -> dict[str, str]:
    """Options without a column of their own, written as in the frame ``cells``; none of a method without an entry."""
    try:
        found = yaml.safe_load((CONF / "method" / f"{method}.yaml").read_text(encoding="utf-8"))
    except OSError:
        return {}
    own = {"_target_", "name", "verify", "temperature", *IDENTITY}
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items() if name not in own
    }


def usual(frame: pd.DataFrame) -> pd.DataFrame:
    """Of cells that agree in ``IDENTITY`` one: with the usual options, then most documents, then the newest.

    They may differ in seed, dtype, limit, machine or a method's options; the column ``key`` says which one it is. All
    settings of a method are of the same weights (``is_current``).
    """
    ranked = frame[is_current(frame)].sort_values(["n", "created", "key"], ascending=False, kind="stable")
    whole = frame.groupby("key")["n"].max()  # a cell is chosen whole, not benchmark by benchmark
    ranked = ranked.assign(_whole=ranked["key"].map(whole))
    ranked = ranked.sort_values(["is_usual", "_whole"], ascending=False, kind="stable")
    kept = ranked.drop_duplicates(subset=list(IDENTITY))
    return frame.loc[kept.index.sort_values()].reset_index(drop=True)


def is_current(frame: pd.DataFrame) -> pd.Series:
    """Whether rows are of the weights that stand for their method.

    Of several trainings these are those with most documents, then the newest. Settings of two trainings are no points
    of one curve, nor the two sides of one difference.

    Args:
        frame: of ``measured``, or ``cells``.
    """
    by = {name: frame[name].astype(object).where(frame[name].notna(), "") for name in WEIGHTS}
    by["method"] = by["method"].str.removesuffix(" verified")  # it has MARS's weights
    told = pd.DataFrame(by).assign(whole=frame.groupby("key")["n"].transform("max"), created=frame["created"])
    told = told.assign(key=frame["key"]).sort_values(["whole", "created", "key"], ascending=False, kind="stable")
    first = told.groupby(list(WEIGHTS[:-1]), sort=False)["checkpoint"].transform("first")
    return (told["checkpoint"] == first).reindex(frame.index)
