"""Which checkpoint a request means and where it lies. Needs neither torch nor weights.

A base and the checkpoints trained from it are separate things. A checkpoint is looked for in this order: explicit path,
trained locally, shipped with the repository, hub. What none of these has is trained on demand or refused with the
command that makes it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.models.manifest import MANIFEST_NAME, Manifest, file_hash, settings_hash, weights_hash
from harness.models.registry import REPOSITORY, ModelSpec, Released, gguf_path, local_path, names, spec

if TYPE_CHECKING:
    from methods.contract import Companion, Method

log = logging.getLogger(__name__)

ADAPTER_CONFIG = "adapter_config.json"
BASE = "base"  # the variant that means the untuned weights
RELEASED = "released"


@dataclass(frozen=True)
class TrainingRequest:
    """What to train so that a missing checkpoint exists; ``command`` is the shell command that does it."""

    model: str
    kind: str
    block_size: int | None
    alignment: str | None
    variant: str | None
    overrides: tuple[str, ...]
    checkpoints_dir: str | None = None  # where it was looked for, if not in the usual place

    @property
    def command(self) -> str:
        """The exact command."""
        place = [f"checkpoints_dir={self.checkpoints_dir}"] if self.checkpoints_dir else []
        return " ".join(("python -m harness.train", *self.overrides, *place))


class MissingCheckpoint(UserError):
    """No checkpoint of this kind, of a model small enough to train on demand (``request`` says what to train)."""

    def __init__(self, key: str, value: object, allowed: str, fix: str, request: TrainingRequest) -> None:
        super().__init__(key, value, allowed, fix)
        self.request = request


@dataclass(frozen=True)
class Resolved:
    """Where the weights of a request lie: a directory, a hub entry, or neither (the base itself).

    ``under`` is the checkpoint that heads or a drafter were trained on, and are decoded with.
    """

    directory: Path | None = None
    released: Released | None = None
    manifest: Manifest | None = None
    under: Resolved | None = None

    @property
    def is_adapter(self) -> bool:
        """Whether the base's weights are needed underneath."""
        return self.directory is not None and (self.directory / ADAPTER_CONFIG).is_file()


def checkpoint_name(kind: str, block_size: int | None = None, variant: str | None = None) -> str:
    """Directory name of a checkpoint under its model: ``ar_sft``, ``mars-b4``, ``mars-b4-released``."""
    block = f"-b{block_size}" if block_size is not None else ""
    return f"{kind}{block}" + (f"-{variant}" if variant else "")


def default_checkpoints_dir() -> Path:
    """``$HARNESS_CHECKPOINTS``, or the repository's own."""
    return Path(os.environ.get("HARNESS_CHECKPOINTS") or REPOSITORY / "checkpoints")


def full_variant(variant: str | None, alignment: str | None) -> str | None:
    """Variant name with the alignment in it, as checkpoints are named: ``released_no_sft_loss``.

    Raises:
        UserError: the two contradict each other.
    """
    is_released = (variant or "").split("_")[0] == RELEASED
    if alignment == RELEASED and variant != BASE and not is_released:
        return f"{RELEASED}_{variant}" if variant else RELEASED
    if alignment == "paper" and is_released:
        raise UserError("alignment", alignment, f"variant={variant} means alignment=released", "leave one of them out")
    return variant


def resolve(
    model: ModelSpec,
    *,
    kind: str,
    block_size: int | None = None,
    variant: str | None = None,
    alignment: str | None = None,
    checkpoint: str | Path | None = None,
    checkpoints_dir: str | Path | None = None,
    adds: bool = False,
) -> Resolved:
    """Find the checkpoint that ``kind`` (a method's ``checkpoint_kind``) needs, and check that it fits.

    Args:
        adds: checkpoints of this kind add to a model's weights (``Method.adds_weights``).

    Raises:
        MissingCheckpoint: none is known, and the model is small enough to train one on demand.
        UserError: none is known (the message holds the command that makes it), or the one found does not fit.
    """
    variant = full_variant(variant, alignment)
    if variant == BASE:
        if checkpoint is not None:
            raise UserError("checkpoint", str(checkpoint), "variant=base means no checkpoint", "leave one of them out")
        if model.source == "scratch":
            raise UserError("variant", BASE, f"{model.name} is trained from scratch: it has no untuned weights")
        if adds:
            allowed = f"{kind} adds trained weights to a model, and the untuned model has none"
            raise UserError("variant", BASE, allowed, f"python -m harness.train method={kind} makes them")
        return Resolved()
    if checkpoint is not None:
        directory = Path(checkpoint).expanduser()
        if not directory.is_dir():
            raise UserError("checkpoint", str(checkpoint), "a directory with safetensors weights and a manifest.json")
        if not (directory / MANIFEST_NAME).is_file():
            log.warning(
                "%s has no %s: its method, block size and alignment are taken on trust", directory, MANIFEST_NAME
            )
            return Resolved(directory)
        manifest = Manifest.read(directory)
        _check_fits(manifest, str(checkpoint), model, kind, block_size, variant, alignment)
        under = _under(manifest, model, checkpoints_dir)
        if under is not None and fingerprint(model, under) != manifest.base:
            allowed = f"was trained on other weights than those of {manifest.init_from or model.name} now"
            raise UserError("checkpoint", str(checkpoint), allowed, f"train it again: {manifest.command}")
        return Resolved(directory, manifest=manifest, under=under)
    root = Path(checkpoints_dir or default_checkpoints_dir()).expanduser()
    name = checkpoint_name(kind, block_size, variant)
    for place in (root / "local", root, REPOSITORY / "checkpoints"):
        directory = place / model.name / name
        if (directory / MANIFEST_NAME).is_file():
            manifest = Manifest.read(directory)
            _check_fits(manifest, str(directory), model, kind, block_size, variant, alignment)
            try:
                under = _under(manifest, model, checkpoints_dir)
            except MissingCheckpoint:
                raise  # what it stands on can be made
            except UserError as error:
                _warn(f"{directory} is passed over: what it was trained on is not there ({error.value})")
                continue
            if under is None or fingerprint(model, under) == manifest.base:
                return Resolved(directory, manifest=manifest, under=under)
            _warn(f"{directory} is passed over: it was trained on other weights than {manifest.init_from} has now")
    for entry in model.checkpoints:
        if (entry.kind, entry.block_size) == (kind, block_size) and _matches(entry, variant, alignment):
            return Resolved(
                released=entry,
                manifest=Manifest(
                    kind, model.name, entry.block_size, entry.alignment, entry.variant, init_from=entry.id
                ),
            )
    if model.stands_for_ar_sft and kind == "ar_sft" and variant is None:
        return Resolved()
    raise _missing(model, kind, block_size, variant, alignment, root, adds)


def _under(manifest: Manifest, model: ModelSpec, checkpoints_dir: str | Path | None) -> Resolved | None:
    """The weights that heads or a drafter add to; None for a checkpoint that stands alone."""
    if manifest.adapter != "own":
        return None
    origin = manifest.init_from
    if origin is None:
        return Resolved()
    if origin == f"{model.name}/ar_sft" or any(entry.id == origin for entry in model.checkpoints):
        return resolve(model, kind="ar_sft", checkpoints_dir=checkpoints_dir)
    directory = Path(origin).expanduser()
    kind = Manifest.read(directory).kind
    return resolve(model, kind=kind, checkpoint=directory, checkpoints_dir=checkpoints_dir)


def fingerprint(model: ModelSpec, resolved: Resolved) -> str:
    """16 hex digits that stand for a model's weights, by which heads and drafters know what they were trained on."""
    found = identity(model, resolved)
    text = json.dumps({key: found[key] for key in ("model", "base", "checkpoint")}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def companions(model: ModelSpec, method: Method) -> dict[str, tuple[ModelSpec, Companion]]:
    """The further models of a method, each with its registry entry.

    Raises:
        UserError: the method leaves the choice to the target's entry, which names none.
    """
    found = {}
    for name, companion in method.companions.items():
        chosen = companion.model or model.draft_model
        if chosen is None:
            key = f"method.{name}_model"
            allowed = f"needed: no {name} model is registered for {model.name}; one with its tokenizer can be named"
            raise UserError(key, None, allowed, f"{key}=NAME, or leave {method.name} out")
        try:
            found[name] = spec(chosen), companion
        except UserError as error:
            raise UserError(f"method.{name}_model", chosen, error.allowed, f"method.{name}_{error.fix}") from None
    return found


def weights_identity(
    model: ModelSpec, method: Method, request: Mapping[str, Any], dtype: str | None = None
) -> dict[str, Any]:
    """``identity`` of what a method's request resolves to, with that of each companion; the method is fitted to it.

    Raises:
        MissingCheckpoint, UserError: as ``resolve``.
    """
    trained = method.trained_as
    resolved = resolve(model, kind=trained.checkpoint_kind, adds=trained.adds_weights(), **request)
    method.fit(resolved.manifest)
    found = identity(model, resolved, dtype)
    others = {}
    for name, (other, companion) in companions(model, method).items():
        resolved = resolve(
            other,
            kind=companion.method.checkpoint_kind,
            block_size=companion.method.trained_block_size,
            checkpoint=companion.checkpoint,
            checkpoints_dir=request.get("checkpoints_dir"),
        )
        others[name] = identity(other, resolved, dtype)
    return found | ({"companions": others} if others else {})


def identity(model: ModelSpec, resolved: Resolved, dtype: str | None = None) -> dict[str, Any]:
    """What of the weights can change an output, for a run's key: revisions or content hashes, and the dtype.

    The hub's revision is the one asked for, so that the key is known before anything is downloaded. The base is left
    out where a full checkpoint replaces it.
    """
    base: dict[str, Any] | None = None
    if resolved.under is not None:
        base = identity(model, resolved.under, dtype)
    elif resolved == Resolved() or resolved.is_adapter:
        base = {"source": model.source, "mask_token": model.mask_token}
        if model.source == "hub":
            base |= {"id": model.id, "revision": model.revision}
        elif model.source in ("gguf", "packaged"):
            base |= {"hash": file_hash(gguf_path(model))[:16]}
        elif model.source == "local":
            base |= {"hash": weights_hash(local_path(model)), "settings": settings_hash(local_path(model))}
    checkpoint: dict[str, Any] | None = None
    if resolved.released:
        checkpoint = {"id": resolved.released.id, "revision": resolved.released.revision}
    elif resolved.directory:
        checkpoint = {"hash": weights_hash(resolved.directory), "settings": settings_hash(resolved.directory)}
    mask = resolved.manifest.mask_token_id if resolved.manifest else None
    return {
        "model": model.name,
        "base": base,
        "checkpoint": checkpoint,
        "mask": model.mask_token if mask is None else mask,
        "context_length": model.context_length,
        "dtype": dtype or model.dtype,
    }


def _check_fits(
    manifest: Manifest,
    where: str,
    model: ModelSpec,
    kind: str,
    block_size: int | None,
    variant: str | None,
    alignment: str | None,
) -> None:
    """Refuse a checkpoint whose training contradicts the request; warn where only its width goes unused."""
    if manifest.model != model.name:
        raise UserError("checkpoint", where, f"was trained from {manifest.model}", f"model={manifest.model}")
    if manifest.kind != kind:
        fix = f"method={manifest.kind}, or leave checkpoint= out"
        raise UserError("checkpoint", where, f"was trained by {manifest.kind}, and the method needs {kind}", fix)
    if alignment is not None and manifest.alignment != alignment:
        fix = f"alignment={manifest.alignment}, or another checkpoint"
        raise UserError("alignment", alignment, f"{where} was trained with alignment={manifest.alignment}", fix)
    if variant is not None and manifest.variant not in (None, variant):
        fix = f"variant={manifest.variant}, or leave variant= out"
        raise UserError("variant", variant, f"{where} is the variant {manifest.variant}", fix)
    if block_size is None or manifest.block_size is None:
        return
    if block_size > manifest.block_size:
        allowed = f"{where} was trained for blocks of {manifest.block_size} and has never predicted further ahead"
        raise UserError("block_size", block_size, allowed, f"block_size={manifest.block_size}, or another checkpoint")
    if block_size < manifest.block_size:
        _warn(f"{where} was trained for blocks of {manifest.block_size}; only {block_size} are used")


@cache
def _warn(message: str) -> None:
    """Warn once per process: planning a sweep resolves the same checkpoint many times."""
    log.warning(message)


def _matches(entry: Released, variant: str | None, alignment: str | None) -> bool:
    """Whether a hub entry answers a request: a request that names no alignment takes the entry's."""
    if (variant or "").split("_")[0] == RELEASED:
        alignment, variant = RELEASED, (variant or "")[len(RELEASED) + 1 :] or None
    return entry.variant == variant and alignment in (None, entry.alignment)


def _missing(
    model: ModelSpec,
    kind: str,
    block_size: int | None,
    variant: str | None,
    alignment: str | None,
    root: Path,
    adds: bool,
) -> UserError:
    if model.source == "local":
        local_path(model)  # a base that is not there is the first thing to say
    name = checkpoint_name(kind, block_size, variant)
    overrides = [f"method={kind}", *_model_overrides(model)]
    if block_size is not None:
        overrides.append(f"block_size={block_size}")
    rest = variant
    if (variant or "").split("_")[0] == RELEASED:
        overrides.append("alignment=released")
        rest = (variant or "")[len(RELEASED) + 1 :] or None
    if rest == "no_sft_loss":
        overrides.append("sft_loss=false")
    elif rest:  # a name of the user's own: only they know its settings
        overrides += [f"variant={rest}", "<the settings that it stands for>"]
    place = None if root == default_checkpoints_dir() else str(root)
    if (root / "local" / model.name / name / MANIFEST_NAME).is_file():  # and was passed over
        overrides.append("overwrite=true")
    request = TrainingRequest(model.name, kind, block_size, alignment, variant, tuple(overrides), place)
    others = sorted(
        {p.name for place in (root / "local", root) for p in (place / model.name).glob(f"{kind}*")} - {name}
    )
    others += [f"{e.id} (block_size={e.block_size}, variant={e.variant})" for e in model.checkpoints if e.kind == kind]
    allowed = f"{model.name} has no checkpoint {name} (looked in {root}" + (", hub)" if model.checkpoints else ")")
    if others:
        allowed += f"; there are {', '.join(others)}"
    if model.small and rest in (None, "no_sft_loss"):
        return MissingCheckpoint("checkpoint", name, allowed, request.command, request)
    untuned = "" if adds else "   (or variant=base for the untuned model)"
    return UserError("checkpoint", name, allowed, request.command + untuned)


def _model_overrides(model: ModelSpec) -> list[str]:
    """The ``model…`` part of a command line that names this base."""
    if model.name in names():
        return [f"model={model.name}"]
    keys = ("id", "revision") if model.source == "hub" else ("path",)
    return [f"model={model.source}", *(f"model.{key}={getattr(model, key)}" for key in keys)]
