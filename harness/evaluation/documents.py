"""Where a task's documents come from: upstream's files, a module of ours, or (None here) the hub through lm-eval.

A module of ours that serves as a task offers ``documents(spec, limit) -> list[dict]`` and ``config(sandbox) -> dict``,
the task in lm-eval's own terms (the keys of its YAML files); ``OPTIONS`` names what ``TaskSpec.options`` may set, each
with its type and least value. It may offer ``environment(suite) -> dict``, which is
called before anything is generated, raises UserError where scoring would fail, and returns what a record should say of
the surroundings.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import UserError
from harness.evaluation.suites import BY_NAME, SuiteConfig, TaskSpec
from harness.mirror import manifest

STOCK = "lm_eval:"
FIX = "restore the file as upstream has it"
Rows = list[dict[str, Any]]


def own_module(spec: TaskSpec) -> ModuleType | None:
    """The module that serves this task, or None where lm-eval's YAML does."""
    if spec.source.startswith(STOCK) or spec.source == BY_NAME:
        return None
    try:
        return importlib.import_module(spec.source)
    except ModuleNotFoundError as error:
        if error.name is None or not spec.source.startswith(error.name):
            raise
        allowed = f"{STOCK}<YAML file below lm_eval/tasks>, or a module that can be imported"
        raise UserError("suite.protocol.<task>.source", spec.source, allowed) from None


def load(spec: TaskSpec, suite: SuiteConfig, leaf: str) -> Rows | None:
    """Documents of a task (or subtask) in upstream's order, or None where the hub has them.

    Raises:
        UserError: the data file is missing, altered since it was mirrored, no file of its format (with the line), or
            lacks a field.
    """
    module = own_module(spec)
    _check_options(leaf, spec, getattr(module, "OPTIONS", {}))
    if module:
        return module.documents(spec, suite.limit)
    if suite.data_dir is None or not spec.data_files:
        return None
    path = find_file(suite.data_dir, [name.format(subtask=leaf) for name in spec.data_files])
    status = path.stat()
    rows = _read_once(Path(suite.data_dir).expanduser(), path, tuple(spec.fields), status.st_mtime_ns, status.st_size)
    if spec.subtask_field is None:
        return rows
    found = [row for row in rows if str(row[spec.subtask_field]).replace(" ", "_") == leaf]
    if not found:
        allowed = f"rows whose {spec.subtask_field} is {leaf.replace('_', ' ')}; there are none"
        fix = "use upstream's whole file, or choose subjects with suite.protocol.<task>.subtasks=[…]"
        raise UserError("suite.data_dir", str(path), allowed, fix)
    return found


def _check_options(name: str, spec: TaskSpec, known: Mapping[str, tuple[type, float]]) -> None:
    """Raises UserError at an option that the task lacks, of another type, or below its least value."""
    for option, value in spec.options.items():
        key = f"suite.protocol.{name}.options.{option}"
        if option not in known:
            raise UserError(key, value, f"one of its options: {', '.join(known) or 'it has none'}")
        kind, least = known[option]
        is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        if not is_number or not least <= value < math.inf:
            raise UserError(key, value, f"a {'whole ' if kind is int else ''}number of at least {least}")


@lru_cache(maxsize=64)
def _read_once(root: Path, path: Path, fields: tuple[str, ...], _mtime: int, _size: int) -> Rows:
    """One reading of a file that several subtasks, and the plan and the run, want."""
    content = _read(path)
    manifest.verify(root, path, content)
    return _rows(path, content, fields)


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


def find_file(data_dir: str, names: Sequence[str]) -> Path:
    """The first of ``names`` below ``data_dir``, or, where that is the benchmark's own folder, without its first part.

    Raises:
        UserError: none exists.
    """
    root = Path(data_dir).expanduser()
    candidates = [
        root.joinpath(*parts) for name in names for parts in (Path(name).parts, Path(name).parts[1:]) if parts
    ]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = " or ".join(str(candidate.absolute()) for candidate in candidates)
    raise UserError(
        "suite.data_dir",
        data_dir,
        f"no file {looked}",
        f"put upstream's {Path(names[0]).name} there, name another folder, or leave suite.data_dir out to use the hub",
    )


def read_rows(path: Path, fields: Sequence[str] = ()) -> Rows:
    """Rows of a data file, by its suffix.

    ``.jsonl``: a JSON object a line. ``.json``: a list of objects, or an object whose "examples" is one. ``.csv``: a
    line of column names, then text. ``.parquet``: as it is.

    Raises:
        UserError: not UTF-8 or not of its format (file and line), a row that is no object or lacks one of ``fields``,
            no rows at all.
    """
    return _rows(path, _read(path), fields)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError("suite.data_dir", str(path), f"a readable file ({error.strerror})") from None


def _rows(path: Path, content: bytes, fields: Sequence[str]) -> Rows:
    readers = {".json": _json, ".csv": _csv, ".parquet": _parquet}
    located = readers.get(path.suffix, _jsonl)(path, content)
    for where, row in located:
        if not isinstance(row, dict):
            raise UserError("suite.data_dir", where, "a JSON object per row", FIX)
        if lacking := [name for name in fields if name not in row]:
            allowed = f"a row needs {', '.join(fields)}; this one lacks {', '.join(lacking)}"
            raise UserError("suite.data_dir", where, allowed, FIX)
    if not located:
        raise UserError("suite.data_dir", str(path), "at least one row; the file is empty")
    return [row for _, row in located]


Located = list[tuple[str, Any]]  # rows with where they stand


def _jsonl(path: Path, content: bytes) -> Located:
    # Only "\n" ends a row: JSON strings may hold the other characters that splitlines breaks at.
    lines = [(i, line) for i, line in enumerate(_text(path, content).split("\n"), 1) if line.strip()]
    return [(f"{path}, line {i}", _parse(line, str(path), first_line=i)) for i, line in lines]


def _json(path: Path, content: bytes) -> Located:
    whole = _parse(_text(path, content), str(path), first_line=1)
    rows = whole.get("examples") if isinstance(whole, dict) else whole
    if not isinstance(rows, list):
        raise UserError("suite.data_dir", str(path), 'a JSON list, or an object whose "examples" is one')
    return [(f"{path}, example {i}", row) for i, row in enumerate(rows, 1)]


def _csv(path: Path, content: bytes) -> Located:
    located: Located = []
    reader = csv.DictReader(io.StringIO(_text(path, content), newline=""), strict=True)
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                allowed = f"as many values as there are columns ({len(reader.fieldnames or [])})"
                raise UserError("suite.data_dir", where, allowed, FIX)
            located.append((where, row))
    except csv.Error as error:
        raise UserError("suite.data_dir", f"{path}, line {reader.line_num}", f"valid CSV ({error})", FIX) from None
    return located


def _parquet(path: Path, content: bytes) -> Located:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
    except (pyarrow.ArrowException, OSError):
        raise UserError("suite.data_dir", str(path), "a Parquet file", FIX) from None
    return [(f"{path}, row {i}", row) for i, row in enumerate(rows, 1)]


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # with or without a byte order mark
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError("suite.data_dir", f"{path}, line {line}", "UTF-8 text", FIX) from None


def _parse(text: str, path: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {first_line + error.lineno - 1}"
        allowed = f"valid JSON ({error.msg} at column {error.colno})"
        raise UserError("suite.data_dir", where, allowed, "correct or remove that line") from None
    except (RecursionError, ValueError) as error:  # too deep, or a number of too many digits
        raise UserError(
            "suite.data_dir", f"{path}, line {first_line}", f"JSON that can be read ({type(error).__name__})", FIX
        ) from None
