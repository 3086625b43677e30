"""Sending what is in results/ to wandb: each cell once, and what a wandb agent makes of a sweep."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import omegaconf
import pytest
import run_fakes
import synthetic_records as synthetic
import yaml
from run_fakes import FakeEvaluation, command, document, install, settings, write_checkpoints
from test_results import record
from test_tracking import SWEEP, FakeWandb
from test_tracking import wandb as wandb  # the fixture

from harness import grid, run, sync, tracking
from harness.config import CONF, ROOT
from harness.results.store import StoredCell, write_atomically

SWEEPS = sorted((CONF / "sweep").glob("*.yaml"))


def make_cells(root: Path, seeds: int = 3) -> None:
    """As many cells of two documents."""
    rows = [document(0), document(1, 0.0)]
    for seed in range(seeds):
        synthetic.write(root, synthetic.identity(*synthetic.AR, seed=seed), rows, synthetic.times(seed))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder of three cells."""
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    make_cells(tmp_path / "results")
    return tmp_path / "results"


def ids(wandb: FakeWandb) -> list[str]:
    return [run.arguments["id"] for run in wandb.runs]


def test_each_cell_is_sent_once(wandb: FakeWandb, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [path.name for path in sorted(results.glob("runs/[0-9a-f]*"))]
    assert sync.main([str(results), "--dry-run"]) == 0
    assert not wandb.runs
    assert capsys.readouterr().out.endswith("3 would be sent\n")
    assert sync.main([str(results)]) == 0
    assert sorted(ids(wandb)) == keys
    assert capsys.readouterr().out.endswith("3 sent\n")
    assert {run.arguments["dir"] for run in wandb.runs} == {str(results)}
    assert wandb.runs[0].arguments["project"] == "multi-token-harness", "the default's: these cells were not tracked"
    assert sync.main([str(results / "runs")]) == 0, "another way to name them"
    assert capsys.readouterr().out == "3 already there\n"
    assert sync.main([str(results / "runs" / keys[0]), "--force"]) == 0
    assert ids(wandb)[3:] == [keys[0]]


def test_another_place_is_another_matter(wandb: FakeWandb, results: Path, tmp_path: Path) -> None:
    """And what was written offline goes online once there is a key."""
    [path] = list(results.glob("runs/[0-9a-f]*"))[:1]
    for arguments in (
        [],
        [],
        ["--project", "p"],
        ["--entity", "e"],
        ["--dir", str(tmp_path / "x")],
        ["--project", "p"],
    ):
        assert sync.main([str(path), *arguments]) == 0
    places = [(r.arguments["project"], r.arguments["entity"], Path(r.arguments["dir"]).name) for r in wandb.runs]
    usual = "multi-token-harness"
    assert places == [(usual, None, "results"), ("p", None, "results"), (usual, "e", "results"), (usual, None, "x")]
    wandb.key = True
    assert sync.main([str(path)]) == 0
    assert sync.main([str(path), "--mode", "offline"]) == 0
    assert [run.arguments["mode"] for run in wandb.runs[4:]] == ["online"]


def test_changed_record_is_sent_again(wandb: FakeWandb, results: Path) -> None:
    assert sync.main([str(results)]) == 0
    path = next(iter(results.glob("runs/*/record.json")))
    path.write_text(path.read_text().replace('"created": "20', '"created": "21'))
    assert sync.main([str(results)]) == 0
    assert ids(wandb)[3:] == [path.parent.name]


def test_damaged_cells_are_named_and_the_rest_is_sent(
    wandb: FakeWandb, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_json, no_pages, whole = sorted(results.glob("runs/[0-9a-f]*"))
    (no_json / "record.json").write_text("{")
    synthetic.scramble(no_pages / "documents.parquet")
    copy = shutil.copytree(whole, results.parent / "x" / whole.name)
    assert sync.main([str(results), str(copy)]) == 1
    assert ids(wandb) == [whole.name]
    out, err = capsys.readouterr()
    assert f"failed: {no_json}: record.json is not JSON" in err
    assert str(no_pages) in err
    assert f"left out: {copy}: a copy of {whole}" in err
    assert sorted(out.splitlines()[-1].split(", ")) == ["1 left out", "1 sent", "2 failed"]
    assert sync.main([str(results.parent / "absent")]) == 1
    assert "no such folder" in capsys.readouterr().err


def test_mistakes_and_disabled_wandb(
    wandb: FakeWandb, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sync.main([str(results), "--mode", "online"]) == 2
    assert "wandb login" in capsys.readouterr().err
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert sync.main([str(results)]) == 2
    assert not wandb.runs


def test_what_cannot_work_is_told_before_anything_is_sent(
    wandb: FakeWandb, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (results / "file").write_text("")
    for project in ("a/b", "", "x" * 129):
        assert sync.main([str(results), "--project", project]) == 2
        assert f"tracking.project={project!r}" in capsys.readouterr().err
    assert sync.main([str(results), "--dir", str(results / "file")]) == 2
    assert "a folder that can be written" in capsys.readouterr().err
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    assert sync.main([str(results)]) == 2
    assert "unset WANDB_SWEEP_ID" in capsys.readouterr().err
    monkeypatch.delenv("WANDB_SWEEP_ID")
    monkeypatch.setenv("WANDB_MODE", "dryrun")
    assert sync.main([str(results)]) == 2
    assert "WANDB_MODE='dryrun'" in capsys.readouterr().err
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    assert sync.main([str(results)]) == 2
    assert "wandb, which cannot be imported (ModuleNotFoundError" in capsys.readouterr().err
    assert not wandb.runs


def test_a_server_that_does_not_answer_is_waited_for_once(
    wandb: FakeWandb, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of many cells would wait for each of them; offline goes on."""
    waited: list[float] = []

    def init(settings: dict[str, Any], **_: Any) -> None:
        waited.append(settings["init_timeout"])
        raise wandb.errors.CommError("no such\nhost")

    monkeypatch.setattr(tracking, "_silent", {})
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", init)
        patch.setattr(wandb, "key", True)
        assert sync.main([str(results)]) == 1
        assert waited == [tracking.PATIENCE]
        assert capsys.readouterr().err.count("no such host") == 2
    assert sync.main([str(results)]) == 0, "nothing of it counted as sent"
    assert len(wandb.runs) == 3


def test_a_cell_that_goes_while_others_are_sent_fails_alone(
    wandb: FakeWandb, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, last = sorted(results.glob("runs/[0-9a-f]*"))
    title = tracking.title

    def remove(record: Any) -> str:
        shutil.rmtree(last, ignore_errors=True)
        return title(record)

    monkeypatch.setattr(tracking, "title", remove)
    assert sync.main([str(first), str(second), str(last)]) == 1
    assert sorted(ids(wandb)) == [first.name, second.name]
    assert f"failed: {last}: FileNotFoundError" in capsys.readouterr().err


def test_what_a_cell_ran_with_is_kept(wandb: FakeWandb, results: Path) -> None:
    path = next(iter(results.glob("runs/*/record.json")))
    made = json.loads(path.read_text())
    own = {"name": "wandb", "project": "mine", "entity": "me", "group": "table2", "mode": "offline", "documents": 1}
    made["config"]["tracking"] = own
    path.write_text(json.dumps(made))
    wandb.key = True
    assert sync.main([str(path.parent)]) == 0
    [sent] = wandb.runs
    assert {name: sent.arguments[name] for name in ("project", "entity", "group")} == {
        "project": "mine", "entity": "me", "group": "table2",
    }  # fmt: skip
    assert sent.arguments["mode"] == "online", "a cell that ran offline goes online later"
    assert len(sent.logged["documents"].data) == 1


def test_a_ledger_that_cannot_be_read_is_told(
    wandb: FakeWandb, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync.main([str(results)]) == 0
    (results / "wandb" / "synced.json").write_text("[]")
    assert sync.main([str(results)]) == 0
    assert len(wandb.runs) == 6
    assert "nothing counts as sent" in capsys.readouterr().err
    assert (results / "wandb" / "synced.damaged").read_text() == "[]", "what could be read from it is not lost"
    assert sync.main([str(results)]) == 0
    assert len(wandb.runs) == 6
    ledger = json.loads((results / "wandb" / "synced.json").read_text())
    one, *_ = ledger["offline multi-token-harness"]
    ledger["offline multi-token-harness"][one] = None
    (results / "wandb" / "synced.json").write_text(json.dumps(ledger | {"comment": "by hand"}))
    assert sync.main([str(results)]) == 0
    assert ids(wandb)[6:] == [one], "one broken entry loses no other"


def _send_all(results: Path, sent: Path, turn: int) -> None:
    def replay(record: Any, *_: object) -> str:
        with sent.open("a") as file:
            file.write(f"{record.key}\n")
        return str(record.key)

    def slowly(path: Path, text: str) -> None:
        time.sleep(0.01)  # for others to read what this is about to replace
        write_atomically(path, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "replay", replay)
        patch.setattr(sync, "write_atomically", slowly)
        target = tracking.Destination("p", None, "offline", results)
        paths = sorted(results.glob("runs/[0-9a-f]*"))
        for path in paths[turn:] + paths[:turn]:
            sync.send(StoredCell(path), {"group": None, "documents": 0}, target)


def test_two_at_once_send_nothing_twice(results: Path, tmp_path: Path) -> None:
    make_cells(results, 12)
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_send_all, args=(results, tmp_path / "sent", 4 * n)) for n in range(3)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    sent = (tmp_path / "sent").read_text().split()
    assert len(sent) == len(set(sent)) == len(list(results.glob("runs/[0-9a-f]*")))
    assert set(sync.Ledger(results).read()["offline p"]) == set(sent)


# --- what a run sends by itself


@pytest.fixture
def evaluation(wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEvaluation:
    fake = FakeEvaluation()
    install(monkeypatch, fake)
    write_checkpoints(tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Run keys of every drawing, which is a file that names them."""
    found: list[set[str]] = []

    def draw(cells: list[StoredCell], folder: Path) -> None:
        found.append({cell.key for cell in cells})
        (folder / "fig3.png").write_text(" ".join(sorted(found[-1])))

    monkeypatch.setattr(sync, "draw", draw)
    return found


def tracked(tmp_path: Path, *overrides: str) -> list[str]:
    return [*(o for o in settings(tmp_path) if o != "tracking=none"), *overrides]


def with_tracking(plan: grid.Plan, name: str, value: Any) -> grid.Plan:
    """The same sweep, one setting of its tracking changed."""
    for cell in plan.cells:
        omegaconf.OmegaConf.update(cell.cfg, f"tracking.{name}", value)
    return plan


def test_a_sweep_sends_its_cells_and_then_its_figures_once(
    evaluation: FakeEvaluation,
    wandb: FakeWandb,
    drawn: list[set[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = ["-m", "method=mars,ar_sft", *tracked(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(sync, "draw", lambda *_: 1 / 0)
        assert command(*sweep) == 0, "trouble with figures fails nothing"
    assert "figures were not tracked (ZeroDivisionError" in capsys.readouterr().err
    plan = grid.make_plan(sweep[1:], multirun=True)
    for name, value, usual in (("figures", False, True), ("name", "none", "wandb")):
        run._track_figures(with_tracking(plan, name, value))
        with_tracking(plan, name, usual)
    assert command("method=mars", *tracked(tmp_path)) == 0, "one cell is no sweep"
    assert not drawn
    keys = {one.arguments["id"] for one in wandb.runs}
    assert len(wandb.runs) == len(keys) == 2
    assert command(*sweep) == 0
    [*_, figures] = wandb.runs
    assert drawn == [keys]
    assert figures.arguments["job_type"] == "figures"
    assert figures.arguments["group"] == "quick"
    assert set(figures.arguments["config"]["cells"]) == keys
    [artifact] = figures.artifacts
    assert (artifact.name, artifact.type, artifact.files) == (
        "figures-quick", "figures", {"fig3.png": " ".join(sorted(keys))},
    )  # fmt: skip
    assert figures.logged == {"fig3": "image of fig3.png"}
    assert command(*sweep) == 0
    assert sync.main([str(tmp_path / "results"), "--figures"]) == 0
    assert len(wandb.runs) == 3, "all of it is there"
    run._track_figures(dataclasses.replace(plan, cells=plan.cells[:1]))
    assert [one.arguments["job_type"] for one in wandb.runs[3:]] == ["figures"], "another set of cells"
    assert wandb.runs[-1].arguments["id"] != figures.arguments["id"]


def test_experiments_are_drawn_apart(wandb: FakeWandb, results: Path, drawn: list[set[str]]) -> None:
    first, *_ = paths = sorted(results.glob("runs/[0-9a-f]*"))
    synthetic.edit(first, lambda found: found["config"].update(tracking={"name": "wandb", "group": "mine"}))
    assert sync.main([str(results), "--figures"]) == 0
    assert sorted(map(sorted, drawn)) == sorted([[first.name], sorted(path.name for path in paths[1:])])
    assert sorted(run.arguments["group"] for run in wandb.runs[3:]) == ["mine", "quick"]


# --- wandb agents


def test_under_an_agent_a_done_cell_still_reports(
    evaluation: FakeEvaluation, wandb: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers become the new run's; and none of it is sent again under its key."""
    for name, value in SWEEP.items():
        monkeypatch.setenv(name, value)
    for agents in ("first", "second"):
        monkeypatch.setenv("WANDB_RUN_ID", agents)
        assert command("method=mars", "tau=0.7", *tracked(tmp_path)) == 0
    assert len(evaluation.generated) == run_fakes.COUNT, "once"
    assert [run.id for run in wandb.runs] == ["first", "second"]
    assert all({"score", "tokens_per_forward"} <= set(run.summary) for run in wandb.runs)
    for name in SWEEP:
        monkeypatch.delenv(name)
    assert sync.main([str(tmp_path / "results"), "--project", "swept", "--entity", "team"]) == 0
    assert len(wandb.runs) == 2


def test_an_agents_command_is_one_cell(
    evaluation: FakeEvaluation,
    wandb: FakeWandb,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    assert command("-m", "method=mars,ar_sft", *tracked(tmp_path)) == 2
    assert "one cell under a wandb agent" in capsys.readouterr().err
    assert not evaluation.generated
    run._check_agent(grid.make_plan(["method=mars,ar_sft", *tracked(tmp_path, "tracking=none")], multirun=True))


def agents_commands(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What wandb's own agent would start for every combination of a sweep's values."""
    from wandb import wandb_agent

    started: list[list[str]] = []
    monkeypatch.setattr(
        wandb_agent, "AgentProcess", lambda command, **_: SimpleNamespace(command=started.append(command))
    )
    for name, value in {**SWEEP, "WANDB_DIR": str(tmp_path), "WANDB_SWEEP_PARAM_PATH": ""}.items():
        monkeypatch.setenv(name, value)  # the agent sets some; all of them go with the test
    sweep = yaml.safe_load(path.read_text(encoding="utf-8"))  # as ``wandb sweep`` does
    assert sweep["method"] == "grid"
    agent = wandb_agent.Agent(api=None, queue=None)
    agent._sweep_command = sweep["command"]
    names = list(sweep["parameters"])
    for values in product(*(one.get("values", [one.get("value")]) for one in sweep["parameters"].values())):
        args = {name: {"value": value} for name, value in zip(names, values, strict=True)}
        agent._command_run({"run_id": "agents", "program": sweep["program"], "args": args})
    return started


def cell_of(overrides: list[str], others: list[str], other: grid.Cell) -> grid.Cell:
    """The cell of a command line; where it chooses the same groups as another's, nothing is composed again."""
    changed = [one.partition("=") for one in overrides if one not in others]
    if {name for name, _, _ in changed} & {"method", "model", "suite"}:
        [found] = grid.make_plan(overrides, multirun=False).cells
        return found
    cfg = other.cfg.copy()
    for name, _, value in changed:
        omegaconf.OmegaConf.update(cfg, name, yaml.safe_load(value))
    return grid.make_cell(cfg)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweeps_are_what_an_agent_can_run(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = agents_commands(path, monkeypatch, tmp_path)
    for one in commands:
        assert one[:4] == ["/usr/bin/env", "python", "-m", "harness.run"]
    overrides = [one[4:] for one in commands]
    assert len({tuple(one) for one in overrides}) == len(commands) > 1
    [first] = grid.make_plan(overrides[0], multirun=False).cells
    assert first.cfg.tracking.name == "wandb"
    cells = [first, *(cell_of(one, overrides[0], first) for one in overrides[1:])]  # each of them is valid
    assert len({cell.key for cell in cells}) == len(cells), "each is a cell of its own"
    optimised = yaml.safe_load(path.read_text())["metric"]["name"]
    assert optimised in tracking.summary(record([document(0)]))


@pytest.mark.slow
def test_an_agents_command_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a process, up to what it would decode."""
    one = agents_commands(CONF / "sweep" / "tau.yaml", monkeypatch, tmp_path)[0]
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HARNESS_RESULTS": str(tmp_path)}
    result = subprocess.run(
        [*one, "dry_run=true"], env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert "mars" in result.stdout
    assert "0.5" in result.stdout
