"""Replays finished cells into wandb at any later time, each once.

    python -m harness.sync                          # what is in results/ and was not sent yet
    python -m harness.sync DIR … --project paper    # of other folders, into another project
    python -m harness.sync --figures                # also the figures and tables of each experiment

What was sent where is remembered in ``wandb/synced.json`` of the results folder, also by runs that track while they
run. A cell goes again when its record changed, or with ``--force``; it keeps its run id, the run key, so that online
it never becomes a second run. Exit status: 0 all is there, 1 some failed, 2 a mistake in the command.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness import tracking
from harness.config import CONF, ROOT
from harness.errors import UserError
from harness.results.records import Record
from harness.results.store import StoredCell, file_lock, write_atomically
from harness.tracking import Destination


class Ledger:
    """What was sent from a results folder, by destination and run key; several processes may write it at once."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / "wandb"
        self.path = self.folder / "synced.json"

    def read(self) -> dict[str, dict[str, dict[str, str]]]:
        """Entries (``digest``, ``run``, ``sent``) by destination and key; none, and told so, if the file is damaged.

        Raises:
            OSError: it cannot be read, which does not mean that nothing was sent.
        """
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("not an object")
        except FileNotFoundError:
            return {}
        except ValueError as error:
            _say(f"{self.path} is damaged ({error}): nothing counts as sent")
            return {}
        parts = {where: sent for where, sent in found.items() if isinstance(sent, dict)}
        return {
            where: {key: one for key, one in sent.items() if isinstance(one, dict)} for where, sent in parts.items()
        }

    def check_writable(self) -> None:
        """Fail before anything is sent where it could not be remembered.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            allowed = f"a folder that can be written, and {error.filename or self.folder} cannot ({error.strerror})"
            raise UserError("--dir", str(self.folder.parent), allowed, "--dir FOLDER, with another") from None

    def has(self, where: Destination, key: str, digest: str) -> bool:
        """Whether this very content was sent there."""
        return self.read().get(_place(where), {}).get(key, {}).get("digest") == digest

    def knows(self, key: str, digest: str) -> bool:
        """Whether this very content was sent anywhere."""
        return any(sent.get(key, {}).get("digest") == digest for sent in self.read().values())

    def add(self, where: Destination, key: str, digest: str, run_id: str) -> None:
        """Remember that it was sent."""
        with file_lock(self.folder / ".synced.lock", on_wait=lambda: None):
            entries = self.read()
            sent = datetime.now(UTC).isoformat(timespec="seconds")
            if not entries and self.path.exists():  # damaged: somebody may still read from it what was sent
                self.path.replace(self.path.with_suffix(".damaged"))
            entries.setdefault(_place(where), {})[key] = {"digest": digest, "run": run_id, "sent": sent}
            write_atomically(self.path, json.dumps(entries, indent=1) + "\n")

    def sending(self, key: str) -> Any:
        """Lock of one key: of two processes that want to send it the second waits, and finds it sent."""
        return file_lock(self.folder / ".sending" / key, on_wait=lambda: None)


def send(cell: StoredCell, settings: Mapping[str, Any], target: Destination, force: bool = False) -> bool:
    """Make a finished cell a run, unless it is one there already (False).

    Args:
        settings: a ``tracking`` config (group, documents).
    """
    ledger, digest = Ledger(target.directory), _digest(cell)
    with ledger.sending(cell.key):
        if not force and ledger.has(target, cell.key, digest):
            return False
        rows = cell.documents((*tracking.TABLE_COLUMNS, "group"))
        ledger.add(target, cell.key, digest, tracking.replay(cell.record(), rows, settings, target))
    return True


def track(cell: StoredCell, settings: Mapping[str, Any], directory: Path) -> None:
    """Send a cell that was just run; in a wandb sweep also one that was done before, as every run there is new.

    Args:
        settings: a ``tracking`` config.

    Raises:
        UserError: as ``tracking.destination``.
    """
    target = tracking.destination(settings, directory)
    if target is not None:
        send(cell, settings, target, force=tracking.in_sweep())


def track_figures(cells: Sequence[tuple[StoredCell, Mapping[str, Any]]], directory: Path) -> None:
    """Figures and tables of a finished sweep, one run for each experiment in it; none that was sent anywhere before.

    Args:
        cells: finished, each with its ``tracking`` config.
    """
    ledger = Ledger(directory)
    for settings, group, found in _experiments(cells):
        if settings["name"] == "none" or not settings.get("figures", True):
            continue
        if not ledger.knows(_figures_id(group, found), _digests(found)):
            target = tracking.destination(settings, directory)
            if target is not None:
                send_figures(found, group, target)


def send_figures(cells: Sequence[StoredCell], group: str, target: Destination, force: bool = False) -> bool:
    """Draw the cells of an experiment and make that a run, unless it is one there already (False)."""
    ledger, run_id, digest = Ledger(target.directory), _figures_id(group, cells), _digests(cells)
    with ledger.sending(run_id):
        if not force and ledger.has(target, run_id, digest):
            return False
        with tempfile.TemporaryDirectory() as folder:
            draw(cells, Path(folder))
            tracking.log_figures(Path(folder), run_id, group, sorted(cell.key for cell in cells), target)
        ledger.add(target, run_id, digest, run_id)
    return True


def draw(cells: Sequence[StoredCell], folder: Path) -> None:
    """Write every table and figure that these cells have something for; what cannot be drawn is named on stderr."""
    from harness import figures
    from harness.analysis.data import open_data

    with contextlib.redirect_stderr(io.StringIO()):  # tracebacks, which ``python -m harness.figures`` shows as well
        report = figures.write(open_data(*(cell.path for cell in cells), quiet=True), folder)
    for name, error in report.broken.items():
        _say(f"{name} was not drawn: {error}; see python -m harness.figures, then sync --figures --force")


def _experiments(
    cells: Iterable[tuple[StoredCell, Mapping[str, Any]]],
) -> list[tuple[Mapping[str, Any], str, list[StoredCell]]]:
    """Cells that go to one place under one group, with the settings that say so."""
    parts: dict[str, tuple[Mapping[str, Any], str, list[StoredCell]]] = {}
    for cell, settings in cells:
        group = tracking.group(cell.record(), settings) if settings["name"] != "none" else ""
        name = json.dumps([group, *(settings.get(key) for key in ("name", "project", "entity", "mode", "figures"))])
        parts.setdefault(name, (settings, group, []))[2].append(cell)
    return list(parts.values())


def _place(target: Destination) -> str:
    """Name of a destination in the ledger. Offline it has its folder already: the ledger lies in it."""
    return f"{target.mode} {target}"


def _digest(cell: StoredCell) -> str:
    return hashlib.sha256(cell.record_path.read_bytes()).hexdigest()


def _digests(cells: Iterable[StoredCell]) -> str:
    return hashlib.sha256("".join(sorted(map(_digest, cells))).encode()).hexdigest()


def _figures_id(group: str, cells: Iterable[StoredCell]) -> str:
    text = json.dumps([group, sorted(cell.key for cell in cells)])
    return f"figures-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Send what is not there yet; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _sync(options)
    except UserError as error:
        _say(f"error: {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.sync", description="Replays finished cells into wandb, each once."
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="FOLDER", help="results folders, or folders of cells, or cells"
    )
    parser.add_argument("--project", help="instead of the project that a cell ran with (or the default's)")
    parser.add_argument("--entity", help="user or team, instead of the one that a cell ran with")
    parser.add_argument("--mode", choices=("online", "offline"), help="default: online where a key is present")
    parser.add_argument(
        "--dir", type=Path, help="for wandb's files and the memory of what was sent (default: the results folder)"
    )
    parser.add_argument("--figures", action="store_true", help="also figures and tables, a run for each experiment")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent, send nothing")
    parser.add_argument("--force", action="store_true", help="also what was sent before")
    return parser


def _sync(options: argparse.Namespace) -> int:
    from harness.analysis import load  # brings pandas, which a run does without

    if tracking.in_sweep():
        allowed = "no wandb agent's environment: all cells would become the one run of that sweep"
        raise UserError("WANDB_SWEEP_ID", os.environ["WANDB_SWEEP_ID"], allowed, "unset WANDB_SWEEP_ID")
    usual = Path(os.environ.get("HARNESS_RESULTS", ROOT / "results"))
    results = load(*(options.folders or [usual]), quiet=True)
    counts: Counter[str] = Counter()
    for path, reason in results.problems.itertuples(index=False):
        is_copy = reason.startswith(("a copy of", "the same cell as"))
        counts["left out" if is_copy else "failed"] += 1
        _say(f"{'left out' if is_copy else 'failed'}: {path}: {reason}")
    cells = [StoredCell(Path(path)) for path in dict.fromkeys(results.cells["path"])]

    def fail(label: str, error: Exception) -> None:  # the others may well go
        counts["failed"] += 1
        _say(f"failed: {label}: {type(error).__name__}: {error}")

    for job in _jobs(cells, options, usual, fail):
        try:
            if options.dry_run:
                is_new = options.force or not Ledger(job.target.directory).has(job.target, job.key, job.digest)
            else:
                is_new = job.send()
        except Exception as error:
            fail(job.label, error)
            continue
        outcome = ("would be sent" if options.dry_run else "sent") if is_new else "already there"
        counts[outcome] += 1
        if is_new:
            print(f"{outcome}: {job.label}, to {job.target} ({job.target.mode})", flush=True)
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "nothing to send")
    return 1 if counts["failed"] else 0


@dataclass(frozen=True)
class _Job:
    """One run to be. ``send`` returns False where it is one already."""

    label: str
    target: Destination
    key: str
    digest: str
    send: Callable[[], bool]


def _jobs(
    cells: Sequence[StoredCell], options: argparse.Namespace, usual: Path, fail: Callable[[str, Exception], None]
) -> Iterator[_Job]:
    """The cells' runs, then those of their figures.

    Args:
        fail: told of each cell that has gone since it was listed, or whose record says too little.

    Raises:
        UserError: as ``tracking.destination``, wandb is disabled, or a folder cannot be written.
    """
    targets: dict[Any, Destination | None] = {}
    drawn: dict[Destination, list[tuple[StoredCell, Mapping[str, Any]]]] = {}
    for cell in cells:
        try:
            record, digest = cell.record(), _digest(cell)
            settings = _settings(record, options)
            label = f"{tracking.title(record)} ({cell.path})"
        except Exception as error:
            fail(str(cell.path), error)
            continue
        place = (settings["project"], settings["entity"], options.dir or _results_folder(cell, usual))
        if place not in targets:
            targets[place] = tracking.destination(settings, place[-1])
            if targets[place] is not None and not options.dry_run:
                Ledger(place[-1]).check_writable()
        target = targets[place]
        if target is None:
            raise UserError("WANDB_MODE", "disabled", "online or offline", "--mode offline")
        drawn.setdefault(target, []).append((cell, settings))
        yield _Job(label, target, cell.key, digest, partial(send, cell, settings, target, options.force))
    for target, found in drawn.items() if options.figures else ():
        for _, group, part in _experiments(found):
            label = f"figures of {group} ({len(part)} {'cell' if len(part) == 1 else 'cells'})"
            go = partial(send_figures, part, group, target, options.force)
            yield _Job(label, target, _figures_id(group, part), _digests(part), go)


def _settings(record: Record, options: argparse.Namespace) -> dict[str, Any]:
    """The tracking config of a cell: the default's, its own over it, and the command line's over that.

    The mode is this command's: a cell that ran offline goes online later.
    """
    usual: Any = OmegaConf.to_container(OmegaConf.load(CONF / "tracking" / "wandb.yaml"))
    own = record.config.get("tracking") or {}
    asked = {"project": options.project, "entity": options.entity}
    merged = usual | ({} if own.get("name") == "none" else own) | {k: v for k, v in asked.items() if v is not None}
    return merged | {"mode": options.mode}


def _results_folder(cell: StoredCell, usual: Path) -> Path:
    """Where a run of this cell keeps wandb's files: the results folder that it lies in."""
    runs = cell.path.resolve().parent
    return runs.parent if runs.name == "runs" else usual


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
