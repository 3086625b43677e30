"""Block diffusion: blocks one after another, each denoised from masks in a few forwards (BD3-LM, arXiv 2503.09573)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from harness.engine.forward import backbone, lm_head
from harness.errors import UserError
from methods.contract import Example, Method, Objective
from methods.mars import check_block_size
from methods.masks import ALIGNMENTS, CLEAN, MASK, PAD, block_diffusion_mask, segments


def shift_of(alignment: str) -> bool:
    """Whether logits are right-shifted, where nothing else is said: ``released`` denoises a token at its own place."""
    return alignment == "paper"


@dataclass(frozen=True)
class Layout:
    """One response laid out as ``[clean tokens | noisy blocks]``; all int64.

    The clean copy of the last block is left out, as no later block sees it.

    Attributes:
        ids: [length], the true tokens of both streams.
        position: [length].
        block: [length], number of the block, counted so that earlier text has lower numbers.
        num_clean: length of the clean stream.
        noisy: [targets], columns of the response's tokens in the noisy stream.
        state: [targets], columns whose hidden states predict them.
    """

    ids: Tensor
    position: Tensor
    block: Tensor
    num_clean: int
    noisy: Tensor
    state: Tensor


def lay_out(ids: Sequence[int], start: int, block_size: int, alignment: str, shift: bool) -> Layout:
    """Lay out the response ``ids[start:]`` to the prompt ``ids[:start]``.

    Decoding always feeds whole blocks, so the last one is filled with the response's last token (its end of turn):
    were it shorter, its length would tell the ending. Under ``released`` the first block may begin in the prompt.
    """
    offset = start if alignment == "paper" else 0
    begin = start - (start - offset) % block_size
    end = len(ids) + (begin - len(ids)) % block_size
    num_clean = end - block_size
    text = torch.tensor([*ids, *[ids[-1]] * (end - len(ids))])
    position = torch.cat([torch.arange(num_clean), torch.arange(begin, end)])
    target = torch.arange(start, end)
    noisy = num_clean + target - begin
    state = noisy
    if shift:  # a block's first token is predicted from the clean text before it: the noisy one is in another block
        is_first = (target - offset) % block_size == 0
        state = torch.where(is_first, target - 1, noisy - 1)
    block = torch.div(position - offset, block_size, rounding_mode="floor")
    return Layout(text[position], position, block, num_clean, noisy, state)


@dataclass
class BlockDiffusionObjective(Objective):
    """Masked diffusion inside blocks: cross-entropy of masked tokens, weighted by 1/t (BD3-LM Eq. 8 and §5.1).

    Each block draws a mask probability t, uniform between ``t_min`` and ``t_max``, and masks each of its response tokens
    with it. The loss is Σ over masked tokens of CE / t, divided by the number of response tokens, masked or not; over t
    uniform from 0 to 1 that is the bound on the likelihood, and clipping leaves out the t of little signal (no or all
    tokens masked). A conversation's turns are trained apart, each as the answer to what precedes it, as in decoding. The
    last token of a response should be its end of turn: one cut off by ``max_sequence_length`` repeats its last token to
    the end of the block.

    Attributes:
        block_size: B.
        alignment: ``paper`` (blocks count from the start of the response, as in decoding after any prompt) or
            ``released`` (the dLLM library's: from position 0, and the block that straddles the prompt's end keeps its
            prompt tokens unmasked).
        shift: the state at position i predicts token i+1, as in the autoregressive model that the training starts from,
            or token i. None: shifted for ``paper``, not for ``released``.
        t_min, t_max: bounds of t; BD3-LM's for blocks of 4 (for 16 it has 0.3 and 0.8).
    """

    block_size: int = 4
    alignment: str = "paper"
    shift: bool | None = None
    t_min: float = 0.45
    t_max: float = 0.95

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        if self.alignment not in ALIGNMENTS:
            raise UserError("alignment", self.alignment, f"one of {', '.join(ALIGNMENTS)}")
        if self.shift is None:
            self.shift = shift_of(self.alignment)  # so that the manifest records it
        if not isinstance(self.shift, bool):
            raise UserError("objective.shift", self.shift, "true, false or null")
        if not 0 < self.t_min <= self.t_max <= 1:
            allowed = "0 < t_min <= t_max <= 1, as they are probabilities of a mask and the loss divides by them"
            raise UserError("objective.t_min", self.t_min, f"{allowed}; t_max is {self.t_max}")

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Lay out ``[clean tokens | noisy blocks | padding]``, one line per assistant turn.

        Returns:
            All [lines, length]: ``ids`` int64, true tokens also where masks will stand; ``position_ids`` int64;
            ``labels`` int64, the token that a column's state predicts or -100; ``source`` int64, that token's own column
            in the noisy stream; ``masked`` bool and ``t`` float, the noise. ``fixed_masked`` and ``fixed_t`` are noise
            that depends on the text alone, so that held-out losses can be compared. ``attention`` bool
            [lines, 1, length, length].
        """
        if self.mask_token_id is None:
            raise ValueError("block diffusion trains on a mask token: call bind() with its id first")
        layouts = [
            lay_out(example.ids[:end], max(start, 1), self.block_size, self.alignment, bool(self.shift))
            for example in examples
            for start, end in segments(example.response)
            if end > max(start, 1)  # a sequence has no token before its first one to predict it from
        ]
        shape = (len(layouts), max(len(layout.ids) for layout in layouts))
        ids = torch.full(shape, self.pad_token_id)
        kind = torch.full(shape, PAD)
        position, block, source = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
        labels = torch.full(shape, -100)
        noise = {"masked": torch.zeros(shape, dtype=torch.bool), "t": torch.ones(shape)}
        fixed = {name: value.clone() for name, value in noise.items()}
        for i, layout in enumerate(layouts):
            n, clean = len(layout.ids), layout.num_clean
            ids[i, :n], position[i, :n], block[i, :n] = layout.ids, layout.position, layout.block
            kind[i, :clean], kind[i, clean:n] = CLEAN, MASK
            labels[i, layout.state], source[i, layout.state] = layout.ids[layout.noisy], layout.noisy
            seed = zlib.crc32(layout.ids.numpy().tobytes())
            for drawn, generator in ((noise, None), (fixed, torch.Generator().manual_seed(seed))):
                drawn["t"][i, clean:n] = self._draw_t(n - clean, generator)
                uniform = torch.rand(len(layout.noisy), generator=generator)
                drawn["masked"][i, layout.noisy] = uniform < drawn["t"][i, layout.noisy]
        labels[labels == self.mask_token_id] = -100  # never predicted, so no target
        return {
            "ids": ids,
            "position_ids": position,
            "attention": block_diffusion_mask(kind, block),
            "labels": labels,
            "source": source,
            **noise,
            **{f"fixed_{name}": value for name, value in fixed.items()},
        }

    def _draw_t(self, length: int, generator: torch.Generator | None) -> Tensor:
        t = self.t_min + (self.t_max - self.t_min) * torch.rand(length // self.block_size, generator=generator)
        return t.repeat_interleave(self.block_size)

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss; its part ``masked`` is the plain mean over masked tokens."""
        assert self.mask_token_id is not None
        drawn = "" if model.training else "fixed_"
        masked, t = batch[f"{drawn}masked"], batch[f"{drawn}t"]
        hidden = backbone(model)(
            input_ids=batch["ids"].masked_fill(masked, self.mask_token_id),
            position_ids=batch["position_ids"],
            attention_mask=batch["attention"],
            use_cache=False,
        ).last_hidden_state
        labels, source = batch["labels"], batch["source"]
        at = (labels != -100) & masked.gather(1, source)
        logits = without_mask(lm_head(model)(hidden[at]).float(), self.mask_token_id)
        token_loss = nn.functional.cross_entropy(logits, labels[at], reduction="none")
        loss = (token_loss / t.gather(1, source)[at]).sum() / (labels != -100).sum()
        return loss, {"masked": token_loss.detach().sum() / at.sum().clamp(min=1)}


def without_mask(logits: Tensor, mask_token_id: int) -> Tensor:
    """Logits [..., vocab] under which a mask is never predicted."""
    return logits.index_fill(-1, torch.tensor([mask_token_id], device=logits.device), -torch.inf)


@dataclass
class BlockDiffusion(Method):
    """Under work."""

    name: ClassVar[str] = "block_diffusion"
    checkpoint_kind: ClassVar[str] = "block_diffusion"
    objective: ClassVar[type[Objective] | None] = BlockDiffusionObjective
    needs_mask_token: ClassVar[bool] = True
