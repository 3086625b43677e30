"""Mirroring benchmarks for a machine without network, and checking what it wrote. All rows are invented."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from evaluation_fakes import suite

from harness.errors import UserError
from harness.evaluation import documents, manifest
from harness.evaluation.manifest import Entry, Manifest
from harness.evaluation.suites import SuiteConfig

PROTOCOL = suite("paper").protocol


def listed(folder: Path, name: str, content: bytes, **more) -> Path:
    """A data file with a manifest that lists it."""
    path = folder / name
    manifest.write_atomically(path, content)
    Manifest({name: Entry(hashlib.sha256(content).hexdigest(), len(content), "gsm8k_cot", **more)}).write(folder)
    return path


def load(name: str, folder: Path, leaf: str | None = None) -> documents.Rows | None:
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


@pytest.mark.parametrize("text", ["{}", "[1]", "not JSON", '{"format": "a browser extension"}'])
def test_other_manifests_and_none_are_no_obstacle(tmp_path, text):
    manifest.verify(tmp_path, tmp_path / "test.jsonl", b"x")
    (tmp_path / "manifest.json").write_text(text)
    manifest.verify(tmp_path, tmp_path / "test.jsonl", b"x")


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
