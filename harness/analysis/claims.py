"""The paper's claims as checks over a tidy frame, and the boards of verdicts on the published and measured numbers.

    python -m harness.analysis.claims [FOLDERS…]   # published, then each measured model: a line for each claim
    python -m harness.analysis.claims --gaps       # and every gap with its standard error

A claim is a function of the cells of one scale (``gaps`` says what a frame of cells holds), so that the same function
judges published and measured numbers. It returns a verdict and the numbers behind it in one line:

*supported*, *contradicted*, *undecided* (the numbers allow both), or *not measured* (a cell that it needs is missing).
The rule of each stands in its docstring. Sampling errors are at 95 %, of published numbers unpaired, of measured ones
paired on the same documents; "average" is the plain mean over the tasks that both cells have; where several gaps are
looked at for the one that stands out, Holm's correction is applied. Nothing is called better whose interval reaches
zero. Each claim is judged for itself: over the board, one in twenty may be decided by chance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from harness.analysis.cells import model_size
from harness.analysis.gaps import (
    AR,
    MARS,
    MULTI_TOKEN,
    NO_SFT_LOSS,
    ONE_TOKEN,
    Comparison,
    Gap,
    Row,
    Rows,
    Where,
    Z,
    all_gaps,
    by_task,
    compare,
    corrected,
    gaps_between,
    pick,
    rows_of,
    values_of,
)
from harness.analysis.measured import MACHINE, TASK_MEAN
from harness.analysis.published import COST, FORWARD, RATE, SCORE
from harness.errors import UserError
from harness.results.tables import AVERAGE

if TYPE_CHECKING:
    from harness.analysis.data import Data
    from harness.analysis.pairs import Pairs

SUPPORTED, CONTRADICTED, UNDECIDED, NOT_MEASURED = "supported", "contradicted", "undecided", "not measured"

MARGIN = 1.0  # points of an average: a loss smaller than this counts as none
FRONTIER_POINTS = 3  # that two frontiers have to share: fewer are not a frontier
FRONTIER_MARGIN = 3.0  # points between two frontiers: closer ones are one
SPEED_MARGIN = 1.05  # a speed ratio counts beyond this: published ones are single runs whose spread is unknown
HEADLINE_BLOCK_SIZE = 4  # of Table 2
BLOCK_DIFFUSION: Where = {"method": "block_diffusion", "variant": None, "tau": 1.0, "block_size": HEADLINE_BLOCK_SIZE}
JACOBI = (1.02, 1.12)  # "about 1.07" tokens per forward
TWICE = (1.5, 2.5)  # "about 2×"
# What commits greedy AR's answers, and the cell whose answers these are.
LOSSLESS: dict[str, tuple[Where, Where]] = {
    "jacobi": ({"method": "jacobi", "variant": None}, AR),
    "medusa": ({"method": "medusa", "variant": None, "is_usual": True}, AR),
    "eagle": ({"method": "eagle", "variant": None}, AR),
    "speculative": ({"method": "speculative", "target": "ar_sft", "draft": "ar_sft"}, AR),
    "verified MARS": ({"method": "mars verified", "variant": None}, {**MARS, **ONE_TOKEN}),
}
NEARLY = 0.99  # of the answers: in 16 bits a wider window may part from AR at a near-tie
PUBLISHED, MEASURED = "published", "measured"
COLUMNS = ("source", "family", "scale", "claim", "verdict", "numbers", "how")


@dataclass(frozen=True)
class Finding:
    """A verdict and the numbers behind it, on one line."""

    verdict: str
    numbers: str


def _not_measured(what: str) -> Finding:
    return Finding(NOT_MEASURED, f"no {what}")


Check = Callable[..., Finding]  # of a frame of cells, and of ``Pairs`` where they are measured
CLAIMS: dict[str, Check] = {}  # a claim's words on the board, and its check
HOW: dict[str, str] = {}  # and how it is tested, after "paired" or "unpaired"
OF_TASKS = "Holm over tasks"
OF_SPEEDS = "single runs, no interval"


def claim(words: str, how: str) -> Callable[[Callable[[Rows], Finding]], Check]:
    """Makes a function of rows one of a tidy frame, and a line of the board."""

    def register(check: Callable[[Rows], Finding]) -> Check:
        @wraps(check)
        def on_frame(cells: pd.DataFrame, pairs: Pairs | None = None) -> Finding:
            return check(rows_of(cells, pairs))

        CLAIMS[words], HOW[words] = on_frame, how
        return on_frame

    return register


@claim("One-token MARS is not below AR SFT", OF_TASKS)
def one_token_not_below_ar(rows: Rows) -> Finding:
    """One-token MARS (tau = 1, B = 4) is not below AR SFT.

    Supported: the average's gap is above −``MARGIN`` with its whole interval, and no task is below for certain (Holm).
    Contradicted: the average's interval lies below 0, or a task is below for certain. Undecided otherwise.
    """
    found = compare(rows, {**MARS, **ONE_TOKEN, "block_size": HEADLINE_BLOCK_SIZE}, AR)
    if found is None:
        return _not_measured("scores of one-token MARS (B=4) beside AR SFT")
    average = found.average
    is_better = average.low > 0 and average.exceeds
    word = "better" if is_better else "below" if average.high < 0 else "better not shown"
    return Finding(_none_that_way(found, -1), f"{_interval(average)}: {word}; {_tasks(found)}")


@claim("Compute-matched AR SFT (10 epochs) gains nothing over 5", OF_TASKS)
def more_ar_epochs_gain_nothing(rows: Rows) -> Finding:
    """AR SFT for 10 epochs, the compute of MARS, gains nothing over 5.

    Supported: the average's gap is below +``MARGIN`` with its whole interval, and no task gains for certain (Holm).
    Contradicted: the average's interval lies above 0, or a task gains for certain. Undecided otherwise.
    """
    found = compare(rows, {**AR, "variant": "compute_matched"}, AR)
    if found is None:
        return _not_measured("scores of AR SFT trained for 10 epochs beside 5")
    return Finding(_none_that_way(found, 1), f"{_interval(found.average)}; {_tasks(found)}")


@claim("Block Diffusion degrades", OF_TASKS)
def block_diffusion_degrades(rows: Rows) -> Finding:
    """Block Diffusion (one token per forward: tau = 1, B = 4) is below AR SFT.

    Supported: the average's interval lies below 0. Contradicted: it does not, and lies above −``MARGIN``. Undecided
    otherwise.
    """
    found = compare(rows, BLOCK_DIFFUSION, AR)
    if found is None:
        return _not_measured("scores of Block Diffusion (tau=1, B=4) beside AR SFT")
    return Finding(_falls(found.average), f"{_interval(found.average)}; {_tasks(found)}")


@claim("Without the SFT loss quality decays with block size", OF_TASKS)
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


@claim("With the SFT loss it does not", OF_TASKS)
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


@claim("Without the SFT loss it decays more than with it", "one test, errors added as if independent")
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


@claim("The tau frontier is smooth", "Holm over steps, and over curves")
def tau_frontier_is_smooth(rows: Rows) -> Finding:
    """Lowering tau trades score for tokens per forward without reversals: on each task and block size of MARS.

    Looked at are curves of three tau values or more, step by step. Contradicted: a step raises the score for certain
    (Holm over all steps), or lowers the tokens per forward (intervals apart). Supported: neither, and from the highest
    to the lowest tau every curve loses score for certain (Holm over the curves) and gains tokens per forward. Undecided
    otherwise. That the steps of a curve are alike in size is not asked.
    """
    steps: list[Gap] = []
    whole: list[Gap] = []
    reversals, gains, fastest, num_curves = 0, True, 0.0, 0
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
                steps += gaps_between(rows, task, next_score, score)
                reversals += bool(next_speed["high"] < speed["low"])
            whole += gaps_between(rows, task, points[-1][0], points[0][0])
            gains &= bool(points[-1][1]["low"] > points[0][1]["high"])
            fastest = max(fastest, points[-1][1]["value"])
    if not steps or len(whole) < num_curves:
        return _not_measured("three tau values of MARS on one task and block size")
    rises = [gap for gap in corrected(steps) if gap.gap > 0 and gap.exceeds_holm]
    falls = [gap for gap in corrected(whole) if gap.gap < 0 and gap.exceeds_holm]
    is_traded = gains and len(falls) == num_curves
    verdict = CONTRADICTED if rises or reversals else SUPPORTED if is_traded else UNDECIDED
    top, lost = max(steps, key=lambda gap: gap.z), [gap.gap for gap in whole]
    return Finding(
        verdict,
        f"{num_curves} curve{'s' * (num_curves > 1)}: {_span(lost)} for up to {fastest:.2f} tokens/forward; "
        f"steepest rise z={_signed(top.z)}",
    )


@claim("The three confidence metrics trace one frontier", "Holm over points; unpaired between curves")
def metrics_share_one_frontier(rows: Rows) -> Finding:
    """Accepting by probability, margin or entropy (Figure 6) gives one frontier of score over tokens per forward.

    The other metrics' points are compared with the probability's curve at the same tokens per forward (straight lines
    between its points; only inside its range and beyond 1 token, at which a metric decides nothing).
    Contradicted: a point is off for certain (Holm over all points). Supported: none is, and the mean distance is within
    ±``FRONTIER_MARGIN`` with its whole interval (its error is the mean of the points', as they share their questions).
    Undecided otherwise. Fewer than ``FRONTIER_POINTS`` points are not measured.
    """
    off = []
    others = [name for name in values_of(rows, "confidence", MARS) if name != "probability"]
    for block_size in values_of(rows, "block_size", MARS):
        curve = _frontier(rows, "probability", block_size)
        for confidence in others:
            for task, points in _frontier(rows, confidence, block_size).items():
                off += [gap for point in points if (gap := _distance(task, point, curve.get(task, [])))]
    if len(off) < FRONTIER_POINTS:
        return _not_measured("tau sweeps of two confidence metrics that overlap in tokens per forward")
    certain = [gap for gap in corrected(off) if gap.exceeds_holm]
    mean = Gap("", float(np.mean([g.gap for g in off])), 0.0, float(np.mean([g.se for g in off])), off[0].n)
    is_close = max(-mean.low, mean.high) < FRONTIER_MARGIN
    verdict = CONTRADICTED if certain else SUPPORTED if is_close else UNDECIDED
    numbers = f"{len(off)} points of {' and '.join(others)}: {_interval(mean)} on average, {len(certain)} off for sure"
    return Finding(verdict, numbers)


@claim("Jacobi commits about 1.07 tokens per forward", OF_SPEEDS)
def jacobi_is_about_107(rows: Rows) -> Finding:
    """Jacobi decoding commits about 1.07 tokens per forward.

    The average over tasks that a table gives, else the mean of its tasks. Supported: its interval lies within
    ``JACOBI``. Contradicted: it lies outside. Undecided otherwise. (The published number is the claim itself.) Jacobi
    decoding gives greedy AR's answers, so its scores should be AR's.
    """
    where = {"method": "jacobi", "variant": None}
    averages = pick(rows, FORWARD if rows.pairs is None else TASK_MEAN, {**where, "task": AVERAGE})
    parts = averages[:1] or list(by_task(rows, where, FORWARD).values())
    if not parts:
        return _not_measured("tokens per forward of Jacobi decoding")
    value, low, high = (float(np.mean([part[name] for part in parts])) for name in ("value", "low", "high"))
    found = compare(rows, where, AR)
    numbers = f"{value:.2f} tokens/forward"
    if found:
        numbers += f"; score against AR: {_interval(found.average) + ', ' if found.is_one else ''}{_tasks(found)}"
    return Finding(_within((value, low, high), JACOBI), numbers)


@claim("The block cache is faster than none", OF_SPEEDS)
def block_cache_beats_none(rows: Rows) -> Finding:
    """MARS (tau = 0.95) with the block cache is faster than without a cache: ``_faster_at_all_batches``."""
    return _faster_at_all_batches(rows, {**MARS, **MULTI_TOKEN, "cache": "none"}, "MARS without a cache")


@claim("With the block cache MARS is faster than AR", OF_SPEEDS)
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


@claim("Speculative gains add up", OF_SPEEDS)
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


@claim("Training costs about twice AR SFT's", OF_SPEEDS)
def training_costs_twice(rows: Rows) -> Finding:
    """Training MARS costs about twice what AR SFT costs.

    Supported: the ratio's interval lies within ``TWICE``. Contradicted: it lies outside. Undecided otherwise.
    """
    ratios = _ratios(rows, COST, MARS, AR)
    if not ratios:
        return _not_measured("training cost of both on one machine that did nothing else")
    value, low, high = ratios[0]
    return Finding(_within(ratios[0], TWICE), f"{value:.2f}× [{low:.2f}, {high:.2f}]")


@claim("Lossless methods give AR SFT's answers", "text and number of tokens of every document")
def lossless_methods_give_ar_answers(rows: Rows) -> Finding:
    """Jacobi, Medusa (greedy acceptance), EAGLE and AR/AR speculative decoding write what AR SFT writes.

    Verified MARS writes what one-token MARS writes, which is greedy AR on its weights. No claim of the paper's but the
    construction of these methods. Supported: all answers on all shared documents are the same. Contradicted: of a
    method more than 1 % differ. Undecided otherwise (``harness.diagnose`` tells a near-tie from a bug).
    """
    shares = {}
    for name, sides in LOSSLESS.items():
        found = None if rows.pairs is None else _same_answers(rows, rows.pairs, *sides)
        if found and found[1]:
            shares[name] = found
    if not shares:
        return _not_measured("answers of a lossless method beside AR's, document by document")
    is_whole = all(same == n for same, n in shares.values())
    is_off = any(same < NEARLY * n for same, n in shares.values())
    told: dict[tuple[int, int], list[str]] = {}
    for name, share in shares.items():
        told.setdefault(share, []).append(name)
    numbers = "; ".join(f"{same:,} of {n:,}: {', '.join(names)}" for (same, n), names in told.items())
    return Finding(SUPPORTED if is_whole else CONTRADICTED if is_off else UNDECIDED, numbers)


def _same_answers(rows: Rows, pairs: Pairs, first: Where, second: Where) -> tuple[int, int] | None:
    """Of the cells that ``by_task`` means; of verified MARS, those of one block size."""
    mine = by_task(rows, first)
    if not mine:
        return None
    block_size = next(iter(mine.values())).get("block_size")
    other = by_task(rows, {**second, "block_size": block_size} if second.get("method") == "mars" else second)
    couples = {(mine[task]["key"], other[task]["key"]) for task in mine if task in other}
    counts = [pairs.same_answers(*couple) for couple in sorted(couples)]
    return sum(same for same, _ in counts), sum(n for _, n in counts)


def judge(cells: pd.DataFrame, pairs: Pairs | None = None) -> pd.DataFrame:
    """Every claim at every scale of the frame: ``claim``, ``scale``, ``verdict``, ``numbers``, ``how``.

    Args:
        pairs: of measured cells; without it the cells are published ones.
    """
    scales = sorted(cells["scale"].dropna().unique())
    rows = []
    for words, check in CLAIMS.items():
        for scale in scales:
            finding = check(cells[cells["scale"] == scale], pairs)
            how = HOW[words]
            if how.startswith(("Holm", "one test")):
                how = f"{'unpaired' if pairs is None else 'paired'}; {how}"
            rows.append(
                {"claim": words, "scale": scale, "verdict": finding.verdict, "numbers": finding.numbers, "how": how}
            )
    return pd.DataFrame(rows, columns=["claim", "scale", "verdict", "numbers", "how"])


def board(data: Data) -> pd.DataFrame:
    """The claims judged by the published numbers, and then by what was measured on each model.

    Returns:
        ``COLUMNS``: source ("published" or "measured"), family of the model, its scale (the paper's) or name, the
        claim, its verdict, the numbers behind it in one line, and how they were tested.
    """
    published = judge(data.published).assign(source=PUBLISHED, family="qwen2.5")
    boards = [published]
    if not data.measured.empty:
        # Speeds are compared on one machine: for them no cell stands for others.
        cells = pd.concat([data.usual[data.usual["metric"] != RATE], data.measured[data.measured["metric"] == RATE]])
        families = cells.drop_duplicates("scale").set_index("scale")["model"].map(lambda name: model_size(name)[0])
        found = judge(cells, data.pairs).assign(source=MEASURED)
        boards.append(found.assign(family=found["scale"].map(families)))
    return pd.concat(boards, ignore_index=True)[list(COLUMNS)]


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
    """First over second with the span that their intervals allow, for each task that both have.

    Of measured cells, of two that ran alike: on one machine, on as many documents, with one batch and block size.
    """
    if rows.pairs is None:
        a, b = by_task(rows, first, metric), by_task(rows, second, metric)
        couples = [(a[task], b[task]) for task in a if task in b]
    else:
        found: dict[str, tuple[Row, Row]] = {}
        others = pick(rows, metric, second)
        for x in pick(rows, metric, first):
            for y in others:
                if x["task"] == y["task"] != AVERAGE and _is_alike(x, y):
                    found.setdefault(x["task"], (x, y))
        couples = list(found.values())
    return [(x["value"] / y["value"], x["low"] / y["high"], x["high"] / y["low"]) for x, y in couples]


def _is_alike(first: Row, second: Row) -> bool:
    sizes = {row.get("block_size") for row in (first, second)} - {None}  # AR has none
    alike = ("n", "limit", "dtype", "batch_size", *MACHINE)
    return len(sizes) < 2 and all(first.get(name) == second.get(name) for name in alike)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _span(values: Sequence[float]) -> str:
    ends = [_signed(value) for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _interval(gap: Gap) -> str:
    return f"{_signed(gap.gap)} [{_signed(gap.low)}, {_signed(gap.high)}]"


def _tasks(found: Comparison) -> str:
    """How many tasks are up and down, and how many of them for sure; of a single one its name and size."""
    if found.is_one:
        [one] = found.tasks
        size = f", {one.n:,.0f} documents" if one.n == one.n else ""
        return f"{one.task}{size}, {'p<0.001' if one.p < 0.001 else f'p={one.p:.3f}'}"
    up, down = (sum(gap.gap * sign > 0 for gap in found.tasks) for sign in (1, -1))
    sure = ", ".join(f"{len(_certain(found, sign))} {word}" for sign, word in ((1, "up"), (-1, "down"))
                     if _certain(found, sign))  # fmt: skip
    return f"{up} of {len(found.tasks)} up, {down} down; {f'sure: {sure}' if sure else 'none sure'}"


STYLES = {SUPPORTED: "green", CONTRADICTED: "red", UNDECIDED: "yellow", NOT_MEASURED: "dim"}
CAPTION = (
    'Averages over tasks with {} 95 % intervals, in points; "sure" after Holm\'s correction.\n'
    f"A loss under {MARGIN:g} point counts as none, a speed-up under {100 * SPEED_MARGIN - 100:.0f} % neither: "
    "speeds are single runs."
)
CAPTION_PUBLISHED = "Paired tests on the same questions could be sharper; the paper does not give the data for them."
CAPTION_MEASURED = "Each claim is tested for itself, on cells of the usual options, cursor cache and smallest batch."


def to_rich(board: pd.DataFrame, title: str, is_measured: bool = False) -> Group:
    """The board for the terminal, within 80 columns as well as 100: a claim's words, below them a line for each scale.

    Where all rows are of one scale its name is left to the title.
    """
    parts: list[Any] = [Text(title, "bold")]
    is_one = board["scale"].nunique() < 2
    for words, rows in board.groupby("claim", sort=False):
        parts += [Text(), Text(str(words))]
        table = Table.grid(padding=(0, 1))
        for width in (2 if is_one else 6, 12, None):
            table.add_column(width=width)
        for row in rows.itertuples():
            scale = "" if is_one else f"  {row.scale}"
            table.add_row(scale, Text(str(row.verdict), STYLES[str(row.verdict)]), Text(str(row.numbers)))
        parts.append(table)
    caption = CAPTION.format("paired" if is_measured else "unpaired")
    return Group(*parts, Text(), Text(f"{caption}\n{CAPTION_MEASURED if is_measured else CAPTION_PUBLISHED}", "dim"))


def gaps_to_rich(gaps: pd.DataFrame) -> Group:
    """Every gap with its interval: a star where it is beyond its error, two where it is after Holm's correction."""
    parts: list[Any] = []
    for (comparison, scale), rows in gaps.groupby(["comparison", "scale"], sort=False):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in ("B", "task", "n", "first", "second", "gap", "± error", "z", "p (Holm)", ""):
            table.add_column(name, justify="left" if name in ("task", "") else "right")
        for row in rows.itertuples():
            star = "**" if row.exceeds_holm else "*" if row.exceeds else ""
            numbers = (
                f"{row.first:.1f}",
                f"{row.second:.1f}",
                _signed(row.gap),
                f"{Z * row.se:.1f}",
                f"{row.z:.1f}".replace("-", "−"),
            )
            size = "" if pd.isna(row.block_size) else f"{row.block_size:g}"
            table.add_row(size, row.task, f"{row.n:,.0f}", *numbers, f"{row.p_holm:.3f}", star)
        parts += [Text(f"{comparison}, {scale}", "bold"), Text(), table, Text()]
    kind = "paired" if len(gaps) and gaps["is_paired"].all() else "unpaired"
    caption = f"* beyond its {kind} 95 % error alone, ** also after Holm's correction over its table (averages apart)"
    return Group(*parts, Text(caption, "dim"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the board of the published numbers, then one for each measured model.

    Returns:
        0; 2 after a mistake in the arguments.
    """
    from harness.analysis.data import open_named

    parser = argparse.ArgumentParser(
        prog="python -m harness.analysis.claims", description="What the paper's numbers say, and what was measured"
    )
    told = "results folders; the reference results and results/runs if none"
    parser.add_argument("folders", nargs="*", type=Path, help=told)
    parser.add_argument("--gaps", action="store_true", help="also print every gap with its sampling error")
    options = parser.parse_args(arguments)
    try:
        data = open_named(options.folders)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    console = Console(highlight=False)
    whole = board(data)
    of_source = {source: whole[whole["source"] == source] for source in (PUBLISHED, MEASURED)}
    console.print(to_rich(of_source[PUBLISHED], "The paper's published numbers (results/paper), by model scale"))
    for scale, rows in of_source[MEASURED].groupby("scale", sort=False):
        console.print()
        console.print(to_rich(rows, f"Measured on {scale} ({rows['family'].iloc[0]})", is_measured=True))
    if of_source[MEASURED].empty:
        console.print("\nNothing is measured yet: python -m harness.run -m method=mars,ar_sft")
    if options.gaps:
        for cells, pairs in ((data.published, None), (data.usual, data.pairs)):
            if not cells.empty:
                console.print()
                console.print(gaps_to_rich(all_gaps(cells, pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
