"""Writes a folder with everything that a machine without network needs: benchmarks, nltk's data, models.

Below the folder: each benchmark's first data file (``TaskSpec.data_files``); ``nltk_data``; ``models``, laid out as the
hub's own cache, so that HF_HUB_CACHE is all that an offline run has to set; and ``manifest.json``, which says what each
file is. A file that is there and still right is kept, so an interrupted mirror goes on where it stopped.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from harness.errors import UserError
from harness.evaluation.suites import TaskSpec
from harness.mirror import gated, manifest, sources
from harness.mirror.formats import encode
from harness.mirror.store import Source, Store, entry_of
from harness.models import registry
from harness.models.registry import ModelSpec

PROTOCOL = registry.REPOSITORY / "conf" / "suite" / "protocol" / "paper.yaml"
NLTK_DATA = "nltk_data"
MODELS = "models"
WRITTEN, KEPT, INCOMPLETE, FAILED, NOTHING = "written", "kept", "incomplete", "failed", "—"
BAD = (INCOMPLETE, FAILED)


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
        state: written | kept (it was there) | incomplete (written, and not all of it) | failed | — (nothing to copy).
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


def targets(spec: TaskSpec, leaf: str) -> list[str]:
    """The data files that a subtask's rows may be in, below the folder; the first that exists is read."""
    return [name.format(subtask=leaf) for name in spec.data_files]


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
        OSError: no folder can be made there.
    """
    specs = [_registered(name) for name in models]
    work = _Mirror(Store(folder), None if other is None else sources.Gathered(other))
    for name, spec in benchmarks.items():
        if spec.gated and work.has(name, spec):
            _check_private(folder, name, spec)
    folder.mkdir(parents=True, exist_ok=True)  # where it cannot be, nothing is fetched for it
    for resource in dict.fromkeys(one for spec in benchmarks.values() for one in spec.nltk):
        yield _attempt(f"{NLTK_DATA}/{resource}", partial(work.nltk, resource))
    for name, spec in benchmarks.items():
        if spec.data_files:
            yield _attempt(name, partial(work.benchmark, name, spec))
        else:
            yield Outcome(name, NOTHING, None, "comes with an installed package; check counts its problems")
    for model in specs:
        yield _attempt(f"{MODELS}/{model.name}", partial(work.model, model))
        for entry in model.checkpoints if with_checkpoints else []:
            part = f"{MODELS}/{model.name}/{_checkpoint_name(entry)}"
            yield _attempt(part, partial(work.repository, part, entry.id, entry.revision))


def setting(key: str, value: object) -> str:
    """``key=value`` as a shell hands it to Hydra, whatever characters a path has."""
    text = str(value)
    if not re.fullmatch(r"[\w.+/-]+", text):
        text = "'" + text.replace("'", r"\'") + "'"
    return shlex.quote(f"{key}={text}")


def _attempt(part: str, write: Callable[[], Outcome]) -> Outcome:
    """What ``write`` says, or its failure."""
    try:
        return write()
    except UserError as error:
        where = f"{error.value}: " if error.key == manifest.KEY else ""  # a file, perhaps with its line
        return Outcome(part, FAILED, None, where + error.allowed, error.fix)
    except OSError as error:
        return Outcome(part, FAILED, None, f"{error.filename or part}: {error.strerror or type(error).__name__}")


class _Mirror:
    """A folder being written, from the hub or from a gathered folder."""

    def __init__(self, store: Store, other: sources.Gathered | None) -> None:
        self.store, self.other = store, other

    def has(self, name: str, spec: TaskSpec) -> bool:
        """Whether rows of a benchmark may be had: a gathered folder may lack them."""
        return self.other is None or any(self.other.has(targets(spec, one), spec.fields) for one in leaves(name, spec))

    def benchmark(self, name: str, spec: TaskSpec) -> Outcome:
        """The data files of a benchmark, each listed as soon as it is there."""
        fresh, rows = False, 0
        for leaf in leaves(name, spec):
            written, count = self._data_file(name, spec, leaf)
            fresh, rows = fresh or written, rows + count
        files, known = sorted(self.store.manifest.part(name)), KNOWN[name].rows
        where = files[0] if len(files) == 1 else f"{Path(files[0]).parent.as_posix()}/ ({len(files)} files)"
        if rows != known:
            note = f"{where} has {rows:,} rows, and the benchmark {known:,}"
            return Outcome(name, INCOMPLETE, rows, note, "use the whole benchmark as upstream has it")
        return Outcome(name, WRITTEN if fresh else KEPT, rows, where)

    def _data_file(self, name: str, spec: TaskSpec, leaf: str) -> tuple[bool, int]:
        """Whether a data file had to be written, and its number of rows."""
        names = targets(spec, leaf)
        if self.other is not None:
            target, content, count, source = self.other.data_file(names, spec.fields)
        else:
            source, options = sources.definition(spec, leaf)
            for target in names:
                entry = self.store.manifest.files.get(target)
                if entry is not None and entry.source == source and self.store.is_as_listed(target):
                    return False, entry.rows or 0
            rows = sources.download(source, spec, options)
            target, content = encode(names, rows, spec.fields, self.store.folder)
            count = len(rows)
        entry = entry_of(content, name, source, count, KNOWN[name].license)
        return self.store.put(target, content, entry, names), count

    def nltk(self, resource: str) -> Outcome:
        """An nltk resource, from the gathered folder, from this machine, or from nltk's server."""
        part, source = f"{NLTK_DATA}/{resource}", {"nltk": resource}
        if self.other is not None:
            return self._copy(part, self.other.nltk(resource), self.other.source)
        if self.store.is_complete(part, source):
            return Outcome(part, KEPT, None, f"{part}/")
        import nltk

        try:
            place = Path(str(nltk.data.find(f"{resource}/english"))).parent
            if place.is_dir():  # it may lie inside a zip file
                return self._copy(part, place, source)
        except LookupError:
            pass
        self.store.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.store.folder, prefix=".nltk-") as temporary:
            place, short, said = Path(temporary) / resource, Path(resource).name, io.StringIO()
            done = nltk.download(short, download_dir=temporary, quiet=True, print_error_to=said)
            if not done or not place.is_dir():
                fix = f"check the network, or put {part} in a folder of your own and name it with --from"
                reason = " ".join(said.getvalue().replace("[nltk_data]", "").split())
                raise UserError("nltk", short, f"nltk's {short} could not be downloaded: {reason}".rstrip(": "), fix)
            return self._copy(part, place, source)

    def _copy(self, part: str, place: Path, source: Mapping[str, str | None]) -> Outcome:
        """All files of a folder, below the folder of this part."""
        found = sorted(path for path in place.rglob("*") if path.is_file() and not path.name.startswith("."))
        files = {f"{part}/{path.relative_to(place).as_posix()}": path for path in found}
        fresh = self.store.put_folder(part, files, dict(source), self._origin)
        return Outcome(part, WRITTEN if fresh else KEPT, None, f"{part}/ ({len(files)} files)")

    @property
    def _origin(self) -> Path | None:
        return None if self.other is None else self.other.folder

    def model(self, model: ModelSpec) -> Outcome:
        """Tokenizer and weights of a registered model."""
        part = f"{MODELS}/{model.name}"
        if model.source == "scratch":
            return Outcome(part, NOTHING, None, "trained by this project, its checkpoints come with it")
        if model.source == "hub":
            return self.repository(part, str(model.id), model.revision, usage=f"model={model.name}")
        path = registry.gguf_path(model)
        name = f"{part}/{path.name}"
        source: Source = {"package": model.package, "version": model.package_version}
        fresh = self.store.put_folder(part, {name: path}, source, None)
        place = (self.store.folder / name).absolute()
        usage = f"method=ar_sft variant=base model={model.name} model.source=gguf {setting('+model.path', place)}"
        return Outcome(part, WRITTEN if fresh else KEPT, None, name, usage=usage)

    def repository(self, part: str, repository: str, revision: str, usage: str = "") -> Outcome:
        """A repository of the hub at a revision, laid out as in the hub's cache, but without its links."""
        from harness.models import weights  # imports torch

        source: Source = {"repository": repository, "revision": revision}
        place = f"{MODELS}/models--{repository.replace('/', '--')}"
        if self.other is None and self.store.is_complete(part, source):
            return Outcome(part, KEPT, None, f"{place}/", usage=usage)
        if self.other is None:
            snapshot = weights.hub_snapshot(repository, revision)
        else:
            snapshot = self.other.snapshot(repository, revision)
        commit = snapshot.name
        if not sources.COMMIT.fullmatch(commit):
            raise UserError("--model", part, f"{snapshot}: a snapshot's folder is named by its commit")
        # The loaders read the top folder alone; the hub's filter takes files of folders below as well.
        found = sorted({path for pattern in weights.HUB_FILES for path in snapshot.glob(pattern) if path.is_file()})
        files = {f"{place}/snapshots/{commit}/{path.name}": path for path in found}
        ref = [] if revision == commit else [f"{place}/refs/{revision}"]
        for name in ref:
            manifest.write_atomically(self.store.folder / name, commit.encode())
        fresh = self.store.put_folder(part, files, source | {"commit": commit}, self._origin, ref)
        return Outcome(part, WRITTEN if fresh else KEPT, None, f"{place}/ ({len(files)} files)", usage=usage)


def _check_private(folder: Path, name: str, spec: TaskSpec) -> None:
    """Raises UserError where rows that upstream asks not to publish would land in somebody's repository."""
    names: list[Path] = []
    for file in (folder / one for one in spec.data_files):
        place = Path(os.path.realpath(file.parent))
        # Also those that it has while it is written, which an interruption may leave there.
        names += [place / file.name, place / f".{file.name}.x", place / ".mirror-x" / file.name]
    if all(map(gated.is_private, names)):
        return
    rest = ",".join(one for one in KNOWN if one != name)
    raise UserError(
        "DIR",
        str(folder),
        f"{name} is gated and must not be published: its rows go where no git repository takes them",
        f"a folder outside the working tree, or one that .gitignore names; or leave it out: --only {rest}",
    )


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
