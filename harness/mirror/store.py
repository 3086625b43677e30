"""A mirror's folder while it is written: what may be replaced, what is kept, and what its manifest says."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import UserError
from harness.mirror import manifest
from harness.mirror.manifest import Entry, Manifest
from harness.models.manifest import file_sha256

Source = dict[str, str | None]


class Store:
    """The folder and its manifest. Every file is written in one step, and listed once it is there."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError where the manifest is damaged."""
        self.folder = folder
        self.manifest = Manifest.read(folder) or Manifest()

    def is_as_listed(self, name: str) -> bool:
        """Whether a listed file is there, unaltered."""
        path = self.folder / name
        return path.is_file() and file_sha256(path) == self.manifest.files[name].sha256

    def is_complete(self, part: str, source: Mapping[str, str | None]) -> bool:
        """Whether a part is listed from this source, and all its files are unaltered."""
        listed = self.manifest.part(part)
        same = all(source.items() <= entry.source.items() for entry in listed.values())
        return bool(listed) and same and all(map(self.is_as_listed, listed))

    def put(self, name: str, content: bytes, entry: Entry, names: Sequence[str]) -> bool:
        """Write and list a data file; False where it was there already.

        Args:
            name: below the folder.
            names: all that it may have, in the order a reader tries them; what the mirror left under the others goes.

        Raises:
            UserError: another file is in its place or before it, and not by the mirror.
        """
        for other in names:
            if other != name and (other in self.manifest.files or names.index(other) < names.index(name)):
                if (self.folder / other).exists():
                    self._check_ours(other)
                    (self.folder / other).unlink()
                self.manifest.files.pop(other, None)
        path = self.folder / name
        fresh = not path.is_file() or file_sha256(path) != entry.sha256
        if fresh:
            if path.exists():
                self._check_ours(name)
            manifest.write_atomically(path, content)
        listed = self.manifest.files.get(name)
        if _says_more({name: entry}, {} if listed is None else {name: listed}):
            self.manifest.files[name] = entry
            self.manifest.write(self.folder)
        return fresh

    def put_folder(
        self, part: str, files: Mapping[str, Path], source: Source, origin: Path | None, more: Sequence[str] = ()
    ) -> bool:
        """Copy files and list them together, so that a part that is listed is whole; False where all were there.

        Args:
            files: what to copy, by the name below the folder.
            origin: a folder that may have a manifest of its own, which the files are compared with.
            more: names of files that were written already and belong to the part.

        Raises:
            UserError: no files, or one was altered since ``origin`` was mirrored.
        """
        if not files:
            raise UserError("DIR", part, "no files to copy")
        entries, fresh = {}, False
        for name, path in files.items():
            digest, known = file_sha256(path), origin and manifest.find_entry(origin, path)
            if known and known.sha256 != digest:
                raise UserError(manifest.KEY, str(path), "is not as the mirror wrote it", f"mirror {origin} again")
            mine = self.folder / name
            if not mine.is_file() or file_sha256(mine) != digest:
                copy_atomically(path, mine)
                fresh = True
            entries[name] = Entry(digest, path.stat().st_size, part, known.source if known else source)
        for name in more:
            path = self.folder / name
            entries[name] = Entry(file_sha256(path), path.stat().st_size, part, source)
        listed = self.manifest.part(part)
        if _says_more(entries, listed):
            for name in listed:
                del self.manifest.files[name]
            self.manifest.files |= entries
            self.manifest.write(self.folder)
        return fresh

    def _check_ours(self, name: str) -> None:
        if name not in self.manifest.files:
            fix = f"move it away; or keep yours: mirror {self.folder} --from {self.folder} lists it in the manifest"
            raise UserError("DIR", str(self.folder), f"{name} is there already, and not by the mirror", fix)


def _says_more(new: Mapping[str, Entry], listed: Mapping[str, Entry]) -> bool:
    """Whether the manifest should change: of the same content, a folder says less than the hub did."""
    if any("folder" in entry.source for entry in new.values()):
        return {name: one.sha256 for name, one in new.items()} != {name: one.sha256 for name, one in listed.items()}
    return new != listed


def entry_of(content: bytes, part: str, source: Source, rows: int, license: str) -> Entry:
    """What the manifest is to say of a data file."""
    return Entry(hashlib.sha256(content).hexdigest(), len(content), part, source, rows, license)


def copy_atomically(source: Path, target: Path) -> None:
    """Copy a file of any size in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
