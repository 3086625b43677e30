"""Gaps between cells with their sampling error: paired where their documents are known, unpaired where scores are all.

A tidy frame has a row for each number: the columns of ``published.IDENTITY`` (those that it lacks count as empty), then
``value``, ``low``, ``high`` and where known ``se``, all in the value's unit, and ``n``. Published and measured cells
both fit it. ``rows_of`` makes plain rows of it, which the other functions take; measured ones come with ``Pairs``.

Both sides of a gap answered the same questions, so that a paired test of the documents is sharper wherever the two tend
to be right on the same ones, which they do. The paper does not publish documents. Hence a published gap that exceeds
the unpaired error is a safe finding, and one that does not is undecided, not zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.analysis.published import SCORE
from harness.analysis.schema import plain_rows
from harness.results.stats import LEVEL, Interval, holm, mean_interval, two_sided
from harness.results.tables import AVERAGE

if TYPE_CHECKING:
    from harness.analysis.pairs import Pairs

Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
Where = Mapping[str, Any]
Row = dict[str, Any]


class Rows(list[Row]):
    """Plain rows of cells. ``pairs`` knows the documents of measured ones; None: they are published."""

    def __init__(self, rows: Iterable[Row] = (), pairs: Pairs | None = None) -> None:
        super().__init__(rows)
        self.pairs = pairs


AR: Where = {"method": "ar_sft", "variant": None}
MARS: Where = {"method": "mars", "variant": None}
NO_SFT_LOSS: Where = {"method": "mars", "variant": "no_sft_loss"}
ONE_TOKEN: Where = {"tau": 1.0, "confidence": "probability"}  # an entropy of 1 nat would be another thing
MULTI_TOKEN: Where = {"tau": 0.95, "confidence": "probability"}
EACH_BLOCK_SIZE = "each block size"

# What is compared: a name, the first cell, the second one. A gap is the first's score minus the second's.
COMPARISONS: tuple[tuple[str, Where, Where], ...] = (
    ("one-token MARS − AR SFT", {**MARS, **ONE_TOKEN, "block_size": EACH_BLOCK_SIZE}, AR),
    (
        "one-token MARS without − with the SFT loss",
        {**NO_SFT_LOSS, **ONE_TOKEN, "block_size": EACH_BLOCK_SIZE},
        {**MARS, **ONE_TOKEN, "block_size": EACH_BLOCK_SIZE},
    ),
    ("MARS τ=0.95 − one-token MARS", {**MARS, **MULTI_TOKEN, "block_size": EACH_BLOCK_SIZE},
     {**MARS, **ONE_TOKEN, "block_size": EACH_BLOCK_SIZE}),
    ("AR SFT 10 − 5 epochs", {**AR, "variant": "compute_matched"}, AR),
    ("Block Diffusion − AR SFT",
     {"method": "block_diffusion", "variant": None, "tau": 1.0, "block_size": EACH_BLOCK_SIZE}, AR),
    ("Jacobi − AR SFT", {"method": "jacobi", "variant": None}, AR),
)  # fmt: skip
COLUMNS = (
    "comparison", "scale", "block_size", "task", "first", "second", "n",
    "gap", "se", "low", "high", "z", "p", "exceeds", "p_holm", "exceeds_holm", "is_paired",
)  # fmt: skip


def rows_of(cells: pd.DataFrame, pairs: Pairs | None = None) -> Rows:
    """The frame's rows as plain ones: None is what is empty, and a number that is missing is NaN.

    Without an ``se`` of its own a row has that of its interval: its width over twice 1.96.
    """
    rows = Rows(pairs=pairs)
    for row in plain_rows(cells):
        if row.get("value") is None:
            continue
        for name in ("value", "low", "high", "n", "se"):
            number = row.get(name)
            row[name] = math.nan if number is None else float(number)
        if math.isnan(row["se"]):
            row["se"] = (row["high"] - row["low"]) / (2 * Z)
        rows.append(row)
    return rows


def pick(rows: Sequence[Row], metric: str, where: Where) -> list[Row]:
    """The rows of a metric that have these values; None asks for an empty one."""
    return [row for row in rows if row["metric"] == metric and all(row.get(k) == v for k, v in where.items())]


def by_task(rows: Rows, where: Where, metric: str = SCORE) -> dict[str, Row]:
    """The cell's row of each task ("": none is named), averages left out.

    Of several measured cells the one with the usual cache and the smallest batch and blocks is meant.

    Raises:
        ValueError: several published cells of different values are meant: ``where`` does not tell them apart.
    """
    found: dict[str, Row] = {}
    picked = pick(rows, metric, where)
    if rows.pairs is not None:
        picked = sorted(picked, key=_rank)
    for row in picked:
        task = row.get("task") or ""
        if task == AVERAGE:
            continue
        if rows.pairs is None and task in found and found[task]["value"] != row["value"]:
            raise ValueError(f"several values of {metric} fit {dict(where)} (task: {task or 'none'})")
        found.setdefault(task, row)
    return found


def _rank(row: Row) -> tuple[Any, ...]:
    sizes = (row.get(name) or 0.0 for name in ("batch_size", "cache_block", "block_size", "num_drafts"))
    return (row.get("cache") != "cursor", *sizes, str(row["key"]))


def values_of(rows: Sequence[Row], column: str, where: Where, metric: str = SCORE) -> list[Any]:
    """The different values of a column among the rows of a metric, in ascending order."""
    return sorted({row.get(column) for row in pick(rows, metric, where)} - {None})


@dataclass(frozen=True)
class Gap:
    """First minus second on one task, or on the average of several; in points. ``n`` is NaN where it is not known.

    Attributes:
        first, second: the cells' own scores; of a paired gap they may be of more documents than both have.
        paired: the difference on the documents of both with its interval; None: it is not known.
        p_value: of the paired difference (McNemar's); None: that of ``z``.
    """

    task: str
    first: float
    second: float
    se: float
    n: float
    paired: Interval | None = None
    p_value: float | None = None
    p_holm: float = 1.0

    @property
    def is_paired(self) -> bool:
        return self.paired is not None

    @property
    def gap(self) -> float:
        return self.first - self.second if self.paired is None else self.paired.value

    @property
    def low(self) -> float:
        return self.gap - Z * self.se if self.paired is None else self.paired.low

    @property
    def high(self) -> float:
        return self.gap + Z * self.se if self.paired is None else self.paired.high

    @property
    def z(self) -> float:
        if self.se == 0:
            return math.copysign(math.inf, self.gap) if self.gap else 0.0
        return self.gap / self.se

    @property
    def p(self) -> float:
        """Two-sided, of this gap alone."""
        return two_sided(self.z) if self.p_value is None else self.p_value

    @property
    def exceeds(self) -> bool:
        """Whether the gap alone is beyond its 95 % sampling error."""
        return self.p < 1 - LEVEL

    @property
    def exceeds_holm(self) -> bool:
        """The same after Holm's correction for the other tests of its family."""
        return self.p_holm < 1 - LEVEL


@dataclass(frozen=True)
class Comparison:
    """Two cells on the tasks that both have: a gap for each task, and that of the plain average over them.

    The tasks' documents are different ones, so their errors are independent: the average's is their root of summed
    squares over their number. Holm's family is the tasks of this comparison.
    """

    tasks: tuple[Gap, ...]
    average: Gap

    @property
    def is_one(self) -> bool:
        """Whether the average is over a single task, which has a name."""
        return len(self.tasks) == 1 and self.tasks[0].task != ""

    @property
    def certain(self) -> tuple[Gap, ...]:
        """Tasks whose gap exceeds its error after Holm's correction."""
        return tuple(gap for gap in self.tasks if gap.exceeds_holm)


def compare(rows: Rows, first: Where, second: Where) -> Comparison | None:
    """Gaps in score between two cells; None where they share no task.

    Raises:
        ValueError: ``by_task``'s.
    """
    a, b = by_task(rows, first), by_task(rows, second)
    gaps = [gap for task in a if task in b for gap in gaps_between(rows, task, a[task], b[task])]
    if not gaps:
        return None
    k = len(gaps)
    average = Gap(
        AVERAGE,
        sum(gap.first for gap in gaps) / k,
        sum(gap.second for gap in gaps) / k,
        math.sqrt(sum(gap.se**2 for gap in gaps)) / k,
        sum(gap.n for gap in gaps),
    )
    parts = [gap.paired for gap in gaps if gap.paired is not None]
    if len(parts) == k:
        average = replace(average, paired=mean_interval(parts), p_value=gaps[0].p_value if k == 1 else None)
    return Comparison(corrected(gaps), *corrected([average]))


def gaps_between(rows: Rows, task: str, first: Row, second: Row) -> list[Gap]:
    """First minus second of two rows of one task, the only one; none where they are measured on no common document.

    McNemar's p-value stands beside a paired interval that takes documents as independent, as it does.
    """
    se = math.hypot(first["se"], second["se"])
    gap = Gap(task, first["value"], second["value"], se, min(first["n"], second["n"]))
    if rows.pairs is None:
        return [gap]
    found = rows.pairs.difference(first["key"], second["key"], task)
    if found is None:
        return []
    one = found.difference
    points = Interval(100 * one.value, 100 * one.low, 100 * one.high, one.n, one.how)
    p_value = found.p_value if one.how == "Bonett-Price" else None
    return [replace(gap, se=(points.high - points.low) / (2 * Z), n=one.n, paired=points, p_value=p_value)]


def corrected(gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    """The same gaps with Holm's p-values over all of them."""
    return tuple(replace(gap, p_holm=p) for gap, p in zip(gaps, holm([gap.p for gap in gaps]), strict=True))


def all_gaps(cells: pd.DataFrame, pairs: Pairs | None = None) -> pd.DataFrame:
    """Every comparison of ``COMPARISONS`` that the cells have, at each scale and block size, by task and on average.

    Returns:
        ``COLUMNS``. ``first`` and ``second`` are scores, ``low`` and ``high`` the gap's own 95 % interval; ``n`` is the
        smaller of the two sides'. ``p_holm`` corrects, per comparison and scale, over all tasks and block sizes, and
        over the averages apart from them; a single task has no average beside it.
    """
    rows, table = rows_of(cells, pairs), []
    for scale in values_of(rows, "scale", {}):
        here = Rows((row for row in rows if row["scale"] == scale), pairs)
        for name, first, second in COMPARISONS:
            found = list(_each_block_size(here, first, second))
            tasks = [(block_size, gap) for block_size, one in found for gap in one.tasks]
            for family in (tasks, [(block_size, one.average) for block_size, one in found if not one.is_one]):
                for (block_size, _), gap in zip(family, corrected([gap for _, gap in family]), strict=True):
                    measured = {column: getattr(gap, column) for column in COLUMNS[3:]}
                    table.append({"comparison": name, "scale": scale, "block_size": block_size, **measured})
    return pd.DataFrame(table, columns=list(COLUMNS))


def _each_block_size(rows: Rows, first: Where, second: Where) -> Iterator[tuple[float, Comparison]]:
    """The comparison at each block size that the first side has; NaN where it has none."""
    has_block_size = first.get("block_size") == EACH_BLOCK_SIZE
    others = {name: value for name, value in first.items() if name != "block_size"}
    for b in values_of(rows, "block_size", others) if has_block_size else [math.nan]:
        sides = [{name: b if value == EACH_BLOCK_SIZE else value for name, value in side.items()}
                 for side in (first, second)]  # fmt: skip
        if found := compare(rows, *sides):
            yield b, found
