"""The run command: what is run, what is not run again, what a failure and a kill leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import run_fakes
from run_fakes import COUNT, FakeEvaluation, command, install, settings, write_checkpoints

from harness import cell
from harness.results.store import Store

SWEEP = ("-m", "method=mars,ar_sft", "tau=0.7,0.95")


@pytest.fixture
def evaluation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEvaluation:
    fake = FakeEvaluation()
    install(monkeypatch, fake)
    write_checkpoints(tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return fake


def test_sweep_runs_each_cell_once_and_prints_the_table(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*SWEEP, *settings(tmp_path)) == 0
    assert len(evaluation.generated) == 3 * COUNT, "AR SFT has no tau: three cells"
    out, err = capsys.readouterr()
    assert "ar_sft: 2 settings (tau=0.7; tau=0.95) are one cell, because tau does not change its output" in err
    assert out.count("50.0 ±") == 3
    assert out.count("same answers") == 2, "both MARS cells answer as AR SFT does, here to the token"
    assert f"records: {tmp_path / 'results' / 'runs'}" in out
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "results"}, "no clutter"
    [record] = [r for r in Store(tmp_path / "results").records() if r.identity["method"]["name"] == "ar_sft"]
    assert record.provenance["versions"]["torch"]
    assert record.config["method"]["name"] == "ar_sft"
    assert record.checkpoint is not None
    assert record.checkpoint["kind"] == "ar_sft"
    assert set(json.loads((tmp_path / "results/runs" / record.key / "record.json").read_text())) >= {"key", "identity"}


def test_second_run_does_nothing_and_says_the_same(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(*SWEEP, *settings(tmp_path)) == 0
    first = capsys.readouterr().out
    evaluation.generated.clear()
    monkeypatch.setattr(cell, "load", None)
    assert command(*SWEEP, *settings(tmp_path)) == 0
    assert capsys.readouterr().out == first
    assert not evaluation.generated


def test_failed_cell_leaves_traceback_and_the_sweep_goes_on(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation.fail = {"mars"}
    assert command(*SWEEP, *settings(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert err.count("failed: mars") == 4, "twice when it happens, twice at the end"
    assert "1 of 3 cells done" in out
    errors = list((tmp_path / "results").glob("runs/*/error.txt"))
    assert len(errors) == 2
    assert "RuntimeError: out of memory, say" in errors[0].read_text()
    assert not list((tmp_path / "results").glob("runs/*/record.json*"))[1:], "no half-written record"

    evaluation.fail = set()
    evaluation.generated.clear()
    assert command(*SWEEP, *settings(tmp_path)) == 0
    assert len(evaluation.generated) == 2 * (COUNT - 3), "three documents of each were kept"
    assert not list((tmp_path / "results").glob("runs/*/error.txt"))


@pytest.mark.parametrize("bad", ["tau=0.7,2", "block_size=4,0", "method=mars,marz", "suite.limit=3,x"])
def test_one_bad_cell_stops_the_sweep_before_the_first(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    assert command("-m", *settings(tmp_path), bad) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert "HYDRA" not in err.upper()
    assert not evaluation.generated
    assert not (tmp_path / "results").exists()


def test_user_error_in_a_cell_is_told_without_traceback(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.errors import UserError

    def load(*_: object, **__: object) -> None:
        raise UserError("checkpoint", "x", "one with a mask", "train one")

    monkeypatch.setattr(cell, "load", load)
    assert command(*settings(tmp_path)) == 1
    err = capsys.readouterr().err
    assert "fix: train one" in err
    assert "Traceback" not in err


def test_checkpoint_trained_by_another_process_meanwhile_is_used(
    evaluation: FakeEvaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that nobody trained is trained, once, under a lock; the cell's key is known only then."""
    from harness.training import recipe

    root = tmp_path / "elsewhere"
    trained = []

    def train(overrides: list[str], checkpoints_dir: str) -> None:
        trained.append(list(overrides))
        run_fakes.write_checkpoint(Path(checkpoints_dir), "mars-b3", block_size=3, alignment="paper", mask_token_id=3)

    monkeypatch.setattr(recipe, "train_on_demand", train)
    arguments = ["-m", *settings(tmp_path), f"checkpoints_dir={root}", "tau=0.7,0.95", "block_size=3"]
    assert command(*arguments, "train_on_demand=false") == 2, "refused, with the command"
    assert command(*arguments) == 0
    assert trained == [["method=mars", "model=tiny-1m", "block_size=3"]]
    assert len(Store(tmp_path / "results").records()) == 2


def test_dry_run_and_status_run_nothing(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*SWEEP, *settings(tmp_path), "dry_run=true") == 0
    assert command(*SWEEP, *settings(tmp_path), "status=true") == 0
    assert capsys.readouterr().out.count("missing") == 6
    assert not evaluation.generated
    assert not (tmp_path / "results").exists()
    assert command("method=ar_sft", *settings(tmp_path)) == 0
    capsys.readouterr()
    assert command(*SWEEP, *settings(tmp_path), "status=true") == 0
    out = capsys.readouterr().out
    assert out.count("missing") == 2
    assert out.count("done") == 1
    assert command("method=ar_sft", *settings(tmp_path), "suite.limit=60", "dry_run=true") == 0
    assert "12 s" in capsys.readouterr().out, "60 documents at the 0.2 seconds measured"


@pytest.mark.parametrize("listing", ["status=true", "dry_run=true"])
def test_title_of_a_listing_is_not_wrapped_to_its_table(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str], listing: str
) -> None:
    assert command(*SWEEP, *settings(tmp_path), listing) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if " · " in line]
    assert titles == ["model tiny-1m · suite quick · cache cursor · seed 0 · dtype float32"], "wider than its table"


def test_trouble_with_the_tracker_fails_nothing(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def track(*_: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(cell.sync, "track", track)
    assert command(*settings(tmp_path)) == 0
    assert "not tracked (ConnectionError: no route)" in capsys.readouterr().err


SLOW_RUN = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from pytest import MonkeyPatch
    from run_fakes import FakeEvaluation, command, install, settings
    install(MonkeyPatch(), FakeEvaluation(delay=0.5))
    sys.exit(command(*settings(Path(sys.argv[1])), "method=ar_sft"))
    """
)


def test_kill_9_in_mid_cell_resumes(evaluation: FakeEvaluation, tmp_path: Path) -> None:
    """A real process is killed between two documents; the next run generates the missing ones only."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_RUN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stderr=subprocess.DEVNULL,
    )
    runs = tmp_path / "results" / "runs"
    deadline = time.monotonic() + 240  # a loaded machine takes its time to import torch
    while not any(path.read_bytes().count(b"\n") >= 2 for path in runs.glob("*/partial.jsonl")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    [partial] = runs.glob("*/partial.jsonl")
    kept = partial.read_bytes().count(b"\n")
    assert 2 <= kept < COUNT
    with partial.open("ab") as file:
        file.write(b'{"task": "word_problems", "doc_')  # torn, as a kill within a write leaves it
    assert command(*settings(tmp_path), "method=ar_sft") == 0
    assert evaluation.generated == [("ar_sft", i) for i in range(kept, COUNT)]
    [record] = Store(tmp_path / "results").records()
    assert record.speed.documents == COUNT
    assert not partial.exists()


def test_a_results_folder_that_cannot_be_written_is_told_before_any_work(
    evaluation: FakeEvaluation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("a file in the way")
    assert command(*settings(tmp_path)) == 2
    assert "error: results_dir=" in capsys.readouterr().err
    assert not evaluation.generated
