"""wandb as a projection of records: what is said to it, and that nothing else is heard."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_fakes import document
from test_results import SCORED_ROW, record

from harness import tracking
from harness.errors import UserError
from harness.results.store import Store

SETTINGS = {"name": "wandb", "project": "p", "entity": None, "group": None, "mode": None, "documents": 2}


class FakeWandb(SimpleNamespace):
    """Remembers every run; ``key`` says whether one is configured."""

    def __init__(self, key: bool = False) -> None:
        super().__init__(runs=[], open=0, key=key)

    def login(self, **_: Any) -> bool:
        return self.key

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def Table(self, columns: list[str], data: list[list[Any]]) -> SimpleNamespace:
        return SimpleNamespace(columns=columns, data=data)

    def init(self, **arguments: Any) -> FakeRun:
        assert not self.open, "the run before was not closed"
        run = FakeRun(self, arguments)
        self.runs.append(run)
        return run


class FakeRun:
    def __init__(self, wandb: FakeWandb, arguments: dict[str, Any]) -> None:
        self.wandb, self.arguments, self.summary, self.logged = wandb, arguments, dict[str, Any](), dict[str, Any]()

    def log(self, values: dict[str, Any]) -> None:
        self.logged |= values

    def __enter__(self) -> FakeRun:
        self.wandb.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.wandb.open -= 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(tracking, "_told", [])
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    return fake


def test_each_cell_is_its_own_run(wandb: FakeWandb, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [document(i, float(i % 2)) for i in range(4)]
    for key, tau in (("a" * 16, 0.7), ("b" * 16, 0.95)):
        tracking.replay(record(rows, key, tau=tau, block_size=4), rows, SETTINGS, tmp_path)
    first, second = wandb.runs
    assert (first.arguments["id"], second.arguments["id"]) == ("a" * 16, "b" * 16)
    assert first.arguments["job_type"] == "eval"
    assert first.arguments["group"] == "quick"
    assert first.arguments["tags"] == ["mars", "tiny", "quick"]
    assert first.arguments["config"]["identity"]["method"]["axes"]["tau"] == 0.7
    assert second.arguments["config"]["identity"]["method"]["axes"]["tau"] == 0.95
    assert first.arguments["mode"] == "offline"
    assert first.arguments["dir"] == str(tmp_path)
    assert first.summary["tokens_per_forward"] == first.summary["tokens_per_equivalent_forward"] == 2.0
    assert first.summary["score"] == first.summary["word_problems/score"] == 0.5
    assert first.summary["word_problems/exact_match,strict-match"] == 0.5
    table = first.logged["documents"]
    assert len(table.data) == 2, "as many documents as the settings say"
    assert dict(zip(table.columns, table.data[1], strict=True))["acceptance_lengths"] == [1, 3]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, "one line for both"
    assert "wandb sync" in err


def test_summary_of_a_suite_has_its_average_and_its_subtasks() -> None:
    rows = [document(i, float(i > 0), f"bbh_{i}", group="bbh", finish_reason="length") for i in range(2)]
    rows += [document(0, 0.0), SCORED_ROW | {"group": "arc", "task": "arc"}]
    flat = tracking.summary(record(rows))
    assert (flat["bbh/bbh_0/score"], flat["bbh/bbh_1/score"], flat["bbh/score"]) == (0.0, 1.0, 0.5)
    assert (flat["bbh/mean_tokens"], flat["bbh/cut_share"], flat["bbh/tokens_per_forward"]) == (4.0, 1.0, 2.0)
    assert flat["score"] == flat["average/score"] == (0.5 + 0 + 1) / 3, "what a wandb sweep optimises"
    assert flat["average/score_low"] < 0.5 < flat["average/score_high"]
    assert (flat["mean_tokens"], flat["cut_share"], flat["tokens_per_forward"]) == (4.0, 2 / 3, 2.0)
    assert {name for name in flat if name.startswith("arc/")} == {
        "arc/score", "arc/score_low", "arc/score_high", "arc/exact_match,strict-match",
    }, "it has no length and no ratio"  # fmt: skip
    alone = tracking.summary(record(rows[2:3]))
    assert alone["score"] == alone["word_problems/score"]
    assert not [name for name in alone if name.startswith(("average", "word_problems/word_problems"))]
    scored = tracking.summary(record([SCORED_ROW]))
    assert scored["score"] == 1.0
    assert not {"tokens_per_forward", "tokens_per_second", "mean_tokens", "cut_share"} & set(scored)


def test_group_and_mode_of_the_settings_are_used(wandb: FakeWandb, tmp_path: Path) -> None:
    wandb.key = True
    rows = [document(0)]
    tracking.replay(record(rows), rows, SETTINGS | {"group": "table2"}, tmp_path)
    tracking.replay(record(rows), rows, SETTINGS | {"mode": "offline", "documents": 0}, tmp_path)
    online, offline = wandb.runs
    assert (online.arguments["mode"], online.arguments["group"]) == ("online", "table2")
    assert (offline.arguments["mode"], offline.logged) == ("offline", {})


def test_none_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    tracking.replay(record([document(0)]), [document(0)], {"name": "none"}, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("mode", "words"), [("online", "needs a wandb key"), ("offlin", "online or offline")])
def test_mode_that_cannot_be(wandb: FakeWandb, tmp_path: Path, mode: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        tracking.replay(record([document(0)]), [document(0)], SETTINGS | {"mode": mode}, tmp_path)


def test_records_are_replayed_from_disk(wandb: FakeWandb, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = Store(tmp_path).cell("a" * 16)
    cell.path.mkdir(parents=True)
    made = record([document(0)], "a" * 16)
    made.config["tracking"] = dict(SETTINGS)
    cell.finish(made, [document(0)])
    assert tracking.main([str(cell.path)]) == 0
    assert [run.arguments["id"] for run in wandb.runs] == ["a" * 16]
    assert wandb.runs[0].arguments["dir"] == str(tmp_path)
    assert tracking.main([str(tmp_path / "runs" / "absent")]) == 2
    assert "no finished record" in capsys.readouterr().err


REAL = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from run_fakes import document
    from test_results import record
    from test_tracking import SETTINGS
    from harness import tracking
    for key in ("a" * 16, "b" * 16):
        tracking.replay(record([document(0)], key, tau=0.5), [document(0)], SETTINGS, Path(sys.argv[1]))
    """
)


@pytest.mark.slow
def test_real_wandb_says_one_line(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"PYTHONPATH": str(Path(__file__).parent), "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    result = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    runs = sorted(path.name.rpartition("-")[2] for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert runs == ["a" * 16, "b" * 16]
