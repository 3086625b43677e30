"""The record of one finished cell: what was run, what came out, and everything needed to judge or repeat it.

A record is plain data (JSON). ``summarise`` derives its numbers from the per-document rows, which stay
beside it; ``DOCUMENT_TYPES`` lists what a row holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from harness.results.stats import Interval, score_interval

# One row per document: these columns (Arrow type names), and one number per metric in ``metrics``.
DOCUMENT_TYPES = {
    "task": "string",
    "doc_id": "int64",
    "group": "string",  # the benchmark that the task is (a part of)
    "score": "double",  # headline metric, 0 to 1
    "prompt_tokens": "int64",
    "new_tokens": "int64",
    "target_forwards": "int64",
    "draft_forwards": "int64",
    "positions": "int64",
    "draft_positions": "int64",
    "drafted": "int64",
    "accepted": "int64",
    "acceptance_lengths": "list<int64>",
    "prefill_seconds": "double",
    "decode_seconds": "double",
    "share_seconds": "double",
    "target_seconds": "double",
    "draft_seconds": "double",
    "timed_forwards": "int64",  # target and draft forwards that target_seconds and draft_seconds are the time of
    "timed_draft_forwards": "int64",
    "finish_reason": "string",
    "text": "string",
    "token_ids": "list<int64>",
    "confidences": "list<double>",
    "extracted": "string",
    "target": "string",
    "prompt_hash": "string",
}


@dataclass(frozen=True)
class Speed:
    """Counts over a set of documents, and the ratios that tables show.

    Attributes:
        tokens_per_forward: sum of committed tokens over sum of target forwards; greedy AR is exactly 1.
        tokens_per_forward_task_mean: mean of the tasks' ratios, as the paper's Tables 4 and 9 average.
        positions_per_token: window positions over committed tokens, the price of wide windows.
        tokens_per_second: committed tokens over ``seconds``.
        seconds: time of all forwards, reading prompts included; a forward that several rows share counts once.
        draft_cost: seconds of a draft forward over those of a target forward, prompts left out; None without drafts.
            From the clock: another machine, model pair or batch size has another.
        equivalent_forwards: target forwards, plus draft forwards at that cost.
        tokens_per_equivalent_forward: committed tokens over ``equivalent_forwards``; without a model that drafts it is
            ``tokens_per_forward``.
        acceptance_counts: how many forwards committed 0, 1, 2, … tokens.
        finish_reasons: how many documents ended by each.
    """

    documents: int
    new_tokens: int
    prompt_tokens: int
    target_forwards: int
    draft_forwards: int
    positions: int
    draft_positions: int
    tokens_per_forward: float
    tokens_per_forward_task_mean: float
    positions_per_token: float
    tokens_per_second: float
    seconds: float
    draft_cost: float | None
    equivalent_forwards: float
    tokens_per_equivalent_forward: float
    acceptance_counts: list[int]
    finish_reasons: dict[str, int]

    @property
    def draft_positions_per_token(self) -> float:
        """Positions that the drafting model processed per committed token."""
        return _ratio(self.draft_positions, self.new_tokens)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Speed:
        """From plain values. Records of engine 1 know no draft costs: no model drafted then."""
        without_drafts = {
            "draft_cost": None,
            "equivalent_forwards": data["target_forwards"],
            "tokens_per_equivalent_forward": data["tokens_per_forward"],
        }
        return cls(**without_drafts | dict(data))


@dataclass(frozen=True)
class Benchmark:
    """What a cell measured on one benchmark.

    Attributes:
        metric: lm-eval's name of the headline metric, "metric,filter".
        score: its mean over all documents with its interval, 0 to 1.
        metrics: mean of every metric.
        tasks: headline score of each task; more than one where the benchmark has subtasks.
    """

    metric: str
    score: Interval
    metrics: dict[str, float]
    tasks: dict[str, float]
    speed: Speed


@dataclass(frozen=True)
class Record:
    """One finished cell.

    Attributes:
        key: run key, the hash of ``identity``.
        identity: everything that can change the output.
        config: the whole resolved configuration that ran, including what cannot change the output.
        benchmarks: scores and speed by benchmark; most suites have one.
        speed: over all of them; its mean of ratios is over benchmarks.
        protocol: what the evaluation pinned (chat template, few-shot, filters, task versions).
        checkpoint: manifest of the weights, where there is one.
        provenance: git revision, versions, hardware, threads, seeds.
        created: UTC time at which the cell finished, ISO 8601.
    """

    key: str
    identity: dict[str, Any]
    config: dict[str, Any]
    benchmarks: dict[str, Benchmark]
    speed: Speed
    protocol: dict[str, Any] = field(default_factory=dict)
    checkpoint: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    created: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Inverse of ``to_dict``."""
        benchmarks = {
            name: Benchmark(**{**one, "score": Interval(**one["score"]), "speed": Speed.from_dict(one["speed"])})
            for name, one in data["benchmarks"].items()
        }
        return cls(**{**data, "benchmarks": benchmarks, "speed": Speed.from_dict(data["speed"])})


def summarise(rows: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> tuple[dict[str, Benchmark], Speed]:
    """Reduce a cell's documents to its benchmarks' scores and its speed.

    Args:
        rows: see ``DOCUMENT_TYPES``.
        metrics: headline metric of each benchmark.
    """
    groups = _split(rows, "group")
    return {name: _benchmark(found, metrics[name]) for name, found in groups.items()}, _speed(rows, "group")


def now() -> str:
    """UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _split(rows: Sequence[Mapping[str, Any]], by: str) -> dict[str, list[Mapping[str, Any]]]:
    parts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        parts[row[by]].append(row)
    return dict(parts)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _benchmark(rows: Sequence[Mapping[str, Any]], metric: str) -> Benchmark:
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row["metrics"].items():
            values[name].append(float(value))
    tasks = _split(rows, "task")
    return Benchmark(
        metric=metric,
        score=score_interval([row["score"] for row in rows], [row["task"] for row in rows]),
        metrics={name: fmean(found) for name, found in values.items()},
        tasks={name: fmean(row["score"] for row in found) for name, found in tasks.items()},
        speed=_speed(rows, "task"),
    )


def _speed(rows: Sequence[Mapping[str, Any]], by: str) -> Speed:
    total = {
        name: sum(row[name] for row in rows)
        for name in ("new_tokens", "prompt_tokens", "target_forwards", "draft_forwards", "positions", "draft_positions")
    }
    seconds = sum(row["share_seconds"] for row in rows)
    draft_cost = _draft_cost(rows)
    equivalent_forwards = total["target_forwards"] + total["draft_forwards"] * (draft_cost or 0.0)
    lengths = Counter(length for row in rows for length in row["acceptance_lengths"])
    parts = _split(rows, by).values()
    ratios = [_ratio(sum(r["new_tokens"] for r in part), sum(r["target_forwards"] for r in part)) for part in parts]
    return Speed(
        documents=len(rows),
        **total,
        tokens_per_forward=_ratio(total["new_tokens"], total["target_forwards"]),
        tokens_per_forward_task_mean=fmean(ratios),
        positions_per_token=_ratio(total["positions"], total["new_tokens"]),
        tokens_per_second=_ratio(total["new_tokens"], seconds),
        seconds=seconds,
        draft_cost=draft_cost,
        equivalent_forwards=equivalent_forwards,
        tokens_per_equivalent_forward=_ratio(total["new_tokens"], equivalent_forwards),
        acceptance_counts=[lengths[i] for i in range(max(lengths, default=-1) + 1)],
        finish_reasons=dict(Counter(row["finish_reason"] for row in rows)),
    )


def _draft_cost(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Time of a draft forward over that of a target forward, None without any.

    Both times are a batch's divided among its rows, so their ratio is that of the whole forwards.
    """
    names = ("draft_seconds", "timed_draft_forwards", "target_seconds", "timed_forwards")
    draft_seconds, drafts, target_seconds, forwards = (sum(row[name] for row in rows) for name in names)
    return draft_seconds / drafts / (target_seconds / forwards) if drafts and target_seconds else None
