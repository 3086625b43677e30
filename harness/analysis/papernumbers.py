"""The numbers of the paper's tables: published, measured, their difference, intervals and p-values; and their texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from harness.analysis.gaps import Z
from harness.analysis.measured import SPEEDS
from harness.analysis.papercells import Cell, Setting
from harness.analysis.published import DELTA, RATE, SCORE, SECONDS, SPEEDUP, UNITS
from harness.results.stats import LEVEL, Comparison, holm, two_sided
from harness.results.tables import AVERAGE

DELTA_AR = "delta_ar_sft"  # paired, from AR SFT; ``DELTA`` is the paper's, from one-token mode
SPEEDUP_AR = "speedup_over_ar_sft"
UNIT = UNITS | SPEEDS | {DELTA_AR: "points", SPEEDUP_AR: UNITS[SPEEDUP]}
SAMPLED = (SCORE, DELTA_AR, DELTA)  # those that have an interval
COLUMNS = (
    "table", "scale", "model", *Setting._fields, "cache", "cache_block", "accept_limit", "batch_size", "hardware",
    "device", "threads", "dtype", "seed", "limit", "draft_model", "task", "metric", "unit", "n",
    "published", "published_low", "published_high", "measured", "low", "high",
    "difference", "difference_low", "difference_high", "p", "p_holm", "key", "reference",
)  # fmt: skip
MEANING = "Unrounded numbers, p-values and run keys are in the CSV file."


class Value(NamedTuple):
    """A number with its 95 % interval in the same unit; of a number without sampling error the number itself."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """The wider of the two halves of the interval."""
        return max(self.value - self.low, self.high - self.value)


@dataclass
class Number:
    """What one place of a table says: a metric of a row on a benchmark.

    Attributes:
        cell: the measured cell; None: never measured, or an average over several cells.
        reference: run key of the cell that a paired difference is from.
        p, p_holm: of the difference where there is one, else of a measured difference being 0.
    """

    scale: str
    setting: Setting
    task: str
    metric: str
    published: Value | None = None
    measured: Value | None = None
    difference: Value | None = None
    n: int | None = None
    p: float | None = None
    p_holm: float | None = None
    cell: Cell | None = None
    reference: str | None = None
    place: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tested(self) -> Value | None:
        """What ``p`` is about."""
        return self.difference if self.metric == SCORE else self.measured

    @property
    def is_certain(self) -> bool:
        """Whether it is not 0: by the corrected p-value, and by its own interval (that of BBH goes by subtasks)."""
        found = self.tested
        return (
            found is not None
            and self.p_holm is not None
            and self.p_holm < 1 - LEVEL
            and not found.low <= 0 <= found.high
        )


def value_of(row: Mapping[str, Any] | None) -> Value | None:
    """Of a row of ``measured`` or ``published``."""
    return None if row is None else Value(float(row["value"]), float(row["low"]), float(row["high"]))


def points(comparison: Comparison) -> Value:
    """A paired difference, in points."""
    found = comparison.difference
    return Value(100 * found.value, 100 * found.low, 100 * found.high)


def minus(first: Value | None, second: Value | None) -> Value | None:
    """Difference of two independent numbers: their errors towards each end add up as squares (Newcombe 1998)."""
    if first is None or second is None:
        return None
    gap = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Value(gap, gap - below, gap + above)


def p_of(gap: Value) -> float:
    """Two-sided p-value of a difference being 0, by the half of its interval that lies towards 0."""
    half = gap.value - gap.low if gap.value > 0 else gap.high - gap.value
    return two_sided(math.inf if half == 0 and gap.value else Z * gap.value / half if half else 0.0)


def correct(numbers: Iterable[Number], family: Callable[[Number], Hashable]) -> None:
    """Holm's p-values over those of one family that have a p-value; a family of None stays out."""
    families: dict[Hashable, list[Number]] = {}
    for number in numbers:
        if number.p is not None and (place := family(number)) is not None:
            families.setdefault(place, []).append(number)
    for found in families.values():
        for number, p in zip(found, holm([one.p for one in found if one.p is not None]), strict=True):
            number.p_holm = p


def by_block(number: Number) -> Hashable:
    """Families of a block of a table: differences from the paper, averages apart; paired ones by benchmark."""
    if number.metric == SCORE:
        return SCORE, number.task == AVERAGE
    return number.metric, number.task


def frame(table: str, numbers: Iterable[Number]) -> pd.DataFrame:
    """``COLUMNS`` of every number that is published or measured, a row each; units are in ``unit``.

    ``low`` and ``high`` are the 95 % interval of ``measured`` (of a speed: the number itself), ``published_low`` and
    ``published_high`` that of ``published`` (of a speed: what it was before it was rounded). ``difference`` is measured
    minus published. ``p`` and ``p_holm``, before and after Holm's correction, are of ``difference`` in rows of scores,
    and of ``measured`` in rows of paired differences (``delta_ar_sft``, ``delta``). ``key`` is the measured cell, empty
    of an average over several; ``reference`` the cell that a paired difference or a speedup is from.
    """
    rows = [_row(table, one) for one in numbers if one.published is not None or one.measured is not None]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(table: str, number: Number) -> dict[str, Any]:
    row: dict[str, Any] = {"table": table, "scale": number.scale, **number.setting._asdict()}
    row |= dict(number.place)
    if number.cell is not None:
        row |= {**number.cell.place, "model": number.cell.model, "key": number.cell.key}
    row |= {"task": number.task or None, "metric": number.metric, "unit": UNIT[number.metric], "n": number.n}
    sides = (("published", "published_"), ("measured", ""), ("difference", "difference_"))
    for side, prefix in sides:
        found = getattr(number, side)
        if found is not None:
            row |= {side: found.value, f"{prefix}low": found.low, f"{prefix}high": found.high}
    return row | {"p": number.p, "p_holm": number.p_holm, "reference": number.reference}


def text(number: Number, side: str) -> str:
    """What a grid shows of it; "" where it was never measured. A difference that is certain has an asterisk."""
    found = getattr(number, side)
    if found is None:
        return ""
    is_signed = side == "difference" or number.metric in (DELTA, DELTA_AR)
    shown = amount(number.metric, found.value, is_signed)
    if side == "published" and number.metric == SECONDS and found.half >= 0.5:
        shown = f"{found.value:.0f}"  # printed without decimals
    if number.metric in SAMPLED and not (side == "published" and number.metric != SCORE):
        shown += f" ±{found.half:.1f}"
    is_starred = number.is_certain and side == ("difference" if number.metric == SCORE else "measured")
    return shown + "*" if is_starred else shown


def amount(metric: str, value: float, is_signed: bool = False) -> str:
    """A number with the decimals of its metric and a true minus sign."""
    decimals = 1 if metric in SAMPLED or (metric in (RATE, SECONDS) and abs(value) < 1000) else 2
    if metric in (RATE, SECONDS) and abs(value) >= 1000:
        decimals = 0
    shown = f"{value:{'+' if is_signed else ''}.{decimals}f}"
    return shown.replace("-", "−") if float(shown) else shown.lstrip("+-")


STARS = (
    "±: the wider half of a 95 % interval. An asterisk marks a difference that is not 0 after Holm's correction; one "
    "without decides nothing."
)
