"""``manifest.json`` of a mirrored data folder: what each file was when the mirror wrote it, looked up when it is read.

A folder without one is fine: upstream's files, put there by hand. Other programs' manifest.json are left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from harness.errors import UserError

NAME = "manifest.json"
FORMAT = "multi-token-harness data"
VERSION = 1
PACKAGES = ("multi-token-harness", "lm_eval", "datasets", "huggingface_hub", "nltk", "transformers")
KEY = "suite.data_dir"


@dataclass(frozen=True)
class Entry:
    """One file as it was written.

    Attributes:
        sha256: of the content, 64 hex digits.
        bytes: its length.
        part: what it is for: a benchmark's name in ``conf/suite/protocol``, or the folder of an nltk resource, a model
            or a checkpoint.
        source: where it came from: dataset, config, split and revision; or a folder.
        rows: documents in it, None where it holds none.
        license: upstream's, where known.
    """

    sha256: str
    bytes: int
    part: str
    source: dict[str, str | None] = field(default_factory=dict)
    rows: int | None = None
    license: str = ""


@dataclass
class Manifest:
    """All files of a mirror by their path below its folder ("gsm8k/test.jsonl"); ``created`` is ISO 8601, UTC."""

    files: dict[str, Entry] = field(default_factory=dict)
    created: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest of a folder, or None where there is none of ours.

        Raises:
            UserError: it is ours and cannot be read: damaged, or of another version of the format.
        """
        path = folder / NAME
        try:
            status = path.stat()
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        found = _read(path, status.st_mtime_ns, status.st_size)
        return None if found is None else replace(found, files=dict(found.files))

    def write(self, folder: Path) -> None:
        """Write it in one step, as this moment and these versions."""
        self.created = datetime.now(UTC).isoformat(timespec="seconds")
        self.versions = {name: found for name in PACKAGES if (found := _version(name))}
        whole = {"format": FORMAT, "format_version": VERSION, **asdict(self)}
        whole["files"] = dict(sorted(whole["files"].items()))
        write_atomically(folder / NAME, (json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode())

    def part(self, name: str) -> dict[str, Entry]:
        """The files of one part."""
        return {path: entry for path, entry in self.files.items() if entry.part == name}


def verify(root: Path, path: Path, content: bytes) -> None:
    """Compare a data file that was just read with the manifest that lists it.

    Args:
        root: the folder named as suite.data_dir. It may be a benchmark's own; the manifest then lies above it.

    Raises:
        UserError: it is not as the mirror wrote it, or the manifest is damaged.
    """
    entry = find_entry(root, path)
    if entry is None:
        return
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256:
        raise UserError(
            KEY,
            str(path),
            f"as the mirror wrote it (SHA-256 {entry.sha256[:12]}…, found {found[:12]}…)",
            f"python -m harness.data mirror DIR again, or remove it from {NAME} if the change is yours",
        )


def find_entry(root: Path, path: Path) -> Entry | None:
    """What the manifest in ``root``, or else the one in the folder above it, says of a file."""
    root, path = Path(os.path.abspath(root)), Path(os.path.abspath(path))
    for folder in (root, root.parent):
        manifest = Manifest.read(folder)
        if manifest is not None and path.is_relative_to(folder):
            return manifest.files.get(path.relative_to(folder).as_posix())
    return None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file in one step, so that no reader and no interruption sees half of it; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are private
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=64)
def _read(path: Path, _mtime: int, _size: int) -> Manifest | None:
    fix = "python -m harness.data mirror DIR writes it anew once it is deleted"
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise UserError(KEY, str(path), f"a readable file ({error.strerror})") from None
    try:
        whole: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, a number of too many digits, or too deep
        if FORMAT not in text:
            return None
        raise UserError(KEY, str(path), f"valid JSON ({error})", fix) from None
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        return None
    if whole.get("format_version") != VERSION:
        allowed = f"format_version {VERSION}, found {whole.get('format_version')!r}"
        raise UserError(KEY, str(path), allowed, "use the version of this harness that wrote it, or " + fix)
    try:
        files = {name: Entry(**entry) for name, entry in whole["files"].items()}
        if not all(_is_sound(entry) for entry in files.values()):
            raise TypeError
        if outside := [name for name in files if name.startswith("/") or ".." in PurePosixPath(name).parts]:
            raise UserError(KEY, str(path), f"paths below its folder, and {outside[0]} is not", fix)
        return Manifest(files, str(whole["created"]), dict(whole["versions"]))
    except (KeyError, TypeError, AttributeError, ValueError):
        allowed = f"created, versions, and files, each with {', '.join(one.name for one in fields(Entry))}"
        raise UserError(KEY, str(path), allowed, fix) from None


def _is_sound(entry: Entry) -> bool:
    texts, rows = (entry.sha256, entry.part), entry.rows
    return (
        all(isinstance(one, str) for one in texts)
        and isinstance(entry.source, dict)
        and (rows is None or isinstance(rows, int))
    )
