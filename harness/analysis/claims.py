"""The paper's claims as checks over a tidy frame, and the board of verdicts on the published numbers.

    python -m harness.analysis.claims           # one line for each claim and model scale
    python -m harness.analysis.claims --gaps    # and every gap with its unpaired standard error

A claim is a function of the cells of one scale (``gaps`` says what a frame of cells holds), so that the same function
judges published and measured numbers. It returns a verdict and the numbers behind it in one line:

*supported*, *contradicted*, *undecided* (the numbers allow both), or *not measured* (a cell that it needs is missing).
The rule of each stands in its docstring. Sampling errors are at 95 % and unpaired; "average" is the plain mean over the
tasks that both cells have; where several gaps are looked at for the one that stands out, Holm's correction is applied.
Nothing is called better whose interval reaches zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from harness.analysis.gaps import (
    AR,
    MARS,
    MULTI_TOKEN,
    NO_SFT_LOSS,
    ONE_TOKEN,
    Comparison,
    Gap,
    Rows,
    Where,
    Z,
    all_gaps,
    by_task,
    compare,
    corrected,
    pick,
    rows_of,
    values_of,
)
from harness.analysis.published import COST, FORWARD, RATE, SCORE, read_published, with_errors
from harness.results.tables import AVERAGE

SUPPORTED, CONTRADICTED, UNDECIDED, NOT_MEASURED = "supported", "contradicted", "undecided", "not measured"

MARGIN = 1.0  # points of an average: a loss smaller than this counts as none
FRONTIER_MARGIN = 3.0  # points between two frontiers: closer ones are one
SPEED_MARGIN = 1.05  # a speed ratio counts beyond this: published ones are single runs whose spread is unknown
HEADLINE_BLOCK_SIZE = 4  # of Table 2
BLOCK_DIFFUSION: Where = {"method": "block_diffusion", "variant": None, "tau": 1.0, "block_size": HEADLINE_BLOCK_SIZE}
JACOBI = (1.02, 1.12)  # "about 1.07" tokens per forward
TWICE = (1.5, 2.5)  # "about 2×"


@dataclass(frozen=True)
class Finding:
    """A verdict and the numbers behind it, on one line."""

    verdict: str
    numbers: str


def _not_measured(what: str) -> Finding:
    return Finding(NOT_MEASURED, f"no {what}")


Check = Callable[[pd.DataFrame], Finding]
CLAIMS: dict[str, Check] = {}  # a claim's words on the board, and its check


def claim(words: str) -> Callable[[Callable[[Rows], Finding]], Check]:
    """Makes a function of rows one of a tidy frame, and a line of the board."""

    def register(check: Callable[[Rows], Finding]) -> Check:
        @wraps(check)
        def on_frame(cells: pd.DataFrame) -> Finding:
            return check(rows_of(cells))

        CLAIMS[words] = on_frame
        return on_frame

    return register


@claim("One-token MARS is not below AR SFT")
def one_token_not_below_ar(rows: Rows) -> Finding:
    """One-token MARS (tau = 1, B = 4) is not below AR SFT.

    Supported: the average's gap is above −``MARGIN`` with its whole interval, and no task is below for certain (Holm).
    Contradicted: the average's interval lies below 0, or a task is below for certain. Undecided otherwise.
    """
    found = compare(rows, {**MARS, **ONE_TOKEN, "block_size": HEADLINE_BLOCK_SIZE}, AR)
    if found is None:
        return _not_measured("scores of one-token MARS (B=4) beside AR SFT")
    average = found.average
    word = "better" if average.low > 0 else "below" if average.high < 0 else "better not shown"
    return Finding(_none_that_way(found, -1), f"{_interval(average)}: {word}; {_tasks(found)}")


@claim("Compute-matched AR SFT (10 epochs) gains nothing over 5")
def more_ar_epochs_gain_nothing(rows: Rows) -> Finding:
    """AR SFT for 10 epochs, the compute of MARS, gains nothing over 5.

    Supported: the average's gap is below +``MARGIN`` with its whole interval, and no task gains for certain (Holm).
    Contradicted: the average's interval lies above 0, or a task gains for certain. Undecided otherwise.
    """
    found = compare(rows, {**AR, "variant": "compute_matched"}, AR)
    if found is None:
        return _not_measured("scores of AR SFT trained for 10 epochs beside 5")
    return Finding(_none_that_way(found, 1), f"{_interval(found.average)}; {_tasks(found)}")


@claim("Block Diffusion degrades")
def block_diffusion_degrades(rows: Rows) -> Finding:
    """Block Diffusion (one token per forward: tau = 1, B = 4) is below AR SFT.

    Supported: the average's interval lies below 0. Contradicted: it does not, and lies above −``MARGIN``. Undecided
    otherwise.
    """
    found = compare(rows, BLOCK_DIFFUSION, AR)
    if found is None:
        return _not_measured("scores of Block Diffusion (tau=1, B=4) beside AR SFT")
    return Finding(_falls(found.average), f"{_interval(found.average)}; {_tasks(found)}")


@claim("Without the SFT loss quality decays with block size")
def decays_without_sft_loss(rows: Rows) -> Finding:
    """Without the SFT loss one-token MARS loses quality from the smallest to the largest block size.

    Supported: the average's interval lies below 0. Contradicted: it does not, and lies above −``MARGIN``. Undecided
    otherwise.
    """
    sizes = _block_sizes(rows, NO_SFT_LOSS)
    found = _from_first_to_last(rows, NO_SFT_LOSS, sizes)
    if found is None:
        return _not_measured("scores of one-token MARS without the SFT loss at two B")
    numbers = f"B={sizes[-1]:g} − B={sizes[0]:g}: {_interval(found.average)}; {_tasks(found)}"
    return Finding(_falls(found.average), numbers)


@claim("With the SFT loss it does not")
def stays_with_sft_loss(rows: Rows) -> Finding:
    """With the SFT loss one-token MARS loses nothing from the smallest to the largest block size.

    Supported: the average's gap is above −``MARGIN`` with its whole interval, and no task is below for certain (Holm).
    Contradicted: the average's interval lies below 0, or a task is below for certain. Undecided otherwise.
    """
    sizes = _block_sizes(rows, MARS)
    found = _from_first_to_last(rows, MARS, sizes)
    if found is None:
        return _not_measured("scores of one-token MARS at two B")
    numbers = f"B={sizes[-1]:g} − B={sizes[0]:g}: {_interval(found.average)}; {_tasks(found)}"
    return Finding(_none_that_way(found, -1), numbers)


@claim("Without the SFT loss it decays more than with it")
def sft_loss_slows_decay(rows: Rows) -> Finding:
    """From the smallest to the largest block size that both have, more is lost without the SFT loss than with it.

    The difference of two gaps, whose errors are those of four cells. Supported: its interval lies below 0.
    Contradicted: it lies above 0. Undecided otherwise.
    """
    sizes = sorted(set(_block_sizes(rows, NO_SFT_LOSS)) & set(_block_sizes(rows, MARS)))
    without, with_loss = (_from_first_to_last(rows, where, sizes) for where in (NO_SFT_LOSS, MARS))
    if without is None or with_loss is None or {g.task for g in without.tasks} != {g.task for g in with_loss.tasks}:
        return _not_measured("scores of one-token MARS with and without the SFT loss at two B")
    a, b = without.average, with_loss.average
    both = Gap(AVERAGE, a.gap, b.gap, float(np.hypot(a.se, b.se)), min(a.n, b.n))
    verdict = SUPPORTED if both.high < 0 else CONTRADICTED if both.low > 0 else UNDECIDED
    return Finding(verdict, f"lost {_signed(a.gap)} without and {_signed(b.gap)} with it: {_interval(both)}")


@claim("The tau frontier is smooth")
def tau_frontier_is_smooth(rows: Rows) -> Finding:
    """Lowering tau trades score for tokens per forward without reversals: on each task and block size of MARS.

    Looked at are curves of three tau values or more, step by step. Contradicted: a step raises the score for certain
    (Holm over all steps), or lowers the tokens per forward (intervals apart). Supported: neither, and from the highest
    to the lowest tau every curve loses score for certain (Holm over the curves) and gains tokens per forward. Undecided
    otherwise. That the steps of a curve are alike in size is not asked.
    """
    steps, whole, reversals, gains, fastest, num_curves = [], [], 0, True, 0.0, 0
    where = {**MARS, "confidence": "probability"}
    for block_size in values_of(rows, "block_size", where):
        taus = values_of(rows, "tau", {**where, "block_size": block_size})[::-1]
        scores, speeds = (
            [by_task(rows, {**where, "block_size": block_size, "tau": tau}, metric) for tau in taus]
            for metric in (SCORE, FORWARD)
        )
        for task in sorted({task for one in scores for task in one}):
            points = [(s[task], f[task]) for s, f in zip(scores, speeds, strict=True) if task in s and task in f]
            if len(points) < 3:
                continue
            num_curves += 1
            for (score, speed), (next_score, next_speed) in pairwise(points):
                steps.append(_gap(task, next_score, score))
                reversals += bool(next_speed["high"] < speed["low"])
            whole.append(_gap(task, points[-1][0], points[0][0]))
            gains &= bool(points[-1][1]["low"] > points[0][1]["high"])
            fastest = max(fastest, points[-1][1]["value"])
    if not num_curves:
        return _not_measured("three tau values of MARS on one task and block size")
    rises = [gap for gap in corrected(steps) if gap.gap > 0 and gap.exceeds_holm]
    falls = [gap for gap in corrected(whole) if gap.gap < 0 and gap.exceeds_holm]
    is_traded = gains and len(falls) == num_curves
    verdict = CONTRADICTED if rises or reversals else SUPPORTED if is_traded else UNDECIDED
    top, lost = max(steps, key=lambda gap: gap.z), [gap.gap for gap in whole]
    return Finding(
        verdict,
        f"{num_curves} curves: {_signed(min(lost))} to {_signed(max(lost))} for up to {fastest:.2f} tokens/forward; "
        f"steepest rise z={_signed(top.z)}",
    )


@claim("The three confidence metrics trace one frontier")
def metrics_share_one_frontier(rows: Rows) -> Finding:
    """Accepting by probability, margin or entropy (Figure 6) gives one frontier of score over tokens per forward.

    The other metrics' points are compared with the probability's curve at the same tokens per forward (straight lines
    between its points; only inside its range and beyond 1 token, at which a metric decides nothing).
    Contradicted: a point is off for certain (Holm over all points). Supported: none is, and the mean distance is within
    ±``FRONTIER_MARGIN`` with its whole interval (its error is the mean of the points', as they share their questions).
    Undecided otherwise.
    """
    off = []
    others = [name for name in values_of(rows, "confidence", MARS) if name != "probability"]
    for block_size in values_of(rows, "block_size", MARS):
        curve = _frontier(rows, "probability", block_size)
        for confidence in others:
            for task, points in _frontier(rows, confidence, block_size).items():
                off += [gap for point in points if (gap := _distance(task, point, curve.get(task, [])))]
    if not off:
        return _not_measured("tau sweeps of two confidence metrics that overlap in tokens per forward")
    certain = [gap for gap in corrected(off) if gap.exceeds_holm]
    mean = Gap("", float(np.mean([g.gap for g in off])), 0.0, float(np.mean([g.se for g in off])), off[0].n)
    is_close = max(-mean.low, mean.high) < FRONTIER_MARGIN
    verdict = CONTRADICTED if certain else SUPPORTED if is_close else UNDECIDED
    numbers = f"{len(off)} points of {' and '.join(others)}: {_interval(mean)} on average, {len(certain)} off for sure"
    return Finding(verdict, numbers)


@claim("Jacobi commits about 1.07 tokens per forward")
def jacobi_is_about_107(rows: Rows) -> Finding:
    """Jacobi decoding commits about 1.07 tokens per forward.

    The average over tasks that a table gives, else the mean of its tasks. Supported: its interval lies within
    ``JACOBI``. Contradicted: it lies outside. Undecided otherwise. (The published number is the claim itself.) Jacobi
    decoding gives greedy AR's answers, so its scores should be AR's.
    """
    where = {"method": "jacobi", "variant": None}
    averages = pick(rows, FORWARD, {**where, "task": AVERAGE})
    parts = averages or list(by_task(rows, where, FORWARD).values())
    if not parts:
        return _not_measured("tokens per forward of Jacobi decoding")
    value, low, high = (float(np.mean([part[name] for part in parts])) for name in ("value", "low", "high"))
    found = compare(rows, where, AR)
    numbers = f"{value:.2f} tokens/forward"
    if found:
        numbers += f"; score against AR: {_tasks(found)}"
    return Finding(_within((value, low, high), JACOBI), numbers)


@claim("The block cache is faster than none")
def block_cache_beats_none(rows: Rows) -> Finding:
    """MARS (tau = 0.95) with the block cache is faster than without a cache: ``_faster_at_all_batches``."""
    return _faster_at_all_batches(rows, {**MARS, **MULTI_TOKEN, "cache": "none"}, "MARS without a cache")


@claim("With the block cache MARS is faster than AR")
def block_cache_beats_ar(rows: Rows) -> Finding:
    """MARS (tau = 0.95) with the block cache is faster than AR SFT with its cache: ``_faster_at_all_batches``."""
    return _faster_at_all_batches(rows, {**AR, "cache": "cursor"}, "AR SFT")


def _faster_at_all_batches(rows: Rows, other: Where, name: str) -> Finding:
    """In tokens per second, at every batch size that both have, on the task where least is gained.

    Supported: one size of cache block is faster by ``SPEED_MARGIN`` at all of them (intervals apart). Contradicted: at
    one batch size every cache block is slower. Undecided otherwise.
    """
    mine = {**MARS, **MULTI_TOKEN, "cache": "block"}
    blocks = values_of(rows, "cache_block", mine, RATE)
    ratios: dict[float, dict[float, tuple[float, float, float]]] = {}  # by cache block and batch size
    batches = set(values_of(rows, "batch_size", mine, RATE)) & set(values_of(rows, "batch_size", other, RATE))
    for block in blocks:
        for batch in sorted(batches):
            sides = {**mine, "cache_block": block, "batch_size": batch}, {**other, "batch_size": batch}
            if by_tasks := _ratios(rows, RATE, *sides):
                ratios.setdefault(block, {})[batch] = min(by_tasks, key=lambda ratio: ratio[1])
    complete = {block: by_batch for block, by_batch in ratios.items() if set(by_batch) == batches}
    if not batches or not complete:
        return _not_measured(f"tokens per second of MARS with the block cache and of {name}")
    best = max(complete, key=lambda block: min(low for _, low, _ in complete[block].values()))
    if all(low > SPEED_MARGIN for _, low, _ in complete[best].values()):
        verdict = SUPPORTED
    else:
        is_slower = any(all(by_batch[b][2] < 1 for by_batch in ratios.values() if b in by_batch) for b in batches)
        verdict = CONTRADICTED if is_slower else UNDECIDED
    shown = ", ".join(f"{value:.2f}" for value, _, _ in complete[best].values())
    slow = sum(high < 1 for by_batch in ratios.values() for _, _, high in by_batch.values())
    return Finding(
        verdict,
        f"blocks of {best:g}: {shown}× at batch {', '.join(f'{b:g}' for b in sorted(batches))}; "
        f"slower in {slow} of {sum(map(len, ratios.values()))} settings",
    )


@claim("Speculative gains add up")
def speculative_gains_add_up(rows: Rows) -> Finding:
    """A MARS target speeds speculative decoding up, and a MARS draft does so on top (Table 6).

    In tokens per second, on every task. Supported: both steps are faster by ``SPEED_MARGIN`` (intervals apart).
    Contradicted: a step is slower. Undecided otherwise.
    """
    chain = [{"method": "speculative", "target": target, "draft": draft}
             for target, draft in (("ar_sft", "ar_sft"), ("mars", "ar_sft"), ("mars", "mars"))]  # fmt: skip
    steps = [_ratios(rows, RATE, after, before) for before, after in pairwise(chain)]
    if not all(steps):
        return _not_measured("tokens per second of speculative decoding with AR and with MARS")
    ratios = [ratio for step in steps for ratio in step]
    if any(high < 1 for _, _, high in ratios):
        verdict = CONTRADICTED
    else:
        verdict = SUPPORTED if all(low > SPEED_MARGIN for _, low, _ in ratios) else UNDECIDED
    first, second = (", ".join(f"{value:.2f}" for value, _, _ in step) for step in steps)
    numbers = f"tokens/s ×{first} by MARS target, ×{second} more by MARS draft"
    if forwards := _ratios(rows, FORWARD, chain[2], chain[1]):
        numbers += f" (tokens/forward ×{forwards[0][0]:.2f})"
    return Finding(verdict, numbers)


@claim("Training costs about twice AR SFT's")
def training_costs_twice(rows: Rows) -> Finding:
    """Training MARS costs about twice what AR SFT costs.

    Supported: the ratio's interval lies within ``TWICE``. Contradicted: it lies outside. Undecided otherwise.
    """
    ratios = _ratios(rows, COST, MARS, AR)
    if not ratios:
        return _not_measured("training cost of MARS beside AR SFT")
    value, low, high = ratios[0]
    return Finding(_within(ratios[0], TWICE), f"{value:.2f}× [{low:.2f}, {high:.2f}]")


def judge(cells: pd.DataFrame) -> pd.DataFrame:
    """Every claim at every scale of the frame: ``claim``, ``scale``, ``verdict``, ``numbers``."""
    scales = sorted(cells["scale"].dropna().unique())
    rows = []
    for words, check in CLAIMS.items():
        for scale in scales:
            finding = check(cells[cells["scale"] == scale])
            rows.append({"claim": words, "scale": scale, "verdict": finding.verdict, "numbers": finding.numbers})
    return pd.DataFrame(rows, columns=["claim", "scale", "verdict", "numbers"])


def _none_that_way(found: Comparison, sign: int) -> str:
    """Whether there is no gain (sign 1) or no loss (−1) worth the name, on average and on any task."""
    near, far = sorted((sign * found.average.low, sign * found.average.high))
    if near > 0 or _certain(found, sign):
        return CONTRADICTED
    return SUPPORTED if far < MARGIN else UNDECIDED


def _falls(average: Gap) -> str:
    """Whether an average is lost, whatever its tasks do."""
    return SUPPORTED if average.high < 0 else CONTRADICTED if average.low > -MARGIN else UNDECIDED


def _within(ratio: tuple[float, float, float], bounds: tuple[float, float]) -> str:
    """Whether an interval lies inside bounds, outside of them, or across one."""
    _, low, high = ratio
    if bounds[0] <= low and high <= bounds[1]:
        return SUPPORTED
    return CONTRADICTED if high < bounds[0] or low > bounds[1] else UNDECIDED


def _certain(found: Comparison, sign: int) -> list[Gap]:
    return [gap for gap in found.certain if gap.gap * sign > 0]


def _block_sizes(rows: Rows, where: Where) -> list[float]:
    return [float(b) for b in values_of(rows, "block_size", {**where, **ONE_TOKEN})]


def _from_first_to_last(rows: Rows, where: Where, sizes: Sequence[float]) -> Comparison | None:
    """One-token mode at the largest block size against the smallest."""
    if len(sizes) < 2:
        return None
    last, first = ({**where, **ONE_TOKEN, "block_size": size} for size in (sizes[-1], sizes[0]))
    return compare(rows, last, first)


def _gap(task: str, first: Any, second: Any) -> Gap:
    se = float(np.hypot(first["se"], second["se"]))
    return Gap(task, first["value"], second["value"], se, min(first["n"], second["n"]))


Point = tuple[float, Any]


def _frontier(rows: Rows, confidence: str, block_size: float) -> dict[str, list[Point]]:
    """By task, (tokens per forward, score row) of each tau, in ascending order of the former."""
    where = {**MARS, "confidence": confidence, "block_size": block_size}
    curves: dict[str, list[Point]] = {}
    for tau in values_of(rows, "tau", where):
        scores, speeds = (by_task(rows, {**where, "tau": tau}, metric) for metric in (SCORE, FORWARD))
        for task in scores.keys() & speeds.keys():
            curves.setdefault(task, []).append((float(speeds[task]["value"]), scores[task]))
    return {task: sorted(points, key=lambda point: point[0]) for task, points in curves.items()}


def _distance(task: str, point: Point, curve: Sequence[Point]) -> Gap | None:
    """A point's score minus the curve's at the same tokens per forward; None outside its range."""
    speed, score = point
    for (left, before), (right, after) in pairwise(curve):
        if speed > 1 and left <= speed <= right and left < right:
            w = (speed - left) / (right - left)
            value = (1 - w) * before["value"] + w * after["value"]
            se = float(np.hypot(score["se"], np.hypot((1 - w) * before["se"], w * after["se"])))
            return Gap(task, score["value"], value, se, score["n"])
    return None


def _ratios(rows: Rows, metric: str, first: Where, second: Where) -> list[tuple[float, float, float]]:
    """First over second with the span that their intervals allow, for each task that both have."""
    a, b = by_task(rows, first, metric), by_task(rows, second, metric)
    return [
        (x["value"] / y["value"], x["low"] / y["high"], x["high"] / y["low"])
        for x, y in ((a[task], b[task]) for task in a if task in b)
    ]


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _interval(gap: Gap) -> str:
    return f"{_signed(gap.gap)} [{_signed(gap.low)}, {_signed(gap.high)}]"


def _tasks(found: Comparison) -> str:
    """How many tasks are up and down, and how many of them for sure."""
    up, down = (sum(gap.gap * sign > 0 for gap in found.tasks) for sign in (1, -1))
    sure = ", ".join(f"{len(_certain(found, sign))} {word}" for sign, word in ((1, "up"), (-1, "down"))
                     if _certain(found, sign))  # fmt: skip
    return f"{up} of {len(found.tasks)} up, {down} down; {f'sure: {sure}' if sure else 'none sure'}"


STYLES = {SUPPORTED: "green", CONTRADICTED: "red", UNDECIDED: "yellow", NOT_MEASURED: "dim"}
CAPTION = (
    'Averages over tasks with unpaired 95 % intervals, in points; "sure" after Holm\'s correction.\n'
    f"A loss under {MARGIN:g} point counts as none, a speed-up under {100 * SPEED_MARGIN - 100:.0f} % neither: "
    "speeds are single runs.\n"
    "Paired tests on the same questions could be sharper; the paper does not give the data for them."
)


def to_rich(board: pd.DataFrame, title: str) -> Group:
    """The board for the terminal, within 100 columns: a claim's words, below them a line for each scale."""
    parts: list[Any] = [Text(title, "bold")]
    for words, rows in board.groupby("claim", sort=False):
        parts += [Text(), Text(str(words))]
        table = Table.grid(padding=(0, 1))
        for width in (6, 12, None):
            table.add_column(width=width)
        for row in rows.itertuples():
            table.add_row(f"  {row.scale}", Text(str(row.verdict), STYLES[str(row.verdict)]), Text(str(row.numbers)))
        parts.append(table)
    return Group(*parts, Text(), Text(CAPTION, "dim"))


def gaps_to_rich(gaps: pd.DataFrame) -> Group:
    """Every gap with its standard error: a star where it exceeds 1.96 of them, two where it does after Holm."""
    parts: list[Any] = []
    for (comparison, scale), rows in gaps.groupby(["comparison", "scale"], sort=False):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False)
        for name in ("B", "task", "n", "first", "second", "gap", "± error", "z", "p (Holm)", ""):
            table.add_column(name, justify="left" if name in ("task", "") else "right")
        for row in rows.itertuples():
            star = "**" if row.exceeds_holm else "*" if row.exceeds else ""
            numbers = f"{row.first:.1f}", f"{row.second:.1f}", _signed(row.gap), f"{Z * row.se:.1f}", f"{row.z:.1f}"
            size = "" if pd.isna(row.block_size) else f"{row.block_size:g}"
            table.add_row(size, row.task, f"{row.n:,.0f}", *numbers, f"{row.p_holm:.3f}", star)
        parts += [Text(f"{comparison}, {scale}", "bold"), Text(), table, Text()]
    caption = "* beyond its unpaired 95 % error alone, ** also after Holm's correction over its table (averages apart)"
    return Group(*parts, Text(caption, "dim"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the board of the published numbers."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.analysis.claims", description="What the paper's numbers say"
    )
    parser.add_argument("--gaps", action="store_true", help="also print every gap with its sampling error")
    options = parser.parse_args(arguments)
    cells = with_errors(read_published())
    console = Console(highlight=False)
    console.print(to_rich(judge(cells), "The paper's published numbers (results/paper), by model scale"))
    if options.gaps:
        console.print()
        console.print(gaps_to_rich(all_gaps(cells)))


if __name__ == "__main__":
    main()
