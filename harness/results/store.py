"""Content-addressed cells on disk: rows are appended as they finish, the finished record appears whole or not at all.

A cell lives in ``<results_dir>/runs/<key>/``. While it runs it holds ``partial.jsonl`` (one document a line); when it
is done it holds ``documents.parquet`` and ``record.json``, the record written last, so that a record's existence means
that the cell is complete. A killed process leaves a state from which the next one resumes; no process-local state
matters, so any launcher may run the cells.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.results.records import DOCUMENT_TYPES, Record

log = logging.getLogger(__name__)

SYNC_SECONDS = 2.0  # rows reach the operating system one by one, and the disk at least this often

DONE, PARTIAL, FAILED, MISSING = "done", "partial", "failed", "missing"


class StoredCell:
    """One directory of the store, named by its run key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = path.name
        self.record_path = path / "record.json"
        self.documents_path = path / "documents.parquet"
        self.partial_path = path / "partial.jsonl"
        self.error_path = path / "error.txt"

    def state(self) -> str:
        """``done``, ``failed`` (a traceback and no record), ``partial`` (rows and no record) or ``missing``."""
        if self.record_path.exists():
            return DONE
        if self.error_path.exists():
            return FAILED
        return PARTIAL if self.num_partial_rows() else MISSING

    def record(self) -> Record:
        """The finished record."""
        return Record.from_dict(json.loads(self.record_path.read_text(encoding="utf-8")))

    def scores(self) -> list[dict[str, Any]]:
        """What a paired comparison needs of the finished cell's rows."""
        return self.documents(("group", "task", "doc_id", "score", "token_ids"))

    def documents(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The finished cell's rows, as they were given to ``finish``; or only some of their columns."""
        import pyarrow.parquet as pq

        # ParquetFile, because read_table imports pandas: half a second of a run that finds everything done.
        return _unflatten(pq.ParquetFile(self.documents_path).read(columns and list(columns)).to_pylist())

    def num_partial_rows(self) -> int:
        """Complete lines of the partial file."""
        try:
            with self.partial_path.open("rb") as file:
                return sum(line.endswith(b"\n") for line in file)
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def lock(self, on_wait: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Hold the cell for this process (see ``file_lock``)."""
        return file_lock(self.path / "lock", on_wait)

    @contextlib.contextmanager
    def appending(self) -> Iterator[RowAppender]:
        """Open the partial file for more rows, behind its last whole row. Only under ``lock``."""
        self.error_path.unlink(missing_ok=True)
        appender = RowAppender(self.partial_path)
        try:
            yield appender
        finally:
            appender.close()

    def finish(self, record: Record, documents: Sequence[Mapping[str, Any]]) -> None:
        """Write the documents, then the record, each atomically, and drop what only a running cell needs."""
        import pyarrow.parquet as pq

        temporary = self.documents_path.with_suffix(".tmp")
        pq.write_table(_to_table(documents), temporary, compression="zstd")
        _replace(temporary, self.documents_path)
        write_atomically(self.record_path, json.dumps(record.to_dict(), indent=1, ensure_ascii=False) + "\n")
        self.error_path.unlink(missing_ok=True)
        self.partial_path.unlink(missing_ok=True)

    def fail(self, text: str) -> None:
        """Leave the traceback of a failed attempt; rows already generated stay for the next one."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.error_path, text)


class RowAppender:
    """Appends rows to a JSON-lines file. A torn tail, left by a kill, is cut off when the file is opened.

    Attributes:
        rows: the rows found in the file, in order.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        self.rows = self._recover()
        self._synced = time.monotonic()

    def _recover(self) -> list[dict[str, Any]]:
        """Read whole rows; truncate at the first line that is not one."""
        rows, end = [], 0
        self._file.seek(0)
        for line in self._file:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n") or not isinstance(row, dict):
                break
            rows.append(row)
            end += len(line)
        self._file.truncate(end)
        return rows

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row; it survives a kill of the process at once, and of the machine after ``SYNC_SECONDS``."""
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        now = time.monotonic()
        if now - self._synced >= SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = now

    def close(self) -> None:
        """Sync and close."""
        os.fsync(self._file.fileno())
        self._file.close()


class Store:
    """All cells below one results directory."""

    def __init__(self, results_dir: str | Path) -> None:
        self.root = Path(results_dir) / "runs"

    def check_writable(self) -> None:
        """Find out before any work whether a record could be kept.

        Raises:
            UserError: nothing can be written there.
        """
        probe = self.root / f".{os.getpid()}.probe"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            allowed = f"a folder that can be written to ({error.strerror})"
            raise UserError("results_dir", str(self.root.parent), allowed, "results_dir=DIR") from None

    def cell(self, key: str) -> StoredCell:
        """The cell of a run key, whether or not anything is there yet."""
        return StoredCell(self.root / key)

    def scores(self, key: str) -> list[dict[str, Any]]:
        """``StoredCell.scores`` of a run key."""
        return self.cell(key).scores()

    def records(self) -> list[Record]:
        """Every finished record, oldest first; one that cannot be read (another version's) is named and passed over."""
        found = []
        for path in self.root.glob("[0-9a-f]*/record.json"):
            try:
                found.append(StoredCell(path.parent).record())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("%s is not read: %s: %s", path, type(error).__name__, error)
        return sorted(found, key=lambda record: record.created)


@contextlib.contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file for this process; waits for another holder after calling ``on_wait``.

    The lock is the kernel's (``flock``), so it dies with its process and is never stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` so that a reader sees the old file or the new one, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # processes may write the same file at once
    try:
        temporary.write_text(text, encoding="utf-8")
        _replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _replace(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


# Metrics differ between suites; each becomes a Parquet column of its own, so that pandas reads plain columns.
_METRIC_PREFIX = "metric."


def _to_table(documents: Sequence[Mapping[str, Any]]) -> Any:
    import pyarrow as pa

    flat = []
    for document in documents:
        row = {key: value for key, value in document.items() if key != "metrics"}
        row |= {_METRIC_PREFIX + name: value for name, value in document.get("metrics", {}).items()}
        flat.append(row)
    columns = dict.fromkeys(key for row in flat for key in row)
    return pa.table({key: pa.array([row.get(key) for row in flat], _arrow_type(key)) for key in columns})


def _arrow_type(column: str) -> Any:
    """Declared type of a known column (an all-empty list column would otherwise have none), else inferred."""
    import pyarrow as pa

    name = "double" if column.startswith(_METRIC_PREFIX) else DOCUMENT_TYPES.get(column)
    if name is None:
        return None
    if name.startswith("list<"):
        return pa.list_(pa.type_for_alias(name[len("list<") : -1]))
    return pa.type_for_alias(name)


def _unflatten(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    documents = []
    for row in rows:
        document = {key: value for key, value in row.items() if not key.startswith(_METRIC_PREFIX)}
        document["metrics"] = {
            key.removeprefix(_METRIC_PREFIX): value
            for key, value in row.items()
            if key.startswith(_METRIC_PREFIX) and value is not None
        }
        documents.append(document)
    return documents
