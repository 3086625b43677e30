"""transformers' Trainer around (objective, model): its loss, its order of examples, its log and its progress bar."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Sampler
from tqdm import tqdm
from transformers import Trainer, TrainerCallback

from harness.errors import UserError
from methods.contract import Objective

STATE_NAME = "trained.safetensors"


class ObjectiveModule(nn.Module):
    """An objective and its model behind one ``forward``, so that data-parallel wrappers see every gradient."""

    def __init__(self, objective: Objective, model: nn.Module) -> None:
        super().__init__()
        self.objective, self.model, self.own = objective, model, objective.own

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
