"""Writes a folder with everything that a machine without network needs: benchmarks, nltk's data, models.

Below the folder: each benchmark's first data file (``TaskSpec.data_files``); ``nltk_data``; ``models``, laid out as the
hub's own cache, so that HF_HUB_CACHE is all that an offline run has to set; and ``manifest.json``, which says what each
file is. A file that is there and still right is kept, so an interrupted mirror goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from omegaconf import OmegaConf

from harness.errors import UserError
from harness.evaluation import documents, manifest
from harness.evaluation.documents import Rows
from harness.evaluation.manifest import Entry, Manifest
from harness.evaluation.suites import TaskSpec
from harness.models import registry

if TYPE_CHECKING:
    from harness.models.registry import ModelSpec

PROTOCOL = registry.REPOSITORY / "conf" / "suite" / "protocol" / "paper.yaml"
NLTK_DATA = "nltk_data"
MODELS = "models"
WRITTEN, KEPT, FAILED, NOTHING = "written", "kept", "failed", "—"
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Known:
    """What is known of a benchmark beforehand: its documents, and upstream's licence for them."""

    rows: int
    license: str


KNOWN = {
    "ifeval": Known(541, "Apache-2.0"),
    "bbh": Known(6511, "MIT"),
    "mmlu_pro": Known(12032, "MIT"),
    "gpqa_main_cot_zeroshot": Known(448, "CC-BY-4.0; gated: never publish its rows in plain text"),
    "gsm8k_cot": Known(1319, "MIT"),
    "humaneval_instruct": Known(164, "MIT"),
}


@dataclass(frozen=True)
class Outcome:
    """What became of one part: a benchmark, an nltk resource, a model, a checkpoint.

    Attributes:
        state: written | kept (it was there) | failed | — (nothing to copy).
        rows: documents, None where it has none.
        note: where it is, or what went wrong.
        fix: what to do where it failed.
        usage: settings that choose it in a run, where suite.data_dir alone does not.
    """

    part: str
    state: str
    rows: int | None
    note: str
    fix: str = ""
    usage: str = ""


def protocol(only: str | None = None) -> dict[str, TaskSpec]:
    """The paper's benchmarks, or those named in ``only`` ("gsm8k_cot,bbh"; "none" is none), without lm-eval or Hydra.

    Raises:
        UserError: an unknown one.
    """
    schema = OmegaConf.structured(TaskSpec)
    found: dict[str, TaskSpec] = {
        str(name): OmegaConf.to_object(OmegaConf.merge(schema, node))  # type: ignore[misc]
        for name, node in OmegaConf.load(PROTOCOL).items()
    }
    known = {name: found[name] for name in KNOWN}  # the others are made here
    if only is None:
        return known
    names = [] if only == "none" else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            near = [one for one in known if name and (one.startswith(name) or name.startswith(one))]
            fix = f"--only {near[0]}" if near else ""
            raise UserError("--only", name, f"none, or some of {', '.join(known)}, with commas between", fix)
    return {name: spec for name, spec in known.items() if name in names}


def leaves(name: str, spec: TaskSpec) -> list[str]:
    """One subtask per data file: all where each has its own, the first where one file has the rows of all."""
    if not spec.subtasks:
        return [name]
    return list(spec.subtasks) if "{subtask}" in spec.data_files[0] else spec.subtasks[:1]


def mirror(
    folder: Path,
    benchmarks: Mapping[str, TaskSpec],
    models: Sequence[str] = (),
    other: Path | None = None,
    with_checkpoints: bool = True,
) -> Iterator[Outcome]:
    """Write the parts one after the other, and say what became of each; one that fails does not stop the others.

    Args:
        folder: made where it does not exist.
        benchmarks: as ``protocol`` has them; an nltk resource that they need comes with them.
        models: registry names.
        other: take files from this folder instead of the hub.
        with_checkpoints: models come with the checkpoints that the registry knows for them.

    Raises:
        UserError: before anything is written: an unknown model, or a gated benchmark into a folder that git would take.
    """
    specs = [_registered(name) for name in models]
    if other is not None and not other.is_dir():
        raise UserError("--from", str(other), "a folder with upstream's files")
    work = _Mirror(folder, other)
    for name, spec in benchmarks.items():
        if spec.gated and work.would_write(name, spec):
            check_private(folder, name, spec)
    for resource in dict.fromkeys(one for spec in benchmarks.values() for one in spec.nltk):
        yield work.attempt(f"{NLTK_DATA}/{resource}", lambda r=resource: work.nltk(r))
    for name, spec in benchmarks.items():
        if spec.data_files:
            yield work.attempt(name, lambda n=name, s=spec: work.benchmark(n, s))
        else:
            yield Outcome(name, NOTHING, None, "comes with an installed package; check counts its problems")
    for model in specs:
        yield work.attempt(f"{MODELS}/{model.name}", lambda m=model: work.model(m))
        for entry in model.checkpoints if with_checkpoints else []:
            part = f"{MODELS}/{model.name}/{_checkpoint_name(entry)}"
            yield work.attempt(part, lambda p=part, e=entry: work.repository(p, e.id, e.revision))


def check_private(folder: Path, name: str, spec: TaskSpec) -> None:
    """Raises UserError where rows that upstream asks not to publish would land in somebody's repository."""
    file = Path(os.path.realpath(folder)) / spec.data_files[0]
    if is_private(file):
        return
    rest = ",".join(one for one in KNOWN if one != name)
    raise UserError(
        "DIR",
        str(folder),
        f"{name} is gated and must not be published: its rows go where no git repository takes them",
        f"a folder outside the working tree, or one that .gitignore names; or leave it out: --only {rest}",
    )


def is_private(file: Path) -> bool:
    """Whether a file (that need not exist) lies outside every git working tree, or git ignores it."""
    folder = next(parent for parent in file.parents if parent.is_dir())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def git(*arguments: str) -> int:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, env=environment, stdin=subprocess.DEVNULL).returncode

    try:
        if git("rev-parse", "--is-inside-work-tree") == 0:
            return git("check-ignore", "--quiet", str(file)) == 0
    except FileNotFoundError:
        pass  # no git here, but perhaps a working tree
    return not any((parent / ".git").exists() for parent in file.parents)


class _Mirror:
    """One folder being written."""

    def __init__(self, folder: Path, other: Path | None) -> None:
        self.folder, self.other = folder, other
        self.manifest = Manifest.read(folder) or Manifest()
        self._index: dict[str, list[Path]] | None = None

    def attempt(self, part: str, write: Any) -> Outcome:
        """What ``write`` says, or its failure."""
        try:
            found: Outcome = write()
            return found
        except UserError as error:
            where = f"{error.value}: " if error.key == manifest.KEY else ""  # a file, perhaps with its line
            return Outcome(part, FAILED, None, where + error.allowed, error.fix)
        except OSError as error:
            reason = f"{error.filename or self.folder}: {error.strerror or type(error).__name__}"
            return Outcome(part, FAILED, None, f"cannot be written: {reason}")

    def would_write(self, name: str, spec: TaskSpec) -> bool:
        """Whether rows of a benchmark are to be had at all: another folder may lack them."""
        return self.other is None or any(self._candidates(spec, leaf) for leaf in leaves(name, spec))

    # Benchmarks

    def benchmark(self, name: str, spec: TaskSpec) -> Outcome:
        """Write the data files of a benchmark, each listed as soon as it is there."""
        write = self._from_hub if self.other is None else self._from_folder
        fresh, rows = False, 0
        for leaf in leaves(name, spec):
            targets = [target.format(subtask=leaf) for target in spec.data_files]
            written, count = write(name, spec, leaf, targets)
            fresh, rows = fresh or written, rows + count
        known = KNOWN[name].rows
        files = sorted(self.manifest.part(name))
        where = files[0] if len(files) == 1 else f"{Path(files[0]).parent.as_posix()}/ ({len(files)} files)"
        if rows != known:
            note = f"{where} has {rows:,} rows, and the benchmark {known:,}"
            return Outcome(name, FAILED, rows, note, "use the whole benchmark as upstream has it")
        return Outcome(name, WRITTEN if fresh else KEPT, rows, where)

    def _from_hub(self, name: str, spec: TaskSpec, leaf: str, targets: list[str]) -> tuple[bool, int]:
        from harness.evaluation import tasks  # imports lm-eval and datasets
        from harness.evaluation.quiet import quiet

        with _without_download(spec):
            config = tasks.stock_config(spec, leaf)
        dataset, split = str(config["dataset_path"]), tasks.evaluation_split(config)
        source = {"dataset": dataset, "config": config.get("dataset_name"), "split": split, "revision": spec.revision}
        for target in targets:
            entry = self.manifest.files.get(target)
            if entry is not None and entry.source == source and self._is_as_listed(target):
                return False, entry.rows or 0
        with quiet():
            rows = _download(source, spec, config.get("dataset_kwargs") or {})
        target, content = encode(targets, rows, spec, self.folder)
        return self._store(name, targets, target, content, len(rows), source), len(rows)

    def _from_folder(self, name: str, spec: TaskSpec, leaf: str, targets: list[str]) -> tuple[bool, int]:
        found = self._candidates(spec, leaf)
        if not found:
            looked = " or ".join(Path(target).name for target in targets)
            raise UserError(
                "--from", str(self.other), f"{looked}: not in {self.other}", "add it there, or leave --from"
            )
        target, path = found[0]
        if len({manifest.file_sha256(one) for one_target, one in found if one_target == target}) > 1:
            several = ", ".join(str(one) for one_target, one in found if one_target == target)
            fix = f"put the right one at {target} below {self.other}"
            raise UserError("--from", str(self.other), f"several files could be {target}: {several}", fix)
        content = path.read_bytes()
        rows = documents.read_rows(path, list(spec.fields))
        source: dict[str, str | None] = {"folder": str(Path(self.other or "").absolute())}
        return self._store(name, targets, target, content, len(rows), source), len(rows)

    def _candidates(self, spec: TaskSpec, leaf: str) -> list[tuple[str, Path]]:
        """Data files below ``other``: where they are expected, however malformed; else anywhere, if their rows fit."""
        assert self.other is not None
        targets = [target.format(subtask=leaf) for target in spec.data_files]
        for target in targets:
            if (self.other / target).is_file():
                return [(target, self.other / target)]
        if self._index is None:
            self._index = {}
            for place, folders, files in os.walk(self.other):
                folders[:] = sorted(one for one in folders if not one.startswith("."))
                for file in files:
                    self._index.setdefault(file, []).append(Path(place, file))
        return [
            (target, path)
            for target in targets
            for path in self._index.get(Path(target).name, [])
            if _fits(path, list(spec.fields))
        ]

    def _store(
        self, part: str, targets: Sequence[str], target: str, content: bytes, rows: int, source: dict[str, str | None]
    ) -> bool:
        """Write and list a data file; False where it was there already.

        Raises:
            UserError: another file is in its place, and not by the mirror.
        """
        for other in targets[: targets.index(target)]:  # they would be read in its stead
            if (self.folder / other).exists():
                self._check_ours(other)
                (self.folder / other).unlink()
        for other in targets:
            if other != target:
                self.manifest.files.pop(other, None)
        path, digest = self.folder / target, hashlib.sha256(content).hexdigest()
        fresh = not path.is_file() or manifest.file_sha256(path) != digest
        if fresh:
            if path.exists():
                self._check_ours(target)
            manifest.write_atomically(path, content)
        entry = Entry(digest, len(content), part, source, rows, KNOWN[part].license)
        listed = self.manifest.files.get(target)
        # A folder says less of where the same content is from than the hub did.
        if listed is None or (listed != entry if "dataset" in source else listed.sha256 != digest):
            self.manifest.files[target] = entry
            self.manifest.write(self.folder)
        return fresh

    def _check_ours(self, target: str) -> None:
        if target not in self.manifest.files:
            fix = f"move it away; or keep yours: mirror {self.folder} --from {self.folder} lists it in the manifest"
            raise UserError("DIR", str(self.folder), f"{target} is there already, and not by the mirror", fix)

    def _is_as_listed(self, target: str) -> bool:
        path = self.folder / target
        return path.is_file() and manifest.file_sha256(path) == self.manifest.files[target].sha256

    # Folders of files: nltk's data, models

    def nltk(self, resource: str) -> Outcome:
        """An nltk resource, from ``other``, from this machine, or from nltk's server."""
        part = f"{NLTK_DATA}/{resource}"
        source: dict[str, str | None] = {"nltk": resource}
        if self.other is not None:
            places = [self.other / part, self.other / resource]
            found = next((place for place in places if place.is_dir()), None)
            if found is None:
                raise UserError("--from", str(self.other), f"{part}: not in {self.other}", "add it there")
            return self._copy_folder(part, found, part, {"folder": str(self.other.absolute())}, _files_below(found))
        if self._is_complete(part, source):
            return Outcome(part, KEPT, None, f"{part}/")
        import nltk

        try:
            place = Path(str(nltk.data.find(f"{resource}/english"))).parent
            if place.is_dir():
                return self._copy_folder(part, place, part, source, _files_below(place))
        except LookupError:
            pass
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".nltk-") as temporary:
            short = Path(resource).name
            place = Path(temporary) / resource
            said = io.StringIO()
            done = nltk.download(short, download_dir=temporary, quiet=True, print_error_to=said)
            if not done or not place.is_dir():
                fix = f"check the network, or put {part} in a folder of your own and name it with --from"
                reason = " ".join(said.getvalue().replace("[nltk_data]", "").split())
                raise UserError("nltk", short, f"nltk's {short} could not be downloaded: {reason}".rstrip(": "), fix)
            return self._copy_folder(part, place, part, source, _files_below(place))

    def model(self, model: ModelSpec) -> Outcome:
        """Tokenizer and weights of a registered model."""
        part = f"{MODELS}/{model.name}"
        if model.source == "scratch":
            return Outcome(part, NOTHING, None, "trained by this project, its checkpoints come with it")
        if model.source == "packaged":
            path = registry.gguf_path(model)
            source: dict[str, str | None] = {"package": model.package, "version": model.package_version}
            done = self._copy_folder(part, path.parent, part, source, [path])
            place = (self.folder / part / path.name).absolute()
            return replace(done, usage=f"model={model.name} model.source=gguf +model.path={place}")
        done = self.repository(part, str(model.id), model.revision)
        return replace(done, usage=f"model={model.name}")

    def repository(self, part: str, repository: str, revision: str) -> Outcome:
        """A repository of the hub at a revision, laid out as in the hub's cache, but without its links."""
        from harness.models.weights import HUB_FILES, hub_snapshot

        source: dict[str, str | None] = {"repository": repository, "revision": revision}
        place = f"{MODELS}/models--{repository.replace('/', '--')}"
        if self.other is None and self._is_complete(part, source):
            return Outcome(part, KEPT, None, f"{place}/")
        snapshot = hub_snapshot(repository, revision) if self.other is None else self._snapshot(place, revision)
        if not COMMIT.fullmatch(snapshot.name):
            raise UserError("--model", part, f"{snapshot}: a snapshot's folder is named by its commit")
        # The loaders read the top folder alone; the hub's filter takes files of folders below as well.
        files = sorted({path for pattern in HUB_FILES for path in snapshot.glob(pattern) if path.is_file()})
        if revision != snapshot.name:
            manifest.write_atomically(self.folder / place / "refs" / revision, snapshot.name.encode())
        target = f"{place}/snapshots/{snapshot.name}"
        more = [] if revision == snapshot.name else [f"{place}/refs/{revision}"]
        done = self._copy_folder(part, snapshot, target, source | {"commit": snapshot.name}, files, more)
        return replace(done, note=f"{place}/ ({len(files)} files)")

    def _snapshot(self, place: str, revision: str) -> Path:
        """A snapshot in another mirror, or in a copy of the hub's cache."""
        assert self.other is not None
        for root in (self.other / place, self.other / Path(place).name, self.other / "hub" / Path(place).name):
            ref = root / "refs" / revision
            snapshot = root / "snapshots" / (ref.read_text().strip() if ref.is_file() else revision)
            if snapshot.is_dir():
                return snapshot
        fix = "mirror it there first; or use a clone of it as it is: model=local model.path=CLONE"
        raise UserError("--from", str(self.other), f"{place}/snapshots: not in {self.other} at {revision}", fix)

    def _copy_folder(
        self,
        part: str,
        place: Path,
        target: str,
        source: dict[str, str | None],
        files: Sequence[Path],
        more: Sequence[str] = (),
    ) -> Outcome:
        """Copy files of a folder and list them together, so that a part that is listed is whole."""
        entries, fresh = {}, False
        for path in files:
            name = f"{target}/{path.relative_to(place).as_posix()}"
            digest = manifest.file_sha256(path)
            mine = self.folder / name
            if not mine.is_file() or manifest.file_sha256(mine) != digest:
                _copy_atomically(path, mine)
                fresh = True
            entries[name] = Entry(digest, mine.stat().st_size, part, source)
        for name in more:
            entries[name] = Entry(
                manifest.file_sha256(self.folder / name), (self.folder / name).stat().st_size, part, source
            )
        if not entries:
            raise UserError(part, str(place), "a folder with files in it; it is empty")
        if fresh or self.manifest.part(part).keys() != entries.keys():
            for name in self.manifest.part(part):
                del self.manifest.files[name]
            self.manifest.files |= entries
            self.manifest.write(self.folder)
        return Outcome(part, WRITTEN if fresh else KEPT, None, f"{target}/ ({len(entries)} files)")

    def _is_complete(self, part: str, source: Mapping[str, str | None]) -> bool:
        listed = self.manifest.part(part)
        same = all(source.items() <= entry.source.items() for entry in listed.values())
        return bool(listed) and same and all(map(self._is_as_listed, listed))


def encode(targets: Sequence[str], rows: Rows, spec: TaskSpec, folder: Path) -> tuple[str, bytes]:
    """The first data file whose format gives back exactly these rows, and its content.

    CSV holds text alone, so rows with numbers or nothing in some column take the next format. It is tried, not trusted:
    a file beside the target is read as ``documents`` will.

    Raises:
        UserError: no format does, or rows lack a field.
    """
    encoders = {".jsonl": _as_jsonl, ".json": _as_json, ".csv": _as_csv}
    for target in targets:
        encoder = encoders.get(Path(target).suffix)
        if encoder is None:
            continue
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mirror-") as temporary:
            probe = Path(temporary) / path.name
            try:
                content = encoder(rows)
                probe.write_bytes(content)
                if documents.hash_rows(documents.read_rows(probe, list(spec.fields))) == documents.hash_rows(rows):
                    return target, content
            except (TypeError, ValueError, csv.Error):
                pass  # a value that this format cannot hold; the message might quote it
            except UserError as error:
                if target == targets[-1]:
                    raise UserError(error.key, target, error.allowed) from None
    names = ", ".join(Path(target).name for target in targets)
    raise UserError("hub", targets[0], f"its rows hold values that {names} cannot give back")


def _as_jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _as_json(rows: Rows) -> bytes:
    return (json.dumps({"examples": rows}, indent=1) + "\n").encode()


def _as_csv(rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _download(source: Mapping[str, str | None], spec: TaskSpec, more: Mapping[str, Any]) -> Rows:
    """Rows of a hub dataset.

    Raises:
        UserError: not to be had. Of a gated dataset it says nothing that could quote a row.
    """
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    dataset = source["dataset"]
    where = f"{dataset} at {(source['revision'] or 'main')[:12]}"
    try:
        found = datasets.load_dataset(
            str(dataset), source["config"], split=source["split"], revision=source["revision"], **more
        )
        rows: Rows = found.to_list()
    except Exception as error:
        refused = isinstance(error, datasets.exceptions.DatasetNotFoundError | HfHubHTTPError)
        if spec.gated and refused:
            fix = f"ask for access on the page of {dataset} on the hub, log in here (hf auth login), and run this again"
            raise UserError(
                "hub", dataset, f"{where}: the hub gives it only to those it has granted access", fix
            ) from None
        if not spec.gated and not isinstance(error, OSError | ValueError | datasets.exceptions.DatasetsError):
            raise
        quotable = not spec.gated or isinstance(error, ConnectionError)
        reason = (str(error).strip().splitlines() or [""])[0] if quotable else ""
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        allowed = f"{where} could not be loaded from the hub: {reason or type(error).__name__}"
        raise UserError("hub", dataset, allowed, f"check the network{offline}, or use --from FOLDER") from None
    if not rows:
        raise UserError("hub", dataset, f"{where} has no rows")
    return rows


@contextlib.contextmanager
def _without_download(spec: TaskSpec) -> Iterator[None]:
    """Within, reading IFEval's definition does not fetch nltk's data for this machine and tell of it."""
    if not spec.nltk:
        yield
        return
    with mock.patch("nltk.download", return_value=False), contextlib.redirect_stdout(io.StringIO()):
        yield


def _fits(path: Path, fields: list[str]) -> bool:
    try:
        documents.read_rows(path, fields)
    except UserError:
        return False
    return True


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def _copy_atomically(source: Path, target: Path) -> None:
    """Copy a file of any size in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _registered(name: str) -> ModelSpec:
    if name in registry.GENERIC:
        own = [one for one in registry.names() if one not in registry.GENERIC]
        raise UserError("--model", name, f"a registered model: {', '.join(own)}", "copy a model of your own by hand")
    try:
        return registry.spec(name)
    except UserError as error:
        raise UserError("--model", name, error.allowed, error.fix.replace("model=", "--model ")) from None


def _checkpoint_name(entry: registry.Released) -> str:
    from harness.models.checkpoints import checkpoint_name, full_variant

    return checkpoint_name(entry.kind, entry.block_size, full_variant(entry.variant, entry.alignment))
