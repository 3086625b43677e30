"""Intervals for scores and for paired differences, so that no table prints a bare number.

Everything is seeded and needs numpy only. Scores are fractions in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
MIN_CLUSTERS = 8  # fewer subtasks than this cannot be resampled to any purpose; their documents are


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval at ``LEVEL``; ``how`` names the construction."""

    value: float
    low: float
    high: float
    n: int
    how: str

    @property
    def half_width(self) -> float:
        """The larger of the two distances from the estimate to its ends."""
        return max(self.value - self.low, self.high - self.value)


@dataclass(frozen=True)
class Comparison:
    """Mean of the paired differences (first minus second) over the documents that both have.

    Attributes:
        p_value: McNemar's exact test, two-sided; None where scores are not 0 or 1.
        wins, losses: documents that only the first, only the second got right (or got a higher score on).
    """

    difference: Interval
    p_value: float | None
    wins: int
    losses: int


def agresti_coull(successes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Interval of a proportion: Wald's after adding z²/2 right and z²/2 wrong answers (Agresti and Coull 1998).

    It holds Wilson's and has its centre, but does not fall short near 0 and 1 as that does: at 95 % it covers at least
    94 % for rates from 0.02 to 0.98 at 164 documents or more (Wilson: 92.99 %). Right also at 0 and n successes.
    """
    z2 = NormalDist().inv_cdf(0.5 + level / 2) ** 2
    more = n + z2
    centre = (successes + z2 / 2) / more
    half = math.sqrt(z2 * centre * (1 - centre) / more)
    return max(0.0, centre - half), min(1.0, centre + half)


def score_interval(scores: Sequence[float], clusters: Sequence[Any] | None = None, seed: int = 0) -> Interval:
    """Mean score with its interval: Agresti and Coull's for right/wrong scores, a bootstrap otherwise.

    Args:
        scores: one per document.
        clusters: the subtask of each document; from ``MIN_CLUSTERS`` subtasks on, subtasks are resampled. An interval
            narrower than that of as many independent documents (of few, all wrong, it has no width) takes theirs.
        seed: of the bootstrap.

    Raises:
        ValueError: no scores.
    """
    if not scores:
        raise ValueError("a score needs at least one document")
    values = np.asarray(scores, dtype=np.float64)
    n, mean = len(values), float(values.mean())
    is_binary = bool(np.isin(values, (0.0, 1.0)).all())
    if clusters is not None and len(set(clusters)) >= MIN_CLUSTERS:
        low, high = _cluster_bootstrap(values, clusters, seed)
        if is_binary:
            alone = agresti_coull(int(values.sum()), n)
            low, high = min(low, alone[0]), max(high, alone[1])
        return Interval(mean, low, high, n, "bootstrap over subtasks")
    if is_binary:
        low, high = agresti_coull(int(values.sum()), n)
        return Interval(mean, low, high, n, "Agresti-Coull")
    low, high = _bootstrap(values, seed)
    return Interval(mean, low, high, n, "bootstrap")


def mean_interval(parts: Sequence[Interval]) -> Interval:
    """Plain mean of estimates on independent sets of documents (a suite's benchmarks), each weighing the same.

    The distances from the estimates to their ends add up as standard errors do: the square-and-add method, which keeps
    the parts' asymmetry (Newcombe 1998; Zou and Donner 2008, MOVER). The benchmarks are taken as given: the interval
    says what other questions of the same benchmarks would give, and nothing about other benchmarks.

    Raises:
        ValueError: no parts.
    """
    if not parts:
        raise ValueError("a mean needs at least one part")
    if len(parts) == 1:
        return parts[0]
    k = len(parts)
    mean = sum(part.value for part in parts) / k
    below = math.sqrt(sum((part.value - part.low) ** 2 for part in parts)) / k
    above = math.sqrt(sum((part.high - part.value) ** 2 for part in parts)) / k
    return Interval(mean, mean - below, mean + above, sum(part.n for part in parts), "mean of independent parts")


def mcnemar(wins: int, losses: int) -> float:
    """Exact two-sided p-value that discordant pairs fall either way with equal chance."""
    n = wins + losses
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    return min(1.0, float(2 * tail / 2**n))


def compare(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], seed: int = 0
) -> Comparison | None:
    """Paired comparison of two cells' documents, matched by task and document id.

    Right/wrong scores have Bonett and Price's interval: a percentile bootstrap covers as little as 84 % where few pairs
    are discordant, which is what comparisons of decoding methods are like. From ``MIN_CLUSTERS`` tasks on, tasks are
    resampled (BBH, MMLU-Pro: questions of a subtask are alike), and the wider of the two counts at each end.

    Returns:
        None where the two share no document.
    """
    other = {(row["task"], row["doc_id"]): float(row["score"]) for row in second}
    pairs = [
        (row["task"], float(row["score"]), other[row["task"], row["doc_id"]])
        for row in first
        if (row["task"], row["doc_id"]) in other
    ]
    if not pairs:
        return None
    tasks = [task for task, _, _ in pairs]
    a = np.array([x for _, x, _ in pairs])
    b = np.array([y for _, _, y in pairs])
    differences = a - b
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    binary = bool(np.isin(np.concatenate([a, b]), (0.0, 1.0)).all())
    alone = bonett_price(wins, losses, len(pairs)) if binary else None
    if len(set(tasks)) >= MIN_CLUSTERS:
        (low, high), how = _cluster_bootstrap(differences, tasks, seed), "paired bootstrap over subtasks"
        if alone:
            low, high = min(low, alone[0]), max(high, alone[1])
    elif alone:
        (low, high), how = alone, "Bonett-Price"
    else:
        (low, high), how = _bootstrap(differences, seed), "paired bootstrap"
    interval = Interval(float(differences.mean()), low, high, len(pairs), how)
    return Comparison(interval, mcnemar(wins, losses) if binary else None, wins, losses)


def _bootstrap(values: np.ndarray, seed: int) -> tuple[float, float]:
    """Percentile interval of the mean. Resampling n values is a multinomial draw over the distinct ones."""
    distinct, counts = np.unique(values, return_counts=True)
    generator = np.random.default_rng(seed)
    draws = generator.multinomial(len(values), counts / len(values), size=RESAMPLES)  # [RESAMPLES, distinct]
    return _percentiles(draws @ distinct / len(values))


def _cluster_bootstrap(values: np.ndarray, clusters: Sequence[Any], seed: int) -> tuple[float, float]:
    """Percentile interval of the mean when whole clusters are resampled (their sizes may differ).

    Of few clusters a percentile interval is too narrow, as a normal one in Student's place would be. The percentiles
    are therefore moved out to where a normal distribution reaches as far as Student's (Hesterberg 2015, expanded
    percentiles): of 14 clusters 1.3 % and 98.7 % in the place of 2.5 % and 97.5 %.
    """
    _, index = np.unique(np.asarray([str(c) for c in clusters]), return_inverse=True)
    sums, sizes = np.bincount(index, weights=values), np.bincount(index)
    generator = np.random.default_rng(seed)
    k = len(sums)
    draws = generator.multinomial(k, np.full(k, 1 / k), size=RESAMPLES)  # [RESAMPLES, clusters]
    tail = NormalDist().cdf(-math.sqrt(k / (k - 1)) * student(k - 1))
    return _percentiles((draws @ sums) / (draws @ sizes), tail)


def student(freedom: int, level: float = LEVEL) -> float:
    """Two-sided quantile of Student's t, by Fisher's expansion: within 0.001 from 7 degrees of freedom on."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**i for i, term in enumerate(terms))


def _percentiles(means: np.ndarray, tail: float = (1 - LEVEL) / 2) -> tuple[float, float]:
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def bonett_price(wins: int, losses: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Interval of a paired difference of proportions: Wald's after adding a win and a loss (Bonett and Price 2012).

    At 95 % it covers at least 93.7 % for the sizes of the paper's benchmarks, from 0.5 % of discordant pairs on,
    however they fall. Right also without a discordant pair, and without another one.
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    more = n + 2
    up, down = (wins + 1) / more, (losses + 1) / more
    centre = up - down
    half = z * math.sqrt((up + down - centre**2) / more)
    return max(-1.0, centre - half), min(1.0, centre + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of a family of tests, in the order given (Holm 1979).

    Where all those below 0.05 are taken for findings, the chance that any of them is false is at most 5 %, however the
    tests depend on each other.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def two_sided(z: float) -> float:
    """Two-sided p-value of a standard normal deviate."""
    return math.erfc(abs(z) / math.sqrt(2))
