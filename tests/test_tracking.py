"""wandb as a projection of records: what is said to it, and what a real offline run holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb_files
from run_fakes import document
from test_results import SCORED_ROW, record

from harness import tracking
from harness.errors import UserError
from harness.results.records import Record

SETTINGS = {"name": "wandb", "project": "p", "entity": None, "group": None, "mode": None, "documents": 2}
SWEEP = {"WANDB_SWEEP_ID": "s1", "WANDB_RUN_ID": "agents", "WANDB_PROJECT": "swept", "WANDB_ENTITY": "team"}


class FakeWandb(SimpleNamespace):
    """Remembers every run; ``key`` says whether one is configured."""

    def __init__(self, key: bool = False) -> None:
        super().__init__(
            runs=[], open=0, key=key, errors=SimpleNamespace(CommError=type("CommError", (Exception,), {}))
        )

    def login(self, **_: Any) -> bool:
        return self.key

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def Table(self, columns: list[str], data: list[list[Any]]) -> SimpleNamespace:
        return SimpleNamespace(columns=columns, data=data)

    def Image(self, path: str) -> str:
        return f"image of {Path(path).name}"

    def Artifact(self, name: str, type: str, metadata: dict[str, Any]) -> FakeArtifact:
        return FakeArtifact(name, type, metadata)

    def init(self, **arguments: Any) -> FakeRun:
        assert not self.open, "the run before was not closed"
        run = FakeRun(self, arguments)
        self.runs.append(run)
        return run


class FakeArtifact:
    def __init__(self, name: str, type: str, metadata: dict[str, Any]) -> None:
        self.name, self.type, self.metadata, self.files = name, type, metadata, dict[str, str]()

    def add_file(self, path: str, name: str) -> None:
        self.files[name] = Path(path).read_text()


class FakeRun:
    def __init__(self, wandb: FakeWandb, arguments: dict[str, Any]) -> None:
        self.wandb, self.arguments, self.summary, self.logged = wandb, arguments, dict[str, Any](), dict[str, Any]()
        self.id, self.artifacts = arguments.get("id") or os.environ["WANDB_RUN_ID"], list[FakeArtifact]()

    def log_artifact(self, artifact: FakeArtifact) -> None:
        self.artifacts.append(artifact)

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
    for name in ("WANDB_MODE", *SWEEP):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    return fake


def replay(made: Record, rows: list[dict[str, Any]], settings: dict[str, Any], directory: Path) -> str:
    target = tracking.destination(settings, directory)
    assert target is not None
    return tracking.replay(made, rows, settings, target)


def test_each_cell_is_its_own_run(wandb: FakeWandb, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [document(i, float(i % 2)) for i in range(4)]
    for key, tau in (("a" * 16, 0.7), ("b" * 16, 0.95)):
        replay(record(rows, key, tau=tau, block_size=4), rows, SETTINGS, tmp_path)
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
    replay(record(rows), rows, SETTINGS | {"group": "table2"}, tmp_path)
    replay(record(rows), rows, SETTINGS | {"mode": "offline", "documents": 0}, tmp_path)
    online, offline = wandb.runs
    assert (online.arguments["mode"], online.arguments["group"]) == ("online", "table2")
    assert (offline.arguments["mode"], offline.logged) == ("offline", {})


def test_online_a_run_goes_on_under_its_id(wandb: FakeWandb, tmp_path: Path) -> None:
    """Sent twice it is still one run; offline there is nothing that could go on."""
    wandb.key = True
    rows = [document(0)]
    assert replay(record(rows), rows, SETTINGS, tmp_path) == "0" * 16
    replay(record(rows), rows, SETTINGS | {"mode": "offline"}, tmp_path)
    assert [run.arguments["resume"] for run in wandb.runs] == ["allow", None]


def test_in_a_sweep_the_run_is_the_agents(wandb: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SWEEP.items():
        monkeypatch.setenv(name, value)
    rows = [document(0)]
    target = tracking.destination(SETTINGS, tmp_path)
    assert target == tracking.Destination("swept", "team", "offline", tmp_path)
    assert replay(record(rows), rows, SETTINGS, tmp_path) == "agents"
    [run] = wandb.runs
    assert not {"id", "project", "entity", "resume"} & set(run.arguments), "wandb takes them from the agent"
    assert {"score", "tokens_per_forward", "tokens_per_second"} <= set(run.summary), "what conf/sweep optimises"


def test_table_shows_something_of_every_task(wandb: FakeWandb, tmp_path: Path) -> None:
    rows = [document(i, task=f"bbh_{t}", group="bbh") for t in range(3) for i in range(50)]
    rows += [document(i) for i in range(50)]
    replay(record(rows), rows, SETTINGS | {"documents": 8}, tmp_path)
    shown = [(row[0], row[1]) for row in wandb.runs[0].logged["documents"].data]
    assert shown == [
        ("bbh_0", 0), ("bbh_0", 1), ("bbh_1", 0), ("bbh_2", 0), *(("word_problems", i) for i in range(4))
    ]  # fmt: skip


def test_long_texts_are_clipped_and_token_ids_stay_at_home(wandb: FakeWandb, tmp_path: Path) -> None:
    rows = [document(0, text="x" * 5000, extracted="y" * 2000)]
    replay(record(rows), rows, SETTINGS, tmp_path)
    table = wandb.runs[0].logged["documents"]
    shown = dict(zip(table.columns, table.data[0], strict=True))
    assert shown["text"] == "x" * 2000 + " … [clipped, 5,000 characters]"
    assert shown["extracted"] == "y" * 2000
    assert not {"token_ids", "confidences", "prompt_hash"} & set(shown)


def test_none_and_disabled_go_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    assert tracking.destination({"name": "none"}, tmp_path) is None
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert tracking.destination(SETTINGS, tmp_path) is None


@pytest.mark.parametrize(("mode", "words"), [("online", "needs a wandb key"), ("offlin", "online or offline")])
def test_mode_that_cannot_be(wandb: FakeWandb, tmp_path: Path, mode: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        tracking.destination(SETTINGS | {"mode": mode}, tmp_path)


REAL = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    from run_fakes import document
    from test_results import SCORED_ROW, record
    from test_tracking import SETTINGS, SWEEP, replay
    from harness import tracking
    root = Path(sys.argv[1])
    target = tracking.destination(SETTINGS, root)
    rows = [document(0, text="é" * 3000), SCORED_ROW | {"group": "arc", "task": "arc"}]
    replay(record(rows, "a" * 16, tau=0.5), rows, SETTINGS, root)
    tracking.log_figures(root / "figures", "figures-1", "quick", ["a" * 16], target)
    os.environ |= SWEEP  # as the agent sets them before its command starts, here for a process of its own
    import wandb
    wandb.teardown()
    print(replay(record(rows, "b" * 16, tau=0.5), rows, SETTINGS, root))
    """
)


@pytest.mark.slow
def test_a_real_offline_run_holds_it_all_and_says_one_line(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "figures").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "figures" / "fig3.png")
    (tmp_path / "figures" / "fig3.csv").write_text("x,y\n")
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text("wandb_version: 1\nmethod: {value: mars}\ntau: {value: 0.5}\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"PYTHONPATH": str(Path(__file__).parent), "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    environment |= {"WANDB_SWEEP_PARAM_PATH": str(parameters)}
    result = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "agents\n"
    assert result.stderr.count("\n") == 1, result.stderr
    files = {path.stem: wandb_files.contents(path) for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb")}
    assert set(files) == {"run-" + "a" * 16, "run-figures-1", "run-agents"}

    cell = files["run-" + "a" * 16]
    assert (cell["run"].project, cell["run"].run_group, cell["run"].job_type) == ("p", "quick", "eval")
    assert list(cell["run"].tags) == ["mars", "tiny", "quick"]
    assert cell["config"]["identity"]["method"]["axes"] == {"tau": 0.5}
    assert (cell["summary"]["score"], cell["summary"]["tokens_per_forward"]) == (1.0, 2.0)
    assert cell["summary"]["documents.nrows"] == 2
    assert [(kind, files) for _, kind, files in cell["artifacts"]] == [("run_table", ["documents.table.json"])]
    [table] = (tmp_path / "wandb").glob(f"*{'a' * 16}/files/media/table/*.json")
    rows = [dict(zip(tracking.TABLE_COLUMNS, row, strict=True)) for row in json.loads(table.read_text())["data"]]
    assert [row["acceptance_lengths"] for row in rows] == [[1, 3], []]
    assert rows[0]["text"].endswith("é … [clipped, 3,000 characters]")

    figures = files["run-figures-1"]
    assert (figures["run"].job_type, figures["config"]["cells"]) == ("figures", ["a" * 16])
    assert figures["artifacts"] == [("figures-quick", "figures", ["fig3.csv", "fig3.png"])]
    assert figures["summary"]["fig3._type"] == "image-file"

    swept = files["run-agents"]
    assert (swept["run"].sweep_id, swept["run"].project, swept["run"].entity) == ("s1", "swept", "team")
    assert swept["config"]["tau"] == 0.5
    assert swept["config"]["method"] == "mars", "the sweep's own parameter, by which its pages sort"
    assert swept["summary"]["score"] == 1.0
