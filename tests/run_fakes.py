"""Cells without a model: checkpoints whose weights are a few bytes, and an evaluation that answers from a formula."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import cell, run
from harness.models import checkpoints, registry
from harness.models.manifest import Manifest

COUNT = 6  # documents of a fake cell


def write_checkpoint(root: Path, name: str, weights: bytes = b"weights", **manifest: Any) -> None:
    """A checkpoint of ``tiny-1m`` as far as planning can tell."""
    directory = root / "tiny-1m" / name
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(weights)
    Manifest(**{"kind": name.split("-")[0], "model": "tiny-1m", **manifest}).write(directory)


def write_checkpoints(root: Path) -> None:
    """AR SFT and MARS with B=4."""
    write_checkpoint(root, "ar_sft")
    write_checkpoint(root, "mars-b4", block_size=4, alignment="paper", mask_token_id=3)


def settings(tmp_path: Path) -> list[str]:
    """Overrides that keep a run inside ``tmp_path``."""
    return [
        "model=tiny-1m", "suite.limit=6", "tracking=none", f"results_dir={tmp_path / 'results'}",
        f"checkpoints_dir={tmp_path / 'checkpoints'}",
    ]  # fmt: skip


def document(doc_id: int, score: float = 1.0, task: str = "word_problems", **values: Any) -> dict[str, Any]:
    """One finished row: two tokens per forward."""
    return {
        "task": task, "group": "word_problems", "doc_id": doc_id, "prompt_hash": f"hash {doc_id}", "score": score,
        "metrics": {"exact_match,strict-match": score}, "text": f"answer {doc_id}", "extracted": "7", "target": "7",
        "token_ids": [1, 2, 3, 4], "token_ends": [2, 4, 6, 7 + len(str(doc_id))], "confidences": [0.5, 0.75],
        "draft_depths": [], "draft_confidences": [], "draft_right": [], "prompt_tokens": 9, "new_tokens": 4,
        "target_forwards": 2, "draft_forwards": 0, "positions": 8, "draft_positions": 0, "drafted": 6, "accepted": 2,
        "acceptance_lengths": [1, 3], "prefill_seconds": 0.1, "decode_seconds": 0.1, "share_seconds": 0.2,
        "target_seconds": 0.1, "draft_seconds": 0.0, "timed_forwards": 1, "timed_draft_forwards": 0,
        "finish_reason": "eos",
    } | values  # fmt: skip


class FakeEvaluation:
    """Stands in for ``harness.evaluation.evaluate.evaluate``.

    Attributes:
        generated: (method, doc id) of every document that was generated rather than resumed.
        fail: methods whose cells fail after three documents.
        delay: seconds per document.
    """

    def __init__(self, fail: Iterable[str] = (), delay: float = 0.0) -> None:
        self.generated: list[tuple[str, int]] = []
        self.fail, self.delay = set(fail), delay

    def __call__(self, engine: Any, loaded: Any, suite: Any, *, resume: Any, on_row: Any, **_: Any) -> SimpleNamespace:
        name = engine.method.name
        rows: dict[int, Mapping[str, Any]] = {row["doc_id"]: row for row in resume}
        for doc_id in range(COUNT):
            if doc_id in rows:
                continue
            if name in self.fail and len(rows) == 3:
                raise RuntimeError("out of memory, say")
            time.sleep(self.delay)
            rows[doc_id] = document(doc_id, score=float(doc_id % 2))
            self.generated.append((name, doc_id))
            on_row(rows[doc_id])
        found = [dict(rows[i]) for i in range(COUNT)]
        headline = {"word_problems": SimpleNamespace(metric="exact_match,strict-match", metrics={"own,none": 0.25})}
        return SimpleNamespace(rows=found, headline=headline, protocol={"seeds": {}})


def install(patch: pytest.MonkeyPatch, evaluation: FakeEvaluation) -> None:
    """Replace what needs a model."""

    def load(model: Any, *, method: Any, dtype: str | None, device: str, **request: Any) -> SimpleNamespace:
        spec = registry.spec(model)
        resolved = checkpoints.resolve(spec, kind=method.checkpoint_kind, **request)
        identity = checkpoints.identity(spec, resolved, dtype)
        return SimpleNamespace(name=spec.name, identity=identity, manifest=resolved.manifest)

    patch.setattr(cell, "load", load)
    patch.setattr(cell, "Engine", lambda loaded, method, **_: SimpleNamespace(method=method))
    patch.setattr(cell, "evaluate", evaluation)


def command(*arguments: str) -> int:
    """``python -m harness.run`` in this process (``install`` first); the exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["harness.run", *arguments])
        return run.main(arguments)
