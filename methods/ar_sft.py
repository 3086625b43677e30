"""AR SFT: next-token decoding and cross-entropy on the response; what every number is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from harness.engine.commit import Commit
from harness.engine.forward import backbone, lm_head
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from methods.accept import check_temperature, choose
from methods.contract import Example, Method, Objective


@dataclass
class ArSftObjective(Objective):
    """Mean cross-entropy of response tokens under a causal mask."""

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """``ids`` int64 [batch, length] and ``labels`` int64 [batch, length], -100 where position t+1 is no target."""
        length = max(len(e.ids) for e in examples)
        ids = torch.full((len(examples), length), self.pad_token_id)
        labels = torch.full((len(examples), length), -100)
        for i, example in enumerate(examples):
            n = len(example.ids)
            ids[i, :n] = torch.tensor(example.ids)
            target = torch.tensor(example.ids[1:]).masked_fill(
                ~torch.tensor(example.response[1:], dtype=torch.bool), -100
            )
            labels[i, : n - 1] = target
        return {"ids": ids, "labels": labels}

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits are computed at labelled positions only; right padding needs no mask under causal attention."""
        hidden = backbone(model)(input_ids=batch["ids"], use_cache=False).last_hidden_state
        at = batch["labels"] != -100
        loss = nn.functional.cross_entropy(lm_head(model)(hidden[at]).float(), batch["labels"][at])
        return loss, {"ar": loss.detach()}


@dataclass
class ArSft(Method):
    """Window = the last committed token; T tokens cost T forwards. Greedy, or sampled at ``temperature`` above 0."""

    name: ClassVar[str] = "ar_sft"
    checkpoint_kind: ClassVar[str] = "ar_sft"
    lossless: ClassVar[bool] = True
    objective: ClassVar[type[Objective] | None] = ArSftObjective

    temperature: float = 0.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def propose(self, rows: list[Row]) -> Window:
        return Window.build(rows)

    def accept(self, rows: list[Row], output: Output) -> Commit:
        return Commit.one(choose(output.logits, rows, self.temperature, 1))
