"""One training loop for every objective: transformers' Trainer around (objective, model), resumable and quiet.

The Trainer brings mixed precision, accumulation, several GPUs and exact resuming; this file gives it an objective,
keeps a JSONL log with one line per interval, and shows one progress bar.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Sampler
from tqdm import tqdm
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from harness.errors import UserError
from harness.training.optimizer import MuonWithAdamW
from methods.contract import Example, Objective

OPTIMIZERS = ("adamw", "muon")
LOG_NAME = "train.jsonl"
STATE_NAME = "trained.safetensors"
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


class ObjectiveModule(nn.Module):
    """An objective and its model behind one ``forward``, so that data-parallel wrappers see every gradient."""

    def __init__(self, objective: Objective, model: nn.Module) -> None:
        super().__init__()
        self.objective, self.model = objective, model

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective.loss(self.model, batch)


class LengthGrouped(Sampler[int]):
    """Random order in which the examples of a batch have similar lengths: little padding, batches still shuffled."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, pool: int = 50) -> None:
        self.lengths, self.batch_size, self.seed, self.pool, self.epoch = lengths, batch_size, seed, pool, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch)) % 2**63)
        order = torch.randperm(len(self), generator=generator).tolist()
        batches: list[list[int]] = []
        step = self.batch_size * self.pool
        for start in range(0, len(order), step):
            near = sorted(order[start : start + step], key=lambda i: self.lengths[i])
            batches += [near[i : i + self.batch_size] for i in range(0, len(near), self.batch_size)]
        # A short batch in the middle would shift all later ones: it stays last.
        last = [batches.pop(k) for k in range(len(batches)) if len(batches[k]) < self.batch_size][:1]
        for k in torch.randperm(len(batches), generator=generator).tolist():
            yield from batches[k]
        for batch in last:
            yield from batch


class ObjectiveTrainer(Trainer):
    """Trainer whose loss comes from the module, with the loss's parts, tokens and seconds in its log."""

    def __init__(self, *args: Any, lengths: Sequence[int], log_path: Path, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lengths, self.log_path = lengths, log_path
        self.parts: dict[str, Tensor] = {}
        self.num_parts = 0
        self.tokens_here = 0
        self.tokens_before, self.seconds_before = 0, 0.0
        self.started = time.perf_counter()

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return LengthGrouped(self.lengths, self.args.per_device_train_batch_size, self.args.seed)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, parts = model(inputs["batch"])
        if model.training:
            self.tokens_here += inputs["num_tokens"]
            self.num_parts += 1
            for name, value in parts.items():
                self.parts[name] = self.parts.get(name, torch.zeros_like(value)) + value
        return (loss, {}) if return_outputs else loss

    def prediction_step(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> tuple[Tensor, None, None]:
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs).detach(), None, None

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """What the optimiser moves; a tied weight comes once."""
        module = self.accelerator.unwrap_model(self.model)
        return {name: p for name, p in module.named_parameters() if p.requires_grad}

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """A resumable state holds what is trained: named once where tied, and without a frozen base."""
        if self.args.should_save:
            directory = Path(output_dir or str(self.args.output_dir))
            directory.mkdir(parents=True, exist_ok=True)
            trained = {name: p.detach().contiguous() for name, p in self.trained_parameters().items()}
            save_file(trained, directory / STATE_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        saved = load_file(Path(resume_from_checkpoint) / STATE_NAME)
        parameters = self.trained_parameters()
        if saved.keys() != parameters.keys():
            fix = f"remove {self.args.output_dir} to start over"
            raise UserError("train", resume_from_checkpoint, "was saved by a training of other parameters", fix)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved[name])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs = {k: v for k, v in logs.items() if not k.endswith(("_runtime", "_per_second"))}
        if self.num_parts and "loss" in logs:
            for name, value in self.parts.items():
                gathered = self.accelerator.gather(value.reshape(1) / self.num_parts)
                logs[f"loss_{name}"] = gathered.mean().item()
            self.parts, self.num_parts = {}, 0
        tokens = torch.tensor([self.tokens_here], device=self.args.device)
        logs["tokens"] = self.tokens_before + int(self.accelerator.gather(tokens).sum())
        logs["seconds"] = round(self.seconds_before + time.perf_counter() - self.started, 2)
        super().log(logs, start_time)
        if self.is_world_process_zero():
            with self.log_path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(self.state.log_history[-1]) + "\n")


class Watch(TrainerCallback):
    """One bar with loss and tokens per second; counts of a resumed run go on from its last log line."""

    def __init__(self, title: str, show: bool) -> None:
        self.title, self.show = title, show
        self.trainer: ObjectiveTrainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer = self.trainer
        assert trainer is not None
        trainer.started = time.perf_counter()
        if state.is_world_process_zero:  # lines after the state that a run resumes from will be written again
            lines = [json.dumps(entry) + "\n" for entry in state.log_history]
            trainer.log_path.write_text("".join(lines), encoding="utf-8")
        seen = [entry for entry in state.log_history if "seconds" in entry]
        if seen:
            trainer.tokens_before, trainer.seconds_before = seen[-1]["tokens"], seen[-1]["seconds"]
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc=self.title, unit="step",
            disable=not self.show or not state.is_world_process_zero, dynamic_ncols=True,
        )  # fmt: skip

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.bar.update(state.global_step - self.bar.n)
        if args.save_strategy == "steps" and state.global_step % state.save_steps == 0:
            control.should_log = True  # a resumed run reads its counts from the log

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        trainer = self.trainer
        assert trainer is not None
        if logs and "loss" in logs:
            rate = (logs["tokens"] - trainer.tokens_before) / max(1e-9, logs["seconds"] - trainer.seconds_before)
            self.bar.set_postfix_str(f"loss {logs['loss']:.3f}, {rate:,.0f} tokens/s")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.bar.close()


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
