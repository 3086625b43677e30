"""Where a task's documents come from: upstream's files, a module of ours, or (None here) the hub through lm-eval.

A module of ours that serves as a task offers ``documents(spec, limit) -> list[dict]`` and ``config() -> dict``, the
task in lm-eval's own terms (the keys of its YAML files).
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import UserError
from harness.evaluation.suites import SuiteConfig, TaskSpec

STOCK = "lm_eval:"


def own_module(spec: TaskSpec) -> ModuleType | None:
    """The module that serves this task, or None where lm-eval's YAML does."""
    return None if spec.source.startswith(STOCK) else importlib.import_module(spec.source)


def load(spec: TaskSpec, suite: SuiteConfig, leaf: str) -> list[dict[str, Any]] | None:
    """Documents of a task (or subtask) in upstream's order, or None where the hub has them.

    Raises:
        UserError: the data file is missing, is no file of its format (with the line), or lacks a field.
    """
    if module := own_module(spec):
        return module.documents(spec, suite.limit)
    if suite.data_dir is None or spec.data_file is None:
        return None
    return read_rows(find_file(suite.data_dir, spec.data_file.format(subtask=leaf)), spec.fields)


def data_hash(spec: TaskSpec, suite: SuiteConfig, leaf: str) -> str:
    """Content hash of the documents, or the pinned hub revision."""
    rows = load(spec, suite, leaf)
    if rows is None:
        return f"hub:{spec.revision or 'main'}"
    return hash_rows(rows)


def hash_rows(rows: Sequence[dict[str, Any]]) -> str:
    """SHA-256 of rows as canonical JSON."""
    return hashlib.sha256(_canonical(rows)).hexdigest()


def _canonical(rows: Sequence[dict[str, Any]]) -> bytes:
    # Half of a surrogate pair may stand in JSON, though in no valid text.
    return json.dumps(rows, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")


def find_file(data_dir: str, name: str) -> Path:
    """Find ``name`` below ``data_dir``, or, where that is the benchmark's own folder, without its first part.

    Raises:
        UserError: neither exists.
    """
    root = Path(data_dir).expanduser()
    relative = Path(name)
    candidates = [root / relative, root.joinpath(*relative.parts[1:])] if len(relative.parts) > 1 else [root / relative]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = " or ".join(str(candidate.absolute()) for candidate in candidates)
    raise UserError(
        "suite.data_dir",
        data_dir,
        f"no file {looked}",
        f"put upstream's {relative.name} there, name another folder, or leave suite.data_dir out to use the hub",
    )


def read_rows(path: Path, fields: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows of a ``.jsonl`` file, or of a ``.json`` file that holds a list or an object with "examples".

    Raises:
        UserError: not UTF-8 or not JSON (file and line), a row that is no object or lacks one of ``fields``, no rows at
            all.
    """
    text = _read_text(path)
    if path.suffix == ".json":
        whole = _parse(text, str(path), first_line=1)
        rows = whole.get("examples") if isinstance(whole, dict) else whole
        if not isinstance(rows, list):
            raise UserError("suite.data_dir", str(path), 'a JSON list, or an object whose "examples" is one')
        located = [(f"{path}, example {i}", row) for i, row in enumerate(rows, 1)]
    else:
        # Only "\n" ends a row: JSON strings may hold the other characters that splitlines breaks at.
        lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
        located = [(f"{path}, line {i}", _parse(line, str(path), first_line=i)) for i, line in lines]
    for where, row in located:
        if not isinstance(row, dict):
            raise UserError("suite.data_dir", where, "a JSON object per row", "restore the file as upstream has it")
        if lacking := [name for name in fields if name not in row]:
            allowed = f"a row needs {', '.join(fields)}; this one lacks {', '.join(lacking)}"
            raise UserError("suite.data_dir", where, allowed, "restore the file as upstream has it")
    if not located:
        raise UserError("suite.data_dir", str(path), "at least one row; the file is empty")
    return [row for _, row in located]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        where = f"{path}, line {line}"
        raise UserError("suite.data_dir", where, "UTF-8 text", "restore the file as upstream has it") from None
    except OSError as error:
        raise UserError("suite.data_dir", str(path), f"a readable file ({error.strerror})") from None


def _parse(text: str, path: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {first_line + error.lineno - 1}"
        allowed = f"valid JSON ({error.msg} at column {error.colno})"
        raise UserError("suite.data_dir", where, allowed, "correct or remove that line") from None
