"""The record of one finished cell: what was run, what came out, and everything needed to judge or repeat it.

A record is plain data (JSON). ``summarise`` derives its numbers from the per-document rows, which stay
beside it; ``DOCUMENT_TYPES`` lists what a row holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

from harness.results.stats import Interval, mean_interval, score_interval

# Finish reasons: of a document that was scored by log-likelihood alone, and of an answer that did not end by itself,
# at the suite's token limit or where the model's context did.
SCORED = "scored"
LENGTH, CONTEXT = "length", "context"

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
    "finish_reason": "string",  # eos | stop | length | context | scored
    "text": "string",
    "token_ids": "list<int64>",
    "token_ends": "list<int64>",  # where in the text (of gated benchmarks: in plain) each token ends, in characters
    "confidences": "list<double>",
    # Of drafts that the target judged, where they are a chain proposed with confidences (verified MARS): place in the
    # chain, which is the number of masks that it was predicted through; confidence; whether it was right.
    "draft_depths": "list<int64>",
    "draft_confidences": "list<double>",
    "draft_right": "list<bool>",
    "extracted": "string",
    "target": "string",
    "prompt_hash": "string",
    "loglikelihoods": "list<double>",  # of each choice, where the document was scored by them; null elsewhere
    "is_greedy": "list<bool>",
}


@dataclass(frozen=True)
class Speed:
    """Counts over a set of documents, and the ratios that tables show.

    Attributes:
        tokens_per_forward: sum of committed tokens over sum of target forwards; greedy AR is exactly 1. This and every
            other ratio is 0 where nothing was generated (``new_tokens`` is 0), because documents were only scored.
        tokens_per_forward_task_mean: mean of the tasks' ratios, as the paper's Tables 4 and 9 average; tasks that
            generate nothing are left out.
        positions_per_token: window positions over committed tokens, the price of wide windows.
        tokens_per_second: committed tokens over the seconds of the documents that were generated.
        seconds: time of all forwards, reading prompts included; a forward that several rows share counts once.
        draft_cost: seconds of a draft forward over those of a target forward, prompts left out; None without drafts.
            From the clock: another machine, model pair or batch size has another.
        equivalent_forwards: target forwards, plus draft forwards at that cost.
        tokens_per_equivalent_forward: committed tokens over ``equivalent_forwards``; without a model that drafts it is
            ``tokens_per_forward``.
        acceptance_counts: how many forwards committed 0, 1, 2, … tokens.
        finish_reasons: how many documents ended by each.
        median_tokens: median of the generated documents' new tokens; None without any, and in older records.
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
    median_tokens: float | None = None

    @property
    def draft_positions_per_token(self) -> float:
        """Positions that the drafting model processed per committed token."""
        return _ratio(self.draft_positions, self.new_tokens)

    @property
    def generated(self) -> int:
        """Documents that were answered with text, and not only scored."""
        return self.documents - self.finish_reasons.get(SCORED, 0)

    @property
    def mean_tokens(self) -> float | None:
        """Mean length of an answer in tokens, EOS included; None without answers."""
        return self.new_tokens / self.generated if self.generated else None

    @property
    def cut_share(self) -> float | None:
        """Share of the answers that did not end by themselves; None without answers."""
        return self._share(LENGTH, CONTEXT)

    @property
    def context_share(self) -> float | None:
        """The part of ``cut_share`` that the model's context cut: a higher token limit does not help those."""
        return self._share(CONTEXT)

    def _share(self, *reasons: str) -> float | None:
        return sum(self.finish_reasons.get(r, 0) for r in reasons) / self.generated if self.generated else None

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
class Task:
    """A task of a benchmark in short. None: nothing was generated, or an older record does not know it.

    Attributes:
        score: mean of the headline metric, 0 to 1; ``low`` and ``high`` are its interval's ends.
        tokens_per_forward: ratio of sums.
        mean_tokens, median_tokens, cut_share: as ``Speed`` has them.
    """

    score: float
    low: float | None = None
    high: float | None = None
    documents: int | None = None
    tokens_per_forward: float | None = None
    mean_tokens: float | None = None
    median_tokens: float | None = None
    cut_share: float | None = None

    @classmethod
    def of(cls, score: Interval, speed: Speed) -> Task:
        """In short, what was measured on a task."""
        return cls(
            score=score.value,
            low=score.low,
            high=score.high,
            documents=speed.documents,
            tokens_per_forward=speed.tokens_per_forward if speed.new_tokens else None,
            mean_tokens=speed.mean_tokens,
            median_tokens=speed.median_tokens,
            cut_share=speed.cut_share,
        )


@dataclass(frozen=True)
class Benchmark:
    """What a cell measured on one benchmark.

    Attributes:
        metric: lm-eval's name of the headline metric, "metric,filter".
        score: its mean over all documents with its interval, 0 to 1.
        metrics: every metric over all documents, as lm-eval aggregates it; the headline is one of them.
        tasks: each task in short; more than one where the benchmark has subtasks.
    """

    metric: str
    score: Interval
    metrics: dict[str, float]
    tasks: dict[str, Task]
    speed: Speed

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Benchmark:
        """From plain values. Older records have of each task its score alone; a task alone is the benchmark."""
        score, speed = Interval(**data["score"]), Speed.from_dict(data["speed"])
        tasks = {
            name: Task(**one) if isinstance(one, Mapping)
            else Task.of(score, speed) if len(data["tasks"]) == 1
            else Task(one)
            for name, one in data["tasks"].items()
        }  # fmt: skip
        return cls(**{**data, "score": score, "tasks": tasks, "speed": speed})


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

    @property
    def average(self) -> Interval:
        """Plain mean of the benchmarks' scores, as the paper averages; of one benchmark, its score."""
        return mean_interval([benchmark.score for benchmark in self.benchmarks.values()])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Inverse of ``to_dict``."""
        benchmarks = {name: Benchmark.from_dict(one) for name, one in data["benchmarks"].items()}
        return cls(**{**data, "benchmarks": benchmarks, "speed": Speed.from_dict(data["speed"])})


def summarise(
    rows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, str],
    aggregates: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[dict[str, Benchmark], Speed]:
    """Reduce a cell's documents to its benchmarks' scores and its speed.

    Args:
        rows: see ``DOCUMENT_TYPES``.
        metrics: headline metric of each benchmark.
        aggregates: lm-eval's own values of each benchmark's metrics, not all of which are means over documents
            (IFEval's ``inst_level`` accuracies are over instructions); a metric that is not among them is.
    """
    aggregates = aggregates or {}
    benchmarks = {
        name: _benchmark(found, metrics[name], aggregates.get(name, {}))
        for name, found in _split(rows, "group").items()
    }
    return benchmarks, _speed(rows, "group")


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


def _benchmark(rows: Sequence[Mapping[str, Any]], metric: str, aggregates: Mapping[str, float]) -> Benchmark:
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row["metrics"].items():
            values[name].append(float(value))
    return Benchmark(
        metric=metric,
        score=score_interval([row["score"] for row in rows], [row["task"] for row in rows]),
        metrics={name: fmean(found) for name, found in values.items()} | dict(aggregates),
        tasks={
            name: Task.of(score_interval([row["score"] for row in found]), _speed(found, "task"))
            for name, found in _split(rows, "task").items()
        },
        speed=_speed(rows, "task"),
    )


def _speed(rows: Sequence[Mapping[str, Any]], by: str) -> Speed:
    total = {
        name: sum(row[name] for row in rows)
        for name in ("new_tokens", "prompt_tokens", "target_forwards", "draft_forwards", "positions", "draft_positions")
    }
    answers = [row for row in rows if row["finish_reason"] != SCORED]
    draft_cost = _draft_cost(rows)
    equivalent_forwards = total["target_forwards"] + total["draft_forwards"] * (draft_cost or 0.0)
    lengths = Counter(length for row in rows for length in row["acceptance_lengths"])
    parts = _split(rows, by).values()
    counts = [(sum(r["new_tokens"] for r in part), sum(r["target_forwards"] for r in part)) for part in parts]
    ratios = [tokens / forwards for tokens, forwards in counts if forwards]
    return Speed(
        documents=len(rows),
        **total,
        tokens_per_forward=_ratio(total["new_tokens"], total["target_forwards"]),
        tokens_per_forward_task_mean=fmean(ratios) if ratios else 0.0,
        positions_per_token=_ratio(total["positions"], total["new_tokens"]),
        tokens_per_second=_ratio(total["new_tokens"], sum(row["share_seconds"] for row in answers)),
        seconds=sum(row["share_seconds"] for row in rows),
        draft_cost=draft_cost,
        equivalent_forwards=equivalent_forwards,
        tokens_per_equivalent_forward=_ratio(total["new_tokens"], equivalent_forwards),
        acceptance_counts=[lengths[i] for i in range(max(lengths, default=-1) + 1)],
        finish_reasons=dict(Counter(row["finish_reason"] for row in rows)),
        median_tokens=float(median(row["new_tokens"] for row in answers)) if answers else None,
    )


def _draft_cost(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Time of a draft forward over that of a target forward, None without any.

    Both times are a batch's divided among its rows, so their ratio is that of the whole forwards.
    """
    names = ("draft_seconds", "timed_draft_forwards", "target_seconds", "timed_forwards")
    draft_seconds, drafts, target_seconds, forwards = (sum(row[name] for row in rows) for name in names)
    return draft_seconds / drafts / (target_seconds / forwards) if drafts and target_seconds else None
