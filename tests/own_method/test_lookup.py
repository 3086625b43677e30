"""What CONTRIBUTING promises: a method is one file, one YAML and one test, and a row in the table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lookup import Lookup, draft
from oracles import Target, greedy, micro_model

from harness.engine.loop import Engine
from harness.engine.rows import Request

HERE = Path(__file__).parent


def test_drafts_follow_the_latest_occurrence() -> None:
    assert draft([1, 2, 9, 1, 2, 5, 6, 7, 1, 2], 2, 3) == [5, 6, 7]
    assert draft([1, 2, 3], 2, 3) == []


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_lookup_is_lossless(kind: str, batch_size: int) -> None:
    """With six tokens in all, the same pair often returns: drafts are confirmed sometimes and fail sometimes."""
    target = Target(micro_model(kind, seed=5, vocab=6))
    generator = torch.Generator().manual_seed(0)
    asked = [Request(torch.randint(0, 6, (n,), generator=generator).tolist(), 40, key=n) for n in range(3, 9)]
    got = {c.key: c for c in Engine(target, Lookup(), batch_size=batch_size).run(asked)}
    for request in asked:
        assert got[request.key].token_ids == greedy(target.model, request.prompt_ids, 40)
    lengths = {n for c in got.values() for n in c.stats.acceptance_lengths}
    assert {1, 2, 3, 4, 5} <= lengths


def test_one_yaml_makes_it_a_row_of_the_table(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            sys.executable, "-m", "harness.run", "--config-dir", str(HERE / "conf"), "-m", "method=lookup,ar_sft",
            "tau=0.7,0.95", "suite.limit=4", "tracking=none", f"results_dir={tmp_path}",
        ],
        env={**os.environ, "PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1", "COLUMNS": "160"},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "lookup" in result.stdout
    assert len(list((tmp_path / "runs").glob("*/record.json"))) == 2, "neither method has a tau"
