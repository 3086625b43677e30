"""Tables 2, 3, 4, 5, 6, 8 and 9 of the paper, measured beside published, and an overview of every measured cell.

    [table2, *_] = make_tables(open_data())
    print(to_markdown(table2))

The paper's two models have a block with its printed numbers, whether they were measured or not; every other model that
was measured has one of its own. Table 5 is in ``clocktables``, 6 in ``drafttable``, the overview in ``celltable``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.analysis.celltable import cell_table
from harness.analysis.clocktables import wall_clock
from harness.analysis.data import Data
from harness.analysis.drafttable import speculative
from harness.analysis.grids import ABSENT, Grid, Table
from harness.analysis.measured import POSITIONS, TASK_MEAN
from harness.analysis.names import BENCHMARKS, MODELS, name
from harness.analysis.papercells import EVERY_TOKEN, Published, Setting, Source
from harness.analysis.papergrids import AR, Entries, Plan, long_grid, wide_grid
from harness.analysis.papernumbers import (
    DELTA_AR,
    MEANING,
    STARS,
    Number,
    Value,
    by_block,
    correct,
    frame,
    minus,
    p_of,
    points,
    value_of,
)
from harness.analysis.published import DELTA, FORWARD, SCORE, Row
from harness.results.stats import Comparison, Interval, mean_interval
from harness.results.tables import AVERAGE

TAU, BLOCK_SIZES, HEADLINE = 0.95, (4.0, 8.0, 16.0), 4.0
VERIFIED, JACOBI = Setting("mars verified"), Setting("jacobi", other=EVERY_TOKEN)
MEDUSA, EAGLE, DIFFUSION = Setting("medusa"), Setting("eagle"), Setting("block_diffusion")
SPECULATIVE = Setting("speculative", target="ar_sft", draft="ar_sft")
OTHER_METHODS = (VERIFIED, Setting("jacobi"), MEDUSA, EAGLE, SPECULATIVE)
SPEED = (TASK_MEAN, FORWARD, POSITIONS)


def _one_token(variants: Sequence[str | None], sizes: Sequence[float]) -> tuple[Setting, ...]:
    return tuple(Setting("mars", variant, b, 1.0) for variant in variants for b in sizes)


def _is_multi(setting: Setting) -> bool:
    """At τ = 0.95 of the top probability where there is a τ, and never one token per forward."""
    is_one = setting.method == "ar_sft" or setting.is_one_token
    return not is_one and setting.tau in (None, TAU) and setting.confidence is None


SCORES = (
    "Scores in percent. published: the paper's number, its interval that of as many right answers among the test set's "
    "size. measured: here, greedy. difference: measured minus published; the paper's documents are not published, so "
    "it is unpaired and its interval counts the sampling error of both. Δ AR SFT: points on the same documents, paired "
    "with AR SFT of the same model, documents, seed and dtype. Holm's families: the differences of a block on single "
    "benchmarks (averages apart), and the rows' Δ of a block by benchmark. average: plain mean of the block's "
    "benchmarks, where all of them were measured, each taken as given. n: documents measured. "
) + STARS  # fmt: skip
SPEEDS = (
    " tokens/forward: of the target, a ratio of sums over documents; task mean: the mean of the tasks' own ratios, "
    "which is what the paper prints. positions/token: window positions fed for a committed token, the "
    "price of wide windows. Speeds are of one run and have no interval."
)
PLANS = (
    Plan(
        2, "Table 2: quality in one-token mode",
        "One token per forward (τ = 1 for MARS). Methods that the paper lacks and that commit several tokens without "
        "changing greedy one-token answers of their weights stand below where they were measured. " + SCORES,
        (AR._replace(variant="base"), AR, AR._replace(variant="compute_matched"),
         DIFFUSION._replace(block_size=4.0, tau=1.0),
         *_one_token(("no_sft_loss", None), (HEADLINE,))),
        OTHER_METHODS,
        lambda one: one.method == "ar_sft" or one.is_lossless
        or (one.is_one_token and (one.method != "mars" or one.block_size == HEADLINE)),
    ),
    Plan(
        3, "Table 3: block size and SFT loss in one-token mode", "One token per forward. " + SCORES,
        (AR, *_one_token(("no_sft_loss", None), BLOCK_SIZES)), (),
        lambda one: one == AR or (one.method == "mars" and one.is_one_token),
    ),
    Plan(
        4, "Table 4: several tokens per forward, τ = 0.95",
        "MARS accepts at τ = 0.95 of the top probability, and so do other methods that have a τ. Δ τ=1: points against "
        "the same weights at one token per forward; the paper's is a difference of printed scores, the measured one "
        "paired. " + SCORES + SPEEDS,
        tuple(Setting("mars", None, b, TAU) for b in BLOCK_SIZES), (DIFFUSION, *OTHER_METHODS), _is_multi,
        (SCORE, DELTA, DELTA_AR, *SPEED), (SCORE, FORWARD),
    ),
    Plan(
        8, "Table 8: sweep of τ",
        "MARS and Block Diffusion by τ of the top probability; AR SFT has none and stands under τ = 1, one token per "
        f"forward. Entropy and margin have other scales ({ABSENT}) and are in the overview. " + SCORES + SPEEDS,
        (AR,), (), lambda one: one == AR or (one.method in ("mars", "block_diffusion") and one.confidence is None),
        (SCORE, DELTA_AR, *SPEED), (SCORE,), ("0.5b", "7b"), ("gsm8k_cot", "humaneval_instruct"), True,
    ),
    Plan(
        9, "Table 9: Jacobi decoding and other methods",
        f"Jacobi with “{EVERY_TOKEN}” guesses the whole rest of the answer, which is the paper's variant; n is a "
        "window of so many tokens. Its answers are greedy AR's by construction. " + SCORES + SPEEDS,
        (AR, JACOBI, Setting("mars", None, HEADLINE, TAU)), (DIFFUSION, *OTHER_METHODS),
        lambda one: one == AR or (_is_multi(one) and (one.method != "mars" or one.block_size == HEADLINE)),
        (SCORE, DELTA_AR, *SPEED), (SCORE, FORWARD), ("0.5b",),
    ),
)  # fmt: skip


def make_tables(data: Data) -> list[Table]:
    """Tables 2, 3, 4, 5, 6, 8 and 9, then ``methods``: every measured cell.

    Without any cell they hold what is published, and ``methods`` has no grid.
    """
    source = Source(data)
    made = {plan.number: _table(source, plan) for plan in PLANS} | {5: wall_clock(source), 6: speculative(source)}
    return [*(made[number] for number in sorted(made)), cell_table(source)]


def _table(source: Source, plan: Plan) -> Table:
    grids, numbers = [], []
    for scale in source.scales:
        for grid, found in _blocks(source, plan, scale):
            grids.append(grid)
            numbers += found
    named = f"table{plan.number}"
    return Table(named, plan.title, f"{plan.caption} {MEANING}", tuple(grids), frame(named, numbers))


def _blocks(source: Source, plan: Plan, scale: str) -> Iterator[tuple[Grid, list[Number]]]:
    """A scale's block beside the paper, and that of benchmarks which its table lacks."""
    measured = [one for one in source.settings(scale) if plan.takes(one)]
    tasks = source.tasks(scale, measured)
    paper = list(plan.tasks) if scale in MODELS else []
    if paper and (scale in plan.scales or set(tasks) & set(paper)):
        yield from _block(source, plan, scale, paper, source.published(plan.number, scale))
    if others := [task for task in tasks if task not in paper]:
        yield from _block(source, plan, scale, others, {})


def _block(
    source: Source, plan: Plan, scale: str, tasks: Sequence[str], published: Published
) -> Iterator[tuple[Grid, list[Number]]]:
    measured = [one for one in source.settings(scale) if plan.takes(one)
                and any(source.pick(scale, one, task) for task in tasks)]  # fmt: skip
    settings = _rows(plan, measured, published)
    columns = [*tasks, AVERAGE] if len(tasks) > 1 and not plan.is_wide else list(tasks)
    entries: Entries = {}
    for setting in settings:
        entries |= _entries(source, plan, scale, setting, columns, published.get(setting, {}))
    correct(entries.values(), by_block)
    title = name(MODELS, scale)
    if plan.is_wide:
        for task in columns:
            found = [one for one in entries.values() if one.task == task]
            yield wide_grid(plan, f"{title}, {name(BENCHMARKS, task)}", settings, task, entries), found
    else:
        yield long_grid(plan, title, settings, columns, entries), list(entries.values())


def _rows(plan: Plan, measured: Sequence[Setting], published: Iterable[Setting]) -> list[Setting]:
    """Rows of a block in order: printed, expected and measured ones, and of each other method at least an empty one."""
    rows = {*published, *plan.expected, *measured}
    for family in plan.families:
        if not any((one.method, one.target, one.draft) == (family.method, family.target, family.draft) for one in rows):
            rows.add(family)
    return sorted(rows, key=lambda one: one.order)


def _entries(
    source: Source,
    plan: Plan,
    scale: str,
    setting: Setting,
    columns: Sequence[str],
    published: Mapping[tuple[str, str], Row],
) -> Entries:  # fmt: skip
    """Every number of a row."""
    found: Entries = {}
    wanted = [metric for metric in plan.metrics if metric != DELTA_AR or setting != AR]
    for task in columns:
        for metric in wanted:
            # The paper's tokens per forward is its mean of the tasks' ratios.
            printed = None if metric == FORWARD else published.get((task, FORWARD if metric == TASK_MEAN else metric))
            found[setting, task, metric] = Number(scale, setting, task, metric, value_of(printed))
    for task in columns:
        for metric in wanted:
            number = found[setting, task, metric]
            if task == AVERAGE:
                parts = [found[setting, one, metric] for one in columns if one != AVERAGE]
                _average(number, parts)
            else:
                _measure(source, number)
            if metric in (SCORE, TASK_MEAN):
                number.difference = minus(number.measured, number.published)
            if metric == SCORE and number.difference is not None:
                number.p = p_of(number.difference)
    return found


def _measure(source: Source, number: Number) -> None:
    """The number of one benchmark."""
    cell = source.pick(number.scale, number.setting, number.task)
    if cell is None:
        return
    if number.metric in (DELTA, DELTA_AR):
        reference = source.reference(cell.key)
        if number.metric == DELTA:
            is_mars = number.setting.method == "mars"
            other = source.like(cell, number.setting._replace(tau=1.0), number.task) if is_mars else None
            reference = None if other is None else other.key
        if reference is None or reference == cell.key:
            return
        comparison = source.data.pairs.difference(cell.key, reference, number.task)
        if comparison is not None:
            _compared(number, comparison, reference)
            number.cell = cell
        return
    number.measured = value_of(cell.values.get((number.task, number.metric)))
    number.n, number.cell = cell.benchmarks[number.task]["n"], cell


def _compared(number: Number, comparison: Comparison, reference: str) -> None:
    number.measured, number.p = points(comparison), comparison.p_value
    number.n, number.reference = comparison.difference.n, reference


def _average(number: Number, parts: Sequence[Number]) -> None:
    """Of the block's benchmarks, if all were measured: a plain mean, or the ratio of sums over all documents."""
    values = [one.measured for one in parts if one.measured is not None]
    if len(values) < len(parts):
        return
    number.n = sum(one.n or 0 for one in parts)
    cells = {one.cell.key: one.cell for one in parts if one.cell is not None}
    number.cell = next(iter(cells.values())) if len(cells) == 1 else None
    if number.metric in (FORWARD, POSITIONS):
        rows = [one.cell.benchmarks[one.task] for one in parts if one.cell is not None]
        new, forwards, positions = (
            sum(row[column] for row in rows) for column in ("new_tokens", "target_forwards", "positions")
        )
        ratio = new / forwards if number.metric == FORWARD else positions / new
        number.measured = Value(ratio, ratio, ratio)
        return
    whole = mean_interval([Interval(one.value, one.low, one.high, 0, "") for one in values])
    number.measured = Value(whole.value, whole.low, whole.high)
