"""One training loop for every objective: transformers' Trainer around (objective, model), resumable and quiet.

The Trainer brings mixed precision, accumulation, several GPUs and exact resuming; a JSONL log has a line per interval.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from harness.training.optimizer import MuonWithAdamW
from harness.training.trainer import ObjectiveModule, ObjectiveTrainer, Watch
from methods.contract import Example, Objective

OPTIMIZERS = ("adamw", "muon")
LOG_NAME = "train.jsonl"
SCHEDULES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant_with_warmup",
    "stable_decay": "warmup_stable_decay",
}


@dataclass
class LoopConfig:
    """How to optimise (conf/train/*.yaml); every field is a ``train.…`` key.

    Attributes:
        learning_rate, schedule: the peak; "cosine", "linear", "constant", "stable_decay" (constant, then linear to 0).
        warmup, decay: steps of warm-up and of the final decay of ``stable_decay``; below 1 a share of all steps.
        epochs, max_steps: passes over the data; ``max_steps`` above 0 decides instead.
        batch_size, accumulation: examples per device and forward, forwards per step.
        max_sequence_length: tokens of a chat that are kept.
        optimizer: "adamw", or "muon" (harness/training/optimizer.py), which needs fewer tokens from random weights.
        weight_decay, beta2, max_grad_norm: decay of weights and second moments, clipping of the gradient's norm.
        bf16: run forwards under bfloat16 autocast (weights and optimiser stay float32).
        save_dtype: of the final checkpoint, "bfloat16" or "float32".
        log_every, eval_every, save_every: steps between log lines, held-out losses, resumable states; 0 is never.
        seed: of initial weights, order and LoRA.
        gradient_checkpointing: recompute activations in the backward pass to save memory.
    """

    learning_rate: float = 5e-6
    schedule: str = "cosine"
    warmup: float = 0.03
    decay: float = 0.25
    epochs: float = 1.0
    max_steps: int = 0
    batch_size: int = 8
    accumulation: int = 1
    max_sequence_length: int = 512
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    beta2: float = 0.999
    max_grad_norm: float = 1.0
    bf16: bool = True
    save_dtype: str = "bfloat16"
    log_every: int = 50
    eval_every: int = 500
    save_every: int = 500
    seed: int = 0
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class TrainingResult:
    """What a finished training reports to the manifest: steps, tokens of the chats seen, seconds, last losses."""

    steps: int
    tokens: int
    epochs: float
    seconds: float
    losses: dict[str, float]


def train(
    objective: Objective,
    model: PreTrainedModel,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    config: LoopConfig,
    work_dir: Path,
    *,
    title: str = "training",
    progress: bool = True,
) -> TrainingResult:
    """Train ``model`` in place, resuming from ``work_dir`` if an interrupted run left its state there.

    Args:
        objective: layout and loss, already bound to mask and pad ids.
        model: float32 weights, on any device; the Trainer moves it.
        examples, held_out: training sequences; ``held_out`` may be empty.
        work_dir: resumable states and the log ``train.jsonl``; the caller removes or keeps it.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    steps = total_steps(config, len(examples))
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    arguments = TrainingArguments(
        output_dir=str(work_dir),
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        gradient_accumulation_steps=config.accumulation,
        learning_rate=config.learning_rate,
        lr_scheduler_type=SCHEDULES[config.schedule],
        lr_scheduler_kwargs=decay_arguments(config, steps),
        warmup_steps=count_steps(config.warmup, steps),
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        weight_decay=config.weight_decay,
        adam_beta2=config.beta2,
        max_grad_norm=config.max_grad_norm,
        bf16=config.bf16,
        logging_steps=config.log_every or math.inf,
        logging_strategy="steps" if config.log_every else "no",
        eval_steps=config.eval_every or None,
        eval_strategy="steps" if config.eval_every and held_out else "no",
        save_steps=config.save_every or 500,
        save_strategy="steps" if config.save_every else "no",
        save_total_limit=1,
        seed=config.seed,
        data_seed=config.seed,
        report_to="none",
        log_level="error",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=model.device.type == "cpu",
        ddp_find_unused_parameters=False,
    )
    watch = Watch(title, progress)

    def collate(batch: list[Example]) -> dict[str, Any]:
        return {"batch": objective.collate(batch), "num_tokens": sum(len(e.ids) for e in batch)}

    module = ObjectiveModule(objective, model)
    optimizer = None  # the Trainer makes AdamW
    if config.optimizer == "muon":
        optimizer = MuonWithAdamW(module, lr=config.learning_rate, weight_decay=config.weight_decay, beta2=config.beta2)
    trainer = ObjectiveTrainer(
        model=module,
        optimizers=(optimizer, None),
        args=arguments,
        data_collator=collate,
        train_dataset=list(examples),
        eval_dataset=list(held_out) or None,
        callbacks=[watch],
        lengths=[len(e.ids) for e in examples],
        log_path=work_dir / LOG_NAME,
    )
    watch.trainer = trainer
    trainer.remove_callback(PrinterCallback)  # the bar and the log say it better
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(work_dir)))
    losses = last_losses(trainer.state.log_history)
    if held_out:
        losses["held_out"] = trainer.evaluate()["eval_loss"]
    return TrainingResult(
        steps=trainer.state.global_step,
        tokens=int(trainer.state.log_history[-1]["tokens"]),
        epochs=round(float(trainer.state.epoch or 0), 4),
        seconds=trainer.state.log_history[-1]["seconds"],
        losses={name: round(value, 5) for name, value in losses.items()},
    )


def total_steps(config: LoopConfig, num_examples: int) -> int:
    """Optimiser steps of a training, over all devices."""
    if config.max_steps:
        return config.max_steps
    per_step = config.batch_size * config.accumulation * int(os.environ.get("WORLD_SIZE", 1))
    return math.ceil(config.epochs * math.ceil(num_examples / per_step))


def decay_arguments(config: LoopConfig, steps: int) -> dict[str, Any]:
    """What the schedule wants to know beyond the warm-up."""
    if config.schedule != "stable_decay":
        return {}
    return {"num_decay_steps": count_steps(config.decay, steps), "decay_type": "linear"}


def count_steps(count_or_share: float, steps: int) -> int:
    """Below 1 a share of all steps, else a count."""
    return int(count_or_share) if count_or_share >= 1 else math.ceil(count_or_share * steps)


def last_losses(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The newest value of the training loss and of each of its parts."""
    losses: dict[str, float] = {}
    for entry in history:
        losses |= {k.removeprefix("loss_"): v for k, v in entry.items() if k == "loss" or k.startswith("loss_")}
    return losses
