"""How the tables of scores are laid out: a row's numbers below each other, or τ in the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.grids import ABSENT, Grid
from harness.analysis.measured import POSITIONS, TASK_MEAN
from harness.analysis.names import BENCHMARKS, name
from harness.analysis.papercells import ONE_TOKEN, Setting
from harness.analysis.papernumbers import DELTA_AR, Number, text
from harness.analysis.published import DELTA, FORWARD, SCORE, TEST_SIZES
from harness.results.tables import AVERAGE

AR = Setting("ar_sft")
WORDS = {
    SCORE: "score", DELTA_AR: "Δ AR SFT", DELTA: "Δ τ=1", TASK_MEAN: "tokens/forward, task mean",
    FORWARD: "tokens/forward", POSITIONS: "positions/token",
}  # fmt: skip
SIDES = ("published", "measured", "difference")
Entries = dict[tuple[Setting, str, str], Number]  # by row, benchmark and metric


@dataclass(frozen=True)
class Plan:
    """What a table of scores shows.

    Attributes:
        number: the paper's.
        expected: rows that every block has, measured or not.
        families: of each at least one row: that method's measured ones, or an empty one.
        takes: which measured rows belong to the table.
        metrics: lines of a row, in order; those of ``always`` stand there even if empty.
        scales: the paper's that have a block even if nothing was measured.
        tasks: the paper's benchmarks that the table has.
        is_wide: τ is in the columns (Table 8).
    """

    number: int
    title: str
    caption: str
    expected: tuple[Setting, ...]
    families: tuple[Setting, ...]
    takes: Callable[[Setting], bool]
    metrics: tuple[str, ...] = (SCORE, DELTA_AR)
    always: tuple[str, ...] = (SCORE,)
    scales: tuple[str, ...] = ("0.5b", "7b")
    tasks: tuple[str, ...] = tuple(TEST_SIZES)
    is_wide: bool = False


def long_grid(plan: Plan, title: str, settings: Sequence[Setting], columns: Sequence[str], entries: Entries) -> Grid:
    """Benchmarks in the columns; a row's numbers one below the other."""
    rows = []
    for setting in settings:
        label = setting.label
        numbers = {metric: [entries[setting, task, metric] for task in columns] for metric in plan.metrics
                   if (setting, columns[0], metric) in entries}  # fmt: skip
        for word, metric, side in _lines(plan, numbers):
            rows.append((label, word, *(_cell_text(one, side) for one in numbers[metric])))
            label = ""
    header = [_heading(task, [entries[one, task, SCORE] for one in settings]) for task in columns]
    return Grid(title, ("method", "", *header), tuple(rows), 2)


def wide_grid(plan: Plan, title: str, settings: Sequence[Setting], task: str, entries: Entries) -> Grid:
    """τ in the columns, from the largest; AR SFT, which has none, is under 1."""
    taus = sorted({one.tau for one in settings if one.tau is not None} | {ONE_TOKEN}, reverse=True)
    rows = []
    for whole in dict.fromkeys(one._replace(tau=None) for one in settings):
        label, has_tau = whole.label, whole != AR
        members = {tau: whole._replace(tau=tau) if has_tau else whole for tau in (taus if has_tau else [ONE_TOKEN])}
        found = {
            metric: {tau: entries[one, task, metric] for tau, one in members.items() if (one, task, metric) in entries}
            for metric in plan.metrics
        }
        for word, metric, side in _lines(plan, {metric: list(one.values()) for metric, one in found.items()}):
            missing = {tau: "" if tau in members else ABSENT for tau in taus}
            texts = missing | {tau: _cell_text(one, side) for tau, one in found[metric].items()}
            rows.append((label, word, *texts.values()))
            label = ""
    counted = [one for one in entries.values() if one.task == task and one.metric == SCORE]
    return Grid(title + _count(counted), ("method", "", *(f"τ={tau:g}" for tau in taus)), tuple(rows), 2)


def _lines(plan: Plan, numbers: Mapping[str, Sequence[Number]]) -> Iterator[tuple[str, str, str]]:
    """The lines of a row: what stands before them, metric and side. Where there is nothing to tell there is none."""
    is_alone = set(plan.metrics) == {SCORE, DELTA_AR}  # then "score" before each line would be noise
    for metric in plan.metrics:
        found = numbers.get(metric, ())
        sides = [side for side in SIDES if any(getattr(one, side) is not None for one in found)]
        is_printed = "published" in sides
        if not sides and (metric not in plan.always or (metric == FORWARD and _is_printed(numbers, TASK_MEAN))):
            continue
        if metric == TASK_MEAN and not is_printed and not _differ(numbers):
            continue  # every benchmark is a single task, its mean is the ratio of sums
        if "measured" not in sides:
            sides.insert(int(is_printed), "measured")  # visibly empty
        for side in sides:
            if metric == SCORE and is_alone:
                yield side, metric, side
            else:
                yield WORDS[metric] + (f", {side}" if is_printed else ""), metric, side


def _is_printed(numbers: Mapping[str, Sequence[Number]], metric: str) -> bool:
    return any(one.published is not None for one in numbers.get(metric, ()))


def _differ(numbers: Mapping[str, Sequence[Number]]) -> bool:
    pairs = zip(numbers.get(TASK_MEAN, ()), numbers.get(FORWARD, ()), strict=True)
    return any(a.measured and b.measured and abs(a.measured.value - b.measured.value) > 1e-9 for a, b in pairs)


def _cell_text(number: Number, side: str) -> str:
    """Empty is what was never measured; what the paper does not print, and differences from that, are absent."""
    is_absent = side == "published" or (side == "difference" and number.published is None)
    return text(number, side) or (ABSENT if is_absent else "")


def _heading(task: str, numbers: Sequence[Number]) -> str:
    """Benchmark and how many of its documents were measured."""
    return name(BENCHMARKS, task) + ("" if task == AVERAGE else _count(numbers))


def _count(numbers: Sequence[Number]) -> str:
    counts = sorted({one.n for one in numbers if one.n is not None})
    return f" (n={counts[0]}{f'–{counts[-1]}' if len(counts) > 1 else ''})" if counts else ""
