"""MARS: an autoregressive model that also reads [MASK]s, so one forward predicts a whole block (arXiv 2604.07023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from harness.engine.commit import Commit
from harness.engine.contract import Context
from harness.engine.forward import backbone, lm_head
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from harness.errors import UserError
from methods.accept import (
    CONFIDENCES,
    accepted_length,
    check_tau,
    check_temperature,
    choose,
    confidence,
    confirmed,
)
from methods.contract import Example, Method, Objective, refuse_sampling
from methods.masks import ALIGNMENTS, CLEAN, MASK, PAD, masked_stream, two_stream_mask
from methods.outcomes import carried, carried_confidences, carry, outcome_window, outcomes

LOSS_WEIGHTS = ("mean", "inverse_t")


def check_block_size(block_size: object) -> None:
    """Raises UserError unless ``block_size`` is a whole number from 1."""
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise UserError("block_size", block_size, "a whole number of tokens, at least 1", "block_size=4")


@dataclass
class MarsObjective(Objective):
    """Cross-entropy of block targets seen through masks, plus ``ar_weight`` times that of the clean stream (Eq. 3–8).

    Attributes:
        block_size: B, tokens predicted together.
        alignment: ``paper`` (m = 0 … B−1, what inference sees) or ``released`` (m = 1 … B, the authors' code).
        ar_weight: weight of the clean stream's loss (the paper's SFT loss).
        sft_loss: False leaves the block targets alone; under ``paper`` m = 0 then gets 1/B of the signal.
        loss_weight: ``mean``, or ``inverse_t``: each block's targets are weighted by 1/t, t ~ U(0.001, 1), the
            diffusion weight that the authors' run without the SFT loss still carried.
    """

    block_size: int = 4
    alignment: str = "paper"
    ar_weight: float = 1.0
    sft_loss: bool = True
    loss_weight: str = "mean"

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        if self.alignment not in ALIGNMENTS:
            raise UserError("alignment", self.alignment, f"one of {', '.join(ALIGNMENTS)}")
        if self.loss_weight not in LOSS_WEIGHTS:
            raise UserError("loss_weight", self.loss_weight, f"one of {', '.join(LOSS_WEIGHTS)}")
        if not self.ar_weight >= 0:
            raise UserError("ar_weight", self.ar_weight, "a number from 0")

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Lay out ``[clean tokens | masks | padding]`` per example.

        Returns:
            ids, position_ids, labels (the next token, -100 where none): int64 [batch, length]; attention bool
            [batch, 1, length, length]; masked, first: bool [batch, length], where a block target is predicted from a
            mask or from the clean token before the block; block_start int64 [batch, length], the block of either.
        """
        if self.mask_token_id is None:
            raise ValueError("MARS trains on a mask token: call bind() with its id first")
        streams = [masked_stream(e.response, self.block_size, self.alignment) for e in examples]
        lengths = [len(e.ids) + len(s.position) for e, s in zip(examples, streams, strict=True)]
        shape = (len(examples), max(lengths))
        ids = torch.full(shape, self.pad_token_id)
        kind = torch.full(shape, PAD)
        position, block_start = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        labels = torch.full(shape, -100)
        first = torch.zeros(shape, dtype=torch.bool)
        for i, (example, stream) in enumerate(zip(examples, streams, strict=True)):
            n, end = len(example.ids), lengths[i]
            tokens = torch.tensor(example.ids)
            targets = tokens[1:].masked_fill(~torch.tensor(example.response[1:], dtype=torch.bool), -100)
            ids[i, :n], ids[i, n:end] = tokens, self.mask_token_id
            kind[i, :n], kind[i, n:end] = CLEAN, MASK
            position[i, :n], position[i, n:end] = torch.arange(n), stream.position
            labels[i, : n - 1], labels[i, n:end] = targets, tokens[stream.position + 1]
            block_start[i, n:end] = stream.block_start
            first[i, stream.first - 1] = True
            block_start[i, stream.first - 1] = stream.first_block_start
        attention = two_stream_mask(kind, position, block_start)
        return {
            "ids": ids,
            "position_ids": position,
            "attention": attention,
            "labels": labels,
            "masked": kind == MASK,
            "first": first,
            "block_start": block_start,
        }

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """``masked`` + ``ar_weight`` · ``clean``, each the mean over response tokens; logits only where labelled."""
        hidden = backbone(model)(
            input_ids=batch["ids"],
            position_ids=batch["position_ids"],
            attention_mask=batch["attention"],
            use_cache=False,
        ).last_hidden_state
        labels, masked, first = batch["labels"], batch["masked"], batch["first"]
        at = (labels != -100) if self.sft_loss else masked | first
        token_loss = nn.functional.cross_entropy(lm_head(model)(hidden[at]).float(), labels[at], reduction="none")
        masked, first = masked[at], first[at]
        block_targets = masked | first
        weight = self._weight(batch, at)[block_targets]
        masked_loss = (token_loss[block_targets] * weight).mean()
        parts = {"masked": masked_loss.detach()}
        if not self.sft_loss:
            return masked_loss, parts
        clean_loss = token_loss[~masked].mean()
        parts["clean"] = clean_loss.detach()
        return masked_loss + self.ar_weight * clean_loss, parts

    def _weight(self, batch: Mapping[str, Tensor], at: Tensor) -> Tensor:
        if self.loss_weight == "mean":
            return torch.ones(int(at.sum()), device=at.device)
        t = torch.rand(batch["block_start"].shape, device=at.device).clamp(min=1e-3)
        return 1 / t.gather(1, batch["block_start"])[at]  # one draw per block: its masks share their block's start


@dataclass
class Mars(Method):
    """Feed ``[newly committed | B−1 masks]``; commit predictions left to right while the confidence passes (§3.4).

    With ``verify`` (not in the paper) nothing is committed on confidence: what the masks predict are drafts, which the
    next forward verifies, with B−1 masks after each of them so that whichever is the last one accepted has the next
    drafts ready. The text is exactly that of greedy AR on the same weights, at B·B − 1 added positions per forward.

    Attributes:
        tau: threshold of the confidence; 1.0 (entropy: 0) commits exactly one token per forward, by definition. Of no
            account with ``verify``: None then.
        block_size: B; predictions have m = 0 … B−1.
        confidence: ``probability`` of the top token, its ``margin`` over the second, or ``entropy`` (nats; accepts at
            or below tau).
        verify: commit only what the model's own next-token prediction confirms.
        temperature: with ``verify``, sample exactly at this temperature.
    """

    name: ClassVar[str] = "mars"
    checkpoint_kind: ClassVar[str] = "mars"
    objective: ClassVar[type[Objective] | None] = MarsObjective
    needs_mask_token: ClassVar[bool] = True

    tau: float | None = 0.95
    block_size: int = 4
    confidence: str = "probability"
    verify: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        check_temperature(self.temperature)
        if self.confidence not in CONFIDENCES:
            raise UserError("confidence", self.confidence, f"one of {', '.join(CONFIDENCES)}")
        if not isinstance(self.verify, bool):
            raise UserError("verify", self.verify, "true or false")
        if self.verify:
            self.tau, self.confidence = None, "probability"
            return
        check_tau(self.tau, self.confidence)
        if self.temperature:
            reason = "what it commits under tau are argmaxes, no samples; verify=true samples exactly"
            raise refuse_sampling(self.name, self.temperature, reason, "verify=true, or temperature=0")

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        return self.verify

    @property
    def window(self) -> int:
        if self.verify:
            return self.block_size**2 - 1
        return (self.context.most_tokens or self.block_size) - 1

    @property
    def trained_block_size(self) -> int:
        return self.block_size

    def start(self, context: Context) -> None:
        super().start(context)
        if context.target.mask_token_id is None:
            raise UserError("checkpoint", None, "mars needs a checkpoint with a mask token, and this one has none")

    def propose(self, rows: list[Row]) -> Window:
        """A row near its end gets no more masks than it has room for: causal masks never see the ones left out."""
        mask_token_id = self.context.target.mask_token_id
        assert mask_token_id is not None
        if self.verify:
            drafts = carried(rows, self.block_size - 1)
            num_drafts = [0 if row.state is None else self.block_size - 1 for row in rows]
            return outcome_window(rows, drafts, num_drafts, self.block_size, mask_token_id)
        count = [min(self.window, row.room - 1) for row in rows]
        masks = torch.tensor(mask_token_id, device=self.context.target.model.device).expand(len(rows), max(count))
        return Window.build(rows, masks, count)

    def accept(self, rows: list[Row], output: Output) -> Commit:
        if self.verify:
            return self._accept_verified(rows, output)
        assert self.tau is not None
        ids, score, passed = confidence(output.logits, self.confidence, self.tau)
        length = accepted_length(passed, output.count)
        return Commit(ids, length, confidences=score, drafted=output.count - 1, accepted=length - 1)

    def _accept_verified(self, rows: list[Row], output: Output) -> Commit:
        """Commit the confirmed drafts and the token after them; carry on what that outcome's masks predict."""
        block_size = self.block_size
        drafts, logits, num_drafts = outcomes(output, block_size)
        targets = choose(logits[:, :, 0], rows, self.temperature, block_size)
        accepted = confirmed(drafts, targets, num_drafts)
        lines = torch.arange(len(rows), device=accepted.device)
        scores = carried_confidences(rows, block_size - 1)
        guesses, score, _ = confidence(logits[lines, accepted, 1:], self.confidence, 1.0)
        carry(rows, targets, accepted + 1, guesses, score)
        path = (torch.arange(1, block_size, device=accepted.device) * block_size - 1).expand(len(rows), -1)
        return Commit(
            targets,
            accepted + 1,
            kept=accepted,
            path=path[:, : drafts.shape[1]],
            draft_confidences=scores,
            drafted=num_drafts,
            accepted=accepted,
        )
