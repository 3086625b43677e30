"""Results folders made up without any model: cells of every kind, written through the store, and ways to damage them.

python tests/synthetic_records.py DIR 2000 200     # that many cells of so many documents
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.results.keys import run_key
from harness.results.records import DOCUMENT_TYPES, Record, summarise
from harness.results.store import Store

AR = ("ar_sft", {"temperature": 0.0})
METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    AR,
    ("mars", {"tau": 0.7, "block_size": 4, "confidence": "probability", "verify": False, "temperature": 0.0}),
    ("mars", {"tau": 0.95, "block_size": 4, "confidence": "probability", "verify": False, "temperature": 0.0}),
    ("mars", {"tau": None, "block_size": 4, "confidence": "probability", "verify": True, "temperature": 0.0}),
    ("jacobi", {"window_length": 4, "initial": "prompt"}),
    ("medusa", {"tree": [[0], [1], [0, 0]], "num_nodes": 16, "acceptance": "typical", "delta": 0.3}),
    ("speculative", {"target": "ar_sft", "draft": "ar_sft", "num_drafts": 4, "draft_tau": None, "temperature": 0.0}),
)
DRAFTING = ("medusa", "speculative")
# Benchmarks: their tasks, and the metrics of a document (the headline first).
QUICK = {"word_problems": ("word_problems",)}
SUITE = {
    "ifeval": ("ifeval",),
    "bbh": tuple(f"bbh_{i}" for i in range(9)),
    "arc": ("arc_easy", "arc_challenge"),  # scored by log-likelihood
}
METRICS = {
    "word_problems": ("exact_match,strict-match", "exact_match,flexible-extract"),
    "ifeval": ("prompt_level_strict_acc,none",),
    "bbh": ("exact_match,get-answer",),
    "arc": ("acc,none", "acc_norm,none"),
}


def identity(
    method: str, axes: Mapping[str, Any], benchmarks: Mapping[str, Sequence[str]] = QUICK, **values: Any
) -> dict[str, Any]:
    """What a cell's output depends on. ``values``: model, checkpoint, limit, seed, dtype, cache (of the identity)."""
    given = {"model": "tiny", "checkpoint": "909ca66d49a8621c", "limit": None, "seed": 0, "dtype": "float32"} | values
    tasks = {
        name: {"version": "1.0", "num_fewshot": 0, "headline": METRICS[name][0], "data": {t: f"sha {t}" for t in tasks}}
        for name, tasks in benchmarks.items()
    }  # fmt: skip
    weights = {
        "model": given["model"], "base": None, "checkpoint": given["checkpoint"] and {"hash": given["checkpoint"]},
        "mask": None, "context_length": None, "dtype": given["dtype"],
    }  # fmt: skip
    if method == "speculative":
        weights["companions"] = {"draft": {"model": "tiny-1m"}}
    return {
        "method": {"name": method, "version": 1, "axes": dict(axes)},
        "model": weights,
        "suite": {"tasks": tasks, "limit": given["limit"], "max_gen_toks": 256, "fewshot_as_multiturn": False},
        "cache": given.get("cache", {"mode": "cursor", "accept_limit": "block_size"}),
        "seed": given["seed"],
        "engine": 2,
    }


def documents(
    of: Mapping[str, Any], count: int, benchmarks: Mapping[str, Sequence[str]], generator: np.random.Generator
) -> list[dict[str, Any]]:
    """``count`` rows for each benchmark, spread over its tasks; counts, lengths and times belong together."""
    name, rows = of["method"]["name"], []
    width = 1 if name == "ar_sft" else 4
    for group, tasks in benchmarks.items():
        for i in range(count):
            task, scored = tasks[i % len(tasks)], group == "arc"
            lengths = [] if scored else generator.integers(1, width + 1, generator.integers(1, 12)).tolist()
            new, forwards = sum(lengths), len(lengths)
            drafts = 3 * forwards if name in DRAFTING else 0
            seconds = float(generator.random()) * forwards / 10
            score = float(generator.random() < 0.6)
            text = "" if scored else f"answer {i} — ü"
            judged = _judged(lengths) if of["method"]["axes"].get("verify") else []
            rows.append({
                "task": task, "doc_id": i // len(tasks), "prompt_hash": f"{group} {i}", "group": group, "score": score,
                "metrics": {METRICS[group][0]: score} | {metric: float(generator.random() < 0.5)
                                                         for metric in METRICS[group][1:]},
                "text": text, "extracted": "7", "target": "7",
                "token_ids": list(range(new)),
                "token_ends": [len(text) * token // new for token in range(1, new + 1)],
                "draft_depths": [depth for depth, _, _ in judged],
                "draft_confidences": [score for _, score, _ in judged],
                "draft_right": [is_right for _, _, is_right in judged],
                "confidences": [] if name == "jacobi" else [0.5] * new,
                "prompt_tokens": 9 + i % 5, "new_tokens": new, "target_forwards": forwards, "draft_forwards": drafts,
                "positions": forwards * width, "draft_positions": drafts, "drafted": forwards * (width - 1),
                "accepted": new - forwards, "acceptance_lengths": lengths, "prefill_seconds": 0.125,
                "decode_seconds": seconds, "share_seconds": seconds + 0.125, "target_seconds": seconds,
                "draft_seconds": seconds / 4 if drafts else 0.0, "timed_forwards": max(forwards - 1, 0),
                "timed_draft_forwards": max(drafts - 3, 0), "loglikelihoods": [-1.5, -2.25] if scored else None,
                "is_greedy": [True, False] if scored else None,
                "finish_reason": "scored" if scored else ("eos", "stop", "length", "context")[generator.integers(4)],
            })  # fmt: skip
    return rows


def _judged(lengths: Sequence[int], most: int = 3) -> list[tuple[int, float, bool]]:
    """Depth, confidence and verdict of the drafts that forwards judged: those committed, and the first wrong one."""
    return [
        (depth, round(0.9**depth, 6), depth < length)
        for length in lengths[1:]  # the first read the prompt
        for depth in range(1, min(most, length) + 1)
    ]


def record(of: dict[str, Any], rows: Sequence[Mapping[str, Any]], created: str, **config: Any) -> Record:
    """The record of some rows, as a run writes it."""
    benchmarks, speed = summarise(rows, {group: METRICS[group][0] for group in METRICS})
    suite = "quick" if list(benchmarks) == ["word_problems"] else "paper"
    settings = {
        "suite": {"name": suite},
        "variant": None,
        "alignment": None,
        "batch_size": 1,
        "device": "auto",
    } | config
    return Record(
        run_key(of), of, settings, benchmarks, speed,
        checkpoint={"kind": "ar_sft", "steps": 600, "tokens": 2_140_804, "alignment": None},
        provenance={
            "git": {"revision": "0" * 40, "dirty": False}, "versions": {"lm_eval": "0.4.13", "torch": "2.13.0+cpu"},
            "hardware": {"processor": "a processor", "cores": 2}, "threads": 1, "command": ["run.py", "tau=0.7"],
        },
        created=created,
    )  # fmt: skip


def write(root: Path, of: dict[str, Any], rows: Sequence[Mapping[str, Any]], created: str, **config: Any) -> Path:
    """Write a cell below a results folder; returns its own."""
    made = record(of, rows, created, **config)
    cell = Store(root).cell(made.key)
    cell.path.mkdir(parents=True, exist_ok=True)
    cell.finish(made, rows)
    return cell.path


def times(n: int) -> str:
    """The time at which the n-th cell finished."""
    return f"2026-11-{1 + n // 86400:02}T{n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02}.000+00:00"


def make(root: Path, count: int = 6, benchmarks: Mapping[str, Sequence[str]] = SUITE, seed: int = 0) -> list[Path]:
    """A cell of each of ``METHODS`` with ``count`` documents of each benchmark; returns their folders."""
    generator, paths = np.random.default_rng(seed), []
    for n, (method, axes) in enumerate(METHODS):
        of = identity(method, axes, benchmarks, seed=seed)
        paths.append(write(root, of, documents(of, count, benchmarks, generator), times(n)))
    return paths


def make_many(root: Path, num_cells: int, num_documents: int) -> None:
    """A sweep over seeds; to be quick, each method's documents are the same for all of them, and summed up once."""
    generator = np.random.default_rng(0)
    for n, (method, axes) in enumerate(METHODS):
        of = identity(method, axes)
        template = write(root, of, documents(of, num_documents, QUICK, generator), times(n))
        found = json.loads((template / "record.json").read_text())
        content = (template / "documents.parquet").read_bytes()
        for seed in range(1, (num_cells - n + len(METHODS) - 1) // len(METHODS)):
            found["identity"]["seed"] = seed
            found |= {"key": run_key(found["identity"]), "created": times(n + seed * len(METHODS))}
            path = root / "runs" / found["key"]
            path.mkdir()
            (path / "documents.parquet").write_bytes(content)
            (path / "record.json").write_text(json.dumps(found, indent=1))


# --- damage


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a cell's record."""
    found = json.loads((path / "record.json").read_text(encoding="utf-8"))
    change(found)
    (path / "record.json").write_text(json.dumps(found), encoding="utf-8")


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a cell's documents."""
    place = path / "documents.parquet"
    pq.write_table(change(pq.read_table(place)), place)


def truncate(path: Path) -> None:
    """Cut a file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scramble(path: Path) -> None:
    """Overwrite the first pages of a Parquet file, whose footer stays whole."""
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    path.write_bytes(content)


def age(path: Path) -> None:
    """What records looked like before draft costs, medians, tasks' intervals, timed forwards and tokens' ends."""

    def older(found: dict[str, Any]) -> None:
        for speed in (found["speed"], *(one["speed"] for one in found["benchmarks"].values())):
            for name in ("draft_cost", "equivalent_forwards", "tokens_per_equivalent_forward", "median_tokens"):
                del speed[name]
        for one in found["benchmarks"].values():
            one["tasks"] = {name: task["score"] for name, task in one["tasks"].items()}
        for name in ("protocol", "checkpoint", "provenance"):
            del found[name]

    edit(path, older)
    later = {
        "timed_forwards", "timed_draft_forwards", "loglikelihoods", "is_greedy", "text", "token_ends", "draft_depths",
        "draft_confidences", "draft_right",
    }  # fmt: skip
    rewrite(path, lambda table: table.select([name for name in DOCUMENT_TYPES if name not in later]))


if __name__ == "__main__":
    make_many(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
