"""Where a mirror's files come from: the hub's datasets and models, nltk's server, or a folder gathered by hand."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from harness.errors import UserError
from harness.evaluation import documents
from harness.evaluation.documents import Rows
from harness.evaluation.suites import TaskSpec
from harness.mirror import manifest
from harness.mirror.store import Source
from harness.models.manifest import file_sha256

COMMIT = re.compile(r"[0-9a-f]{40}")


def definition(spec: TaskSpec, leaf: str) -> tuple[Source, Mapping[str, Any]]:
    """The hub dataset that lm-eval's definition of a task names (dataset, config, split, revision), and its options."""
    from harness.evaluation import tasks  # imports lm-eval and datasets

    with _without_download(spec):
        config = tasks.stock_config(spec, leaf)
    dataset, split = str(config["dataset_path"]), tasks.evaluation_split(config)
    source: Source = {
        "dataset": dataset, "config": config.get("dataset_name"), "split": split, "revision": spec.revision,
    }  # fmt: skip
    return source, config.get("dataset_kwargs") or {}


@contextlib.contextmanager
def _without_download(spec: TaskSpec) -> Iterator[None]:
    """Within, reading IFEval's definition does not fetch nltk's data for this machine and tell of it."""
    if not spec.nltk:
        yield
        return
    with mock.patch("nltk.download", return_value=False), contextlib.redirect_stdout(io.StringIO()):
        yield


def download(source: Source, spec: TaskSpec, more: Mapping[str, Any]) -> Rows:
    """Rows of a hub dataset.

    Raises:
        UserError: not to be had. Of a gated dataset it says nothing that could quote a row.
    """
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    from harness.evaluation.quiet import quiet  # imports datasets

    dataset = source["dataset"]
    where = f"{dataset} at {(source['revision'] or 'main')[:12]}"
    try:
        with quiet():
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


class Gathered:
    """Files of a folder, in upstream's layout, in that of a mirror, or in none."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError where there is no such folder."""
        if not folder.is_dir():
            raise UserError("--from", str(folder), "a folder with upstream's files")
        self.folder = folder
        self._index: dict[str, list[Path]] | None = None

    @property
    def source(self) -> Source:
        """For the manifest."""
        return {"folder": str(self.folder.absolute())}

    def has(self, targets: list[str], fields: list[str]) -> bool:
        """Whether a data file is there."""
        return bool(self._candidates(targets, fields))

    def data_file(self, targets: list[str], fields: list[str]) -> tuple[str, bytes, int, Source]:
        """Which of ``targets`` is there, its content, its number of rows, and where it is from.

        Raises:
            UserError: none is; several could be it; it is malformed, or altered since that folder was mirrored.
        """
        found = self._candidates(targets, fields)
        if not found:
            looked = " or ".join(Path(target).name for target in targets)
            raise UserError("--from", str(self.folder), f"{looked}: not in {self.folder}", "add it there")
        target, path = found[0]
        same = [one for one_target, one in found if one_target == target]
        if len({file_sha256(one) for one in same}) > 1:
            allowed = f"several files could be {target}: {', '.join(map(str, same))}"
            raise UserError("--from", str(self.folder), allowed, f"put the right one at {target} below {self.folder}")
        content = path.read_bytes()
        manifest.verify(self.folder, path, content)
        rows = documents.read_rows(path, fields)
        listed = manifest.find_entry(self.folder, path)
        return target, content, len(rows), listed.source if listed else self.source

    def nltk(self, resource: str) -> Path:
        """The folder of an nltk resource. Raises UserError where there is none."""
        for place in (self.folder / "nltk_data" / resource, self.folder / resource):
            if place.is_dir():
                return place
        raise UserError("--from", str(self.folder), f"nltk_data/{resource}: not in {self.folder}", "add it there")

    def snapshot(self, repository: str, revision: str) -> Path:
        """A model's snapshot in another mirror, or in a copy of the hub's cache. Raises UserError where none is."""
        name = f"models--{repository.replace('/', '--')}"
        for root in (self.folder / "models" / name, self.folder / "hub" / name, self.folder / name):
            ref = root / "refs" / revision
            snapshot = root / "snapshots" / (ref.read_text().strip() if ref.is_file() else revision)
            if snapshot.is_dir():
                return snapshot
        allowed = f"models/{name} at {revision}: not in {self.folder}"
        fix = "mirror it there first; or use a clone of it as it is: model=local model.path=CLONE"
        raise UserError("--from", str(self.folder), allowed, fix)

    def _candidates(self, targets: list[str], fields: list[str]) -> list[tuple[str, Path]]:
        """Data files: where they are expected, however malformed; else anywhere, if their rows fit."""
        for target in targets:
            if (self.folder / target).is_file():
                return [(target, self.folder / target)]
        if self._index is None:
            self._index = {}
            for place, folders, files in os.walk(self.folder):
                folders[:] = sorted(one for one in folders if not one.startswith("."))
                for file in files:
                    self._index.setdefault(file, []).append(Path(place, file))
        return [
            (target, path)
            for target in targets
            for path in self._index.get(Path(target).name, [])
            if _fits(path, fields)
        ]


def _fits(path: Path, fields: list[str]) -> bool:
    try:
        documents.read_rows(path, fields)
    except UserError:
        return False
    return True
