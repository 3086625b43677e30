"""From a configuration to a checkpoint on disk: which weights to start from, what to train on, and the manifest."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from harness.errors import UserError
from harness.models import registry
from harness.models.checkpoints import (
    MissingCheckpoint,
    Resolved,
    checkpoint_name,
    default_checkpoints_dir,
    fingerprint,
    full_variant,
    resolve,
)
from harness.models.load import LoadedModel, open_model
from harness.models.manifest import MANIFEST_NAME, Manifest
from harness.models.registry import ModelSpec
from harness.models.weights import quiet
from harness.results.store import file_lock
from harness.training import data, loop
from methods.contract import OWN_WEIGHTS, Method, Objective

ADAPTERS = ("full", "lora")
SAVE_DTYPES = ("bfloat16", "float32")
PACKAGES = ("torch", "transformers", "accelerate", "peft", "multi-token-harness")


@dataclass
class LoraConfig:
    """Low-rank adapters (``adapter=lora``): rank, scaling alpha/rank, dropout, and which linear layers get one."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: Any = "all-linear"


@dataclass
class TrainConfig:
    """One training. Values and their meaning are in conf/train.yaml; groups bring their own keys."""

    method: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    data: data.DataConfig = field(default_factory=data.DataConfig)
    train: loop.LoopConfig = field(default_factory=loop.LoopConfig)
    block_size: int = 4
    alignment: str = "paper"
    ar_weight: float = 1.0
    sft_loss: bool = True
    loss_weight: str = "mean"
    objective: dict[str, Any] = field(default_factory=dict)
    adapter: str = "full"
    lora: LoraConfig = field(default_factory=LoraConfig)
    init_from: str | None = None
    variant: str | None = None
    checkpoints_dir: str | None = None
    resume: bool = True
    overwrite: bool = False
    device: str = "auto"
    threads: int | None = None


# Settings that a method's objective takes if it has a field of that name.
SHARED_OPTIONS = ("block_size", "alignment", "ar_weight", "sft_loss", "loss_weight")


def train_checkpoint(cfg: DictConfig, overrides: Sequence[str], *, progress: bool = True) -> Path:
    """Make the checkpoint that a composed configuration describes, resuming an interrupted attempt.

    Args:
        cfg: composed from conf/train.yaml.
        overrides: the command line it was composed from; becomes the manifest's command.

    Returns:
        The checkpoint's directory: bf16 safetensors (or a LoRA adapter), tokenizer and manifest.

    Raises:
        UserError: a value out of range, unreadable data, no weights to start from, or a checkpoint already there.
    """
    validate(cfg)
    spec = registry.spec(cfg.model)
    root = Path(cfg.checkpoints_dir or default_checkpoints_dir()).expanduser() / "local" / spec.name
    if int(os.environ.get("RANK", 0)) != 0:  # of several processes of one training, the first holds the lock
        return _train(cfg, overrides, spec, root, progress)
    method: type[Method] = get_class(cfg.method["_target_"])

    def told() -> None:
        print(f"waiting: another process trains {method.name} for {spec.name}", file=sys.stderr, flush=True)

    with file_lock(root / f".{method.name}.lock", on_wait=told):
        return _train(cfg, overrides, spec, root, progress)


def _train(cfg: DictConfig, overrides: Sequence[str], spec: ModelSpec, root: Path, progress: bool) -> Path:
    method: type[Method] = get_class(cfg.method["_target_"])
    objective = build_objective(method, cfg)
    options = objective.options()
    variant = variant_name(cfg, options)
    directory = root / checkpoint_name(method.name, options.get("block_size"), variant)
    if (directory / MANIFEST_NAME).is_file() and not cfg.overwrite:
        raise UserError("checkpoint", str(directory), "is there already", "overwrite=true trains it again")
    work_dir = root / f".{directory.name}.training"
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    adds = method.adds_weights()
    if adds and cfg.adapter != "full":
        allowed = f"{method.name} trains weights of its own beside a frozen model"
        raise UserError("adapter", cfg.adapter, allowed, "leave it out")
    start, base, origin = starting_point(cfg, spec, method, progress)
    training_data = data.prepare(cfg.data, start.tokenizer, cfg.train.max_sequence_length)
    started_from = fingerprint(spec, base)  # now: the directory may hold other weights when the training ends
    check_same_training(work_dir, cfg, {"data_record": training_data.record, "start": started_from})

    pad_token_id = start.tokenizer.pad_token_id
    objective.bind(start.mask_token_id, pad_token_id if isinstance(pad_token_id, int) else 0)
    torch.manual_seed(cfg.train.seed)
    model = start.model
    objective.own = objective.attach(model)
    if objective.own is not None:
        model.requires_grad_(False)
    elif cfg.adapter == "lora":
        model = add_lora(model, cfg.lora, start.mask_token_id)
    result = loop.train(
        objective,
        model,
        training_data.train,
        training_data.held_out,
        loop.LoopConfig(**OmegaConf.to_container(cfg.train)),  # type: ignore[arg-type]
        work_dir,
        title=f"{spec.name} {directory.name}",
        progress=progress,
    )
    manifest = Manifest(
        kind=method.name,
        model=spec.name,
        block_size=options.get("block_size"),
        alignment=options.get("alignment"),
        variant=variant,
        mask_token_id=start.mask_token_id if method.needs_mask_token else None,
        objective=options,
        data=training_data.record,
        steps=result.steps,
        tokens=result.tokens,
        epochs=result.epochs,
        losses=result.losses,
        adapter=cfg.adapter if objective.own is None else "own",
        init_from=origin,
        base=None if objective.own is None else started_from,
        command=f"python -m harness.train {shlex.join(overrides)}",
        seconds=result.seconds,
        versions={name: version for name in PACKAGES if (version := _version(name))},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if int(os.environ.get("RANK", 0)) == 0:
        save(objective.own or model, start, manifest, cfg.train.save_dtype, directory, work_dir)
    return directory


def validate(cfg: DictConfig) -> None:
    """Check ranges before any work; the objective checks its own options.

    Raises:
        UserError: the first key out of range.
    """
    choices = {
        "adapter": ADAPTERS,
        "train.save_dtype": SAVE_DTYPES,
        "train.schedule": tuple(loop.SCHEDULES),
        "train.optimizer": loop.OPTIMIZERS,
    }
    for key, allowed in choices.items():
        value = OmegaConf.select(cfg, key)
        if value not in allowed:
            raise UserError(key, value, f"one of {', '.join(allowed)}")
    lowest = {
        "train.learning_rate": 0, "train.warmup": 0, "train.decay": 0, "train.epochs": 0, "train.max_steps": 0,
        "train.batch_size": 1, "train.accumulation": 1, "train.max_sequence_length": 2, "train.weight_decay": 0,
        "train.max_grad_norm": 0, "train.log_every": 0, "train.eval_every": 0, "train.save_every": 0,
        "train.seed": 0, "data.held_out": 0, "data.limit": 1, "lora.rank": 1, "threads": 1,
    }  # fmt: skip
    for key, low in lowest.items():
        value = OmegaConf.select(cfg, key)
        if value is not None and not value >= low:
            raise UserError(key, value, f"a number from {low}")
    for key in ("train.beta2", "lora.dropout"):
        if not 0 <= OmegaConf.select(cfg, key) < 1:
            raise UserError(key, OmegaConf.select(cfg, key), "a number from 0 to below 1")
    if cfg.train.epochs == 0 and cfg.train.max_steps == 0:
        raise UserError("train.epochs", 0, "0 with train.max_steps=0 trains nothing", "train.epochs=1")


def build_objective(method: type[Method], cfg: DictConfig) -> Objective:
    """The method's objective with those settings that are among its fields, and its own options.

    Raises:
        UserError: the method trains nothing, an option it does not have, or a value out of range.
    """
    if method.objective is None:
        fix = f"train method={method.checkpoint_kind}, which it decodes with"
        raise UserError("method", method.name, "has no training of its own", fix)
    known = method.objective.option_names()
    own: dict[str, Any] = OmegaConf.to_container(cfg.objective)  # type: ignore[assignment]
    for key in own:
        if key not in known:
            raise UserError(f"objective.{key}", own[key], f"{method.name} has the options {', '.join(known) or 'none'}")
    return method.objective(**{k: cfg[k] for k in SHARED_OPTIONS if k in known} | own)


def variant_name(cfg: DictConfig, options: dict[str, Any]) -> str | None:
    """Name of the variant: the user's, else what differs from paper alignment with the SFT loss."""
    if cfg.variant is not None:
        return full_variant(cfg.variant, options.get("alignment"))
    return full_variant("no_sft_loss" if options.get("sft_loss") is False else None, options.get("alignment"))


def starting_point(
    cfg: DictConfig, spec: ModelSpec, method: type[Method], progress: bool
) -> tuple[LoadedModel, Resolved, str | None]:
    """Weights to train, in float32, where they lie, and what the manifest says of them (None for the base).

    ``init_from`` is "base", "ar_sft" (trained first where it is missing and the model is small) or a checkpoint's
    directory; by default everything but AR SFT itself starts from AR SFT, as in the paper.
    """
    wanted = cfg.init_from or ("base" if method.name == "ar_sft" else "ar_sft")
    if wanted == "base":
        if spec.source == "scratch" and method.adds_weights():
            allowed = f"{spec.name} is trained from scratch, and {method.name} adds weights to a trained model"
            raise UserError("init_from", wanted, allowed, "init_from=ar_sft")
        resolved, origin = Resolved(), None
    elif wanted == "ar_sft":
        try:
            resolved = resolve(spec, kind="ar_sft", checkpoints_dir=cfg.checkpoints_dir)
        except MissingCheckpoint as missing:
            train_on_demand(missing.request.overrides, cfg.checkpoints_dir, progress=progress)
            resolved = resolve(spec, kind="ar_sft", checkpoints_dir=cfg.checkpoints_dir)
        except UserError as error:
            raise UserError("init_from", wanted, error.allowed, f"{error.fix}; or init_from=base") from None
        origin = resolved.released.id if resolved.released else f"{spec.name}/ar_sft"
        if resolved == Resolved():  # the base stands for AR SFT
            origin = None
    else:
        directory = Path(wanted).expanduser().resolve()  # found again from wherever it is used
        manifest = Manifest.read(directory)
        if manifest.adapter == "own":
            allowed = f"a model's weights, and {directory} holds what {manifest.kind} adds to some"
            raise UserError("init_from", wanted, allowed, f"init_from={manifest.init_from or 'base'}")
        resolved = resolve(spec, kind=manifest.kind, checkpoint=directory)
        origin = str(directory)
    loaded = open_model(spec, resolved, dtype="float32", device=cfg.device, needs_mask=method.needs_mask_token)
    return loaded, resolved, origin


def train_on_demand(overrides: Sequence[str], checkpoints_dir: str | None = None, *, progress: bool = True) -> Path:
    """Make a missing checkpoint of a small model from the overrides of its ``MissingCheckpoint``."""
    from harness.training.compose import compose

    place = [f"checkpoints_dir='{checkpoints_dir}'"] if checkpoints_dir else []
    return train_checkpoint(compose([*overrides, *place]), overrides, progress=progress)


def check_same_training(work_dir: Path, cfg: DictConfig, further: dict[str, Any]) -> None:
    """Start or resume ``work_dir``: states left by another configuration, data or start are never continued.

    Raises:
        UserError: they were, and ``resume`` is on.
    """
    described: dict[str, Any] = OmegaConf.to_container(cfg)  # type: ignore[assignment]
    for key in ("checkpoints_dir", "resume", "overwrite", "device", "threads"):
        described.pop(key)
    now = json.dumps(described | further, indent=2, sort_keys=True)
    path = work_dir / "config.json"
    if not cfg.resume:
        shutil.rmtree(work_dir, ignore_errors=True)
    elif path.is_file() and path.read_text("utf-8") != now:
        allowed = f"{work_dir} holds an interrupted training with other settings"
        raise UserError("resume", True, allowed, "resume=false starts over, the same settings continue it")
    work_dir.mkdir(parents=True, exist_ok=True)
    path.write_text(now, "utf-8")


def add_lora(model: PreTrainedModel, lora: DictConfig, mask_token_id: int | None) -> PreTrainedModel:
    """Freeze the base, add low-rank adapters, and train the mask's embedding too: it has meant nothing before."""
    import peft

    targets: Any = OmegaConf.to_container(lora)["target_modules"]  # type: ignore[call-overload, index]
    return peft.get_peft_model(  # type: ignore[return-value]
        model,
        peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=targets,
            trainable_token_indices=None if mask_token_id is None else {"embed_tokens": [mask_token_id]},
            task_type="CAUSAL_LM",
        ),
    )


def save(model: nn.Module, start: LoadedModel, manifest: Manifest, dtype: str, directory: Path, work_dir: Path) -> None:
    """Write the checkpoint beside its place and move it there whole; the training log goes with it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    if manifest.adapter == "lora" and manifest.init_from is not None:
        # An adapter is loaded onto the base; this one was trained on other weights, so they are saved with it.
        model = model.merge_and_unload()  # type: ignore[operator]
    try:
        with quiet():
            model.to(getattr(torch, dtype))
            if manifest.adapter == "own":
                save_file({k: v.contiguous() for k, v in model.state_dict().items()}, temporary / OWN_WEIGHTS)
            else:
                model.save_pretrained(temporary)  # type: ignore[operator]
                start.tokenizer.save_pretrained(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # peft's empty model card
        shutil.copy(work_dir / loop.LOG_NAME, temporary / loop.LOG_NAME)
        manifest.write(temporary)
        for path in (temporary, *temporary.iterdir()):  # made for this user alone, meant to be shared
            path.chmod(0o755 if path.is_dir() else 0o644)
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(work_dir)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
