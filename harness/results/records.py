"""The record of one finished cell: what was run, what came out, and everything needed to judge or repeat it.

A record is plain data (JSON). ``summarise`` derives its numbers from the per-document rows, which stay beside it; the
fields a row needs are listed in ``DOCUMENT_TYPES``.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.results.stats import Interval, score_interval

# One row per document: these columns (Arrow type names), and one number per metric in ``metrics``.
DOCUMENT_TYPES = {
    "task": "string",
    "doc_id": "int64",
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
    "finish_reason": "string",
    "text": "string",
    "token_ids": "list<int64>",
    "confidences": "list<double>",
}
VERSIONED = ("torch", "transformers", "lm_eval", "hydra-core", "peft", "datasets", "numpy", "wandb")


@dataclass(frozen=True)
class Speed:
    """Counts over a set of documents, and the ratios that tables show.

    Attributes:
        tokens_per_forward: sum of committed tokens over sum of target forwards; greedy AR is exactly 1.
        tokens_per_forward_task_mean: mean over tasks of each task's ratio, as the paper's Tables 4 and 9 average.
        tokens_per_second: committed tokens over ``seconds``.
        seconds: time spent generating, prompts included.
        acceptance_counts: how many forwards committed 0, 1, 2, … tokens.
    """

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
    acceptance_counts: list[int]
    finish_reasons: dict[str, int]


@dataclass(frozen=True)
class TaskSummary:
    """One task of the suite: its headline score, the mean of every metric, and its speed ratio."""

    score: Interval
    metrics: dict[str, float]
    tokens_per_forward: float


@dataclass(frozen=True)
class Record:
    """One finished cell.

    Attributes:
        key: run key, the hash of ``identity``.
        identity: everything that can change the output.
        config: the whole resolved configuration that ran, including what cannot change the output.
        score: headline score over all documents, with its interval.
        tasks: the same per task of the suite.
        speed: counts and ratios over all documents.
        details: what the evaluation pinned (chat template, few-shot, filters, task versions).
        provenance: git revision, versions, hardware, threads, seeds.
        created: UTC time at which the cell finished, ISO 8601.
    """

    key: str
    identity: dict[str, Any]
    config: dict[str, Any]
    score: Interval
    tasks: dict[str, TaskSummary]
    speed: Speed
    details: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    created: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Inverse of ``to_dict``; unknown fields of a later version are ignored."""
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        values["score"] = Interval(**data["score"])
        values["speed"] = Speed(**data["speed"])
        values["tasks"] = {
            name: TaskSummary(**{**task, "score": Interval(**task["score"])}) for name, task in data["tasks"].items()
        }
        return cls(**values)


def make_record(
    key: str,
    identity: dict[str, Any],
    config: dict[str, Any],
    documents: Sequence[Mapping[str, Any]],
    details: dict[str, Any],
    provenance: dict[str, Any],
) -> Record:
    """Summarise a cell's documents into its record.

    Raises:
        ValueError: no documents.
    """
    by_task: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for document in documents:
        by_task[document["task"]].append(document)
    tasks = {name: _summarise_task(rows) for name, rows in by_task.items()}
    return Record(
        key=key,
        identity=identity,
        config=config,
        score=score_interval([float(d["score"]) for d in documents], [d["task"] for d in documents]),
        tasks=tasks,
        speed=_speed(documents, tasks),
        details=details,
        provenance=provenance,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _summarise_task(rows: Sequence[Mapping[str, Any]]) -> TaskSummary:
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.get("metrics", {}).items():
            values[name].append(float(value))
    return TaskSummary(
        score=score_interval([float(row["score"]) for row in rows]),
        metrics={name: sum(found) / len(found) for name, found in values.items()},
        tokens_per_forward=_ratio(sum(r["new_tokens"] for r in rows), sum(r["target_forwards"] for r in rows)),
    )


def _speed(rows: Sequence[Mapping[str, Any]], tasks: Mapping[str, TaskSummary]) -> Speed:
    total = {
        name: sum(row[name] for row in rows)
        for name in ("new_tokens", "prompt_tokens", "target_forwards", "draft_forwards", "positions", "draft_positions")
    }
    seconds = sum(row["prefill_seconds"] + row["decode_seconds"] for row in rows)
    lengths = Counter(length for row in rows for length in row["acceptance_lengths"])
    return Speed(
        **total,
        tokens_per_forward=_ratio(total["new_tokens"], total["target_forwards"]),
        tokens_per_forward_task_mean=sum(task.tokens_per_forward for task in tasks.values()) / len(tasks),
        positions_per_token=_ratio(total["positions"], total["new_tokens"]),
        tokens_per_second=_ratio(total["new_tokens"], seconds),
        seconds=seconds,
        acceptance_counts=[lengths[i] for i in range(max(lengths, default=-1) + 1)],
        finish_reasons=dict(Counter(row["finish_reason"] for row in rows)),
    )


def collect_provenance(seed: int) -> dict[str, Any]:
    """Who ran this, on what: git revision and dirty flag, versions, hardware, threads, seed, command line."""
    torch = sys.modules.get("torch")
    hardware: dict[str, Any] = machine()
    threads = os.cpu_count()
    if torch is not None:
        threads = torch.get_num_threads()
        if torch.cuda.is_available():
            hardware = hardware | {"gpu": torch.cuda.get_device_name(), "num_gpus": torch.cuda.device_count()}
    return {
        "git": _git_state(),
        "versions": _versions(),
        "hardware": hardware,
        "threads": threads,
        "seed": seed,
        "command": sys.argv,
    }


@functools.cache
def machine() -> dict[str, Any]:
    """The machine, as far as it decides speed: records made on the same one are comparable in seconds."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": processor, "cores": os.cpu_count(), "system": platform.platform()}


@functools.cache
def _git_state() -> dict[str, Any]:
    """Revision and whether tracked files differ from it; empty where the code is not in a repository."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        return {"revision": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return {}


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
