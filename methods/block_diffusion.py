"""Block diffusion: blocks one after another, each denoised from masks in a few forwards (BD3-LM, arXiv 2503.09573)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from harness.engine.commit import Commit
from harness.engine.contract import Context
from harness.engine.forward import backbone, lm_head
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from harness.errors import UserError
from methods.accept import CONFIDENCES, check_tau, confidence
from methods.contract import Example, Method, Objective
from methods.mars import check_block_size
from methods.masks import ALIGNMENTS, CLEAN, MASK, PAD, block_diffusion_mask, segments

STORES = ("separate", "fused")


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

    Each block draws a mask probability t, uniform between ``t_min`` and ``t_max``, and masks each of its response
    tokens with it. The loss is Σ over masked tokens of CE / t, divided by the number of response tokens, masked or not.
    Over t uniform from 0 to 1 that is the bound on the likelihood; clipping leaves out the t of little signal, at which
    no or all tokens are masked. A conversation's turns are trained apart, each as the answer to what precedes it, as in
    decoding. A response should end with its end of turn: one cut off by ``max_sequence_length`` learns to repeat its
    last token to the end of the block.

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
            ``labels`` int64, the token that a column's state predicts or -100; ``source`` int64, that token's own
            column in the noisy stream; ``masked`` bool and ``t`` float, the noise; ``fixed_masked`` and ``fixed_t``,
            noise that follows from the text alone, so that held-out losses can be compared. ``attention`` bool
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
class BlockState:
    """A row's block in the making, on the model's device.

    Attributes:
        ids: int64 [B], with masks where nothing is known.
        known: bool [B].
        score: fp32 [B], the confidence at which each token was unmasked.
        first: token, confidence and whether it passes, for the block's first position as the clean text predicts it.
        stored: length of the text that a forward of its own has read (``store=separate``).
    """

    ids: Tensor
    known: Tensor
    score: Tensor
    first: tuple[Tensor, ...]
    stored: int = 0


@dataclass
class BlockDiffusion(Method):
    """Feed B masks after the text; each forward unmasks the sure ones; a full block is committed (BD3-LM Algorithm 2).

    Inner forwards commit nothing. B positions are always fed, as in training, and the engine trims the last block. All
    cache modes take the same forwards: a separate one for the finished block is spent whether or not it is kept.

    Attributes:
        tau: a forward unmasks every position whose confidence reaches it, and the most confident one in any case; 1.0
            (entropy: 0) unmasks exactly one.
        block_size: B.
        confidence: ``probability`` of the top token, its ``margin`` over the second, or ``entropy`` (nats; unmasks at
            or below tau).
        store: ``separate`` spends a forward on reading a finished block, or the prompt (BD3-LM); ``fused`` lets the
            next block's masks ride along with it.
        alignment: what the checkpoint was trained with: blocks count from the start of the response (``paper``) or of
            the sequence (``released``). None takes it from the checkpoint; where that says nothing it is ``paper``.
        shift: whether the state at position i predicts token i+1; None takes it from the checkpoint, else from
            ``alignment``.
    """

    name: ClassVar[str] = "block_diffusion"
    checkpoint_kind: ClassVar[str] = "block_diffusion"
    objective: ClassVar[type[Objective] | None] = BlockDiffusionObjective
    needs_mask_token: ClassVar[bool] = True
    greedy_only: ClassVar[str] = "tokens are unmasked in the order of their confidence, which is that of the best token"

    tau: float = 0.95
    block_size: int = 4
    confidence: str = "probability"
    store: str = "separate"
    alignment: str | None = None
    shift: bool | None = None

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        for key, value, allowed in (
            ("confidence", self.confidence, CONFIDENCES),
            ("method.store", self.store, STORES),
            ("method.alignment", self.alignment, (*ALIGNMENTS, None)),
        ):
            if value not in allowed:
                raise UserError(key, value, f"one of {', '.join(name or 'null' for name in allowed)}")
        if self.shift is not None and not isinstance(self.shift, bool):
            raise UserError("method.shift", self.shift, "true, false or null")
        check_tau(self.tau, self.confidence)
        self._asked = {"alignment": self.alignment, "shift": self.shift}  # what ``fit`` starts from each time
        self.settled: dict[str, Any] = {}
        self.fit(None)

    @property
    def window(self) -> int:
        return self.block_size

    @property
    def trained_block_size(self) -> int:
        return self.block_size

    @property
    def text_block(self) -> int:  # type: ignore[override]  # here it is no constant of the class
        return self.block_size

    @property
    def text_block_start(self) -> str:  # type: ignore[override]
        return "sequence" if self.settled["alignment"] == "released" else "prompt"

    def fit(self, manifest: Any) -> None:
        """Settle ``alignment`` and ``shift``: as asked, else as trained, else the paper's.

        Raises:
            UserError: a training that contradicts what was asked for.
        """
        trained: dict[str, Any] = {}
        if manifest is not None:
            trained = {"alignment": manifest.alignment, "shift": manifest.objective.get("shift")}
        for key, value in trained.items():
            own = self._asked[key]
            if None not in (own, value) and own != value:
                shown = str(value).lower()
                raise UserError(
                    f"method.{key}", own, f"the checkpoint was trained with {shown}", f"method.{key}={shown}"
                )
        usual: dict[str, Any] = {}  # what null means
        for key in ("alignment", "shift"):
            usual[key] = trained.get(key)
            if usual[key] is None:
                usual[key] = "paper" if key == "alignment" else shift_of(self.settled["alignment"])
            asked = self._asked[key]
            self.settled[key] = usual[key] if asked is None else asked
            setattr(self, key, None if self.settled[key] == usual[key] else asked)  # one spelling of the usual

    def start(self, context: Context) -> None:
        """Fit the checkpoint.

        Raises:
            UserError: no mask token, or as ``fit``.
        """
        super().start(context)
        mask = context.target.mask_token_id
        if mask is None:
            raise UserError("checkpoint", None, "block_diffusion needs a checkpoint with a mask token")
        self.mask_token_id = mask
        self.fit(context.target.manifest)

    def admit(self, row: Row) -> None:
        """The first block may begin in the prompt; its tokens there are known."""
        device = self.context.target.model.device
        tail = row.tokens[len(row.tokens) - self._tail(row) :]
        masks = [self.mask_token_id] * (self.block_size - len(tail))
        place = torch.arange(self.block_size, device=device)
        nothing = (torch.tensor(self.mask_token_id), torch.tensor(0.0), torch.tensor(False))
        row.state = BlockState(
            torch.tensor(tail + masks, device=device),
            place < len(tail),
            torch.zeros(self.block_size, device=device),
            tuple(x.to(device) for x in nothing),
        )

    def _tail(self, row: Row) -> int:
        """Committed tokens that belong to the block in the making."""
        start = row.prompt_length if self.text_block_start == "prompt" else 0
        return (len(row.tokens) - start) % self.block_size

    @torch.no_grad()
    def observe(self, rows: list[Row], output: Output) -> None:
        """What was stored predicts the first position of the block after it."""
        last = (output.window.pending - 1)[:, None, None].expand(-1, -1, output.hidden.shape[-1])
        logits = lm_head(self.context.target.model)(output.hidden.gather(1, last))
        first = confidence(without_mask(logits, self.mask_token_id), self.confidence, self.tau)
        for i, row in enumerate(rows):
            row.state.first = tuple(x[i, 0] for x in first)
            if row.new_tokens:  # a finished block, which then needs no forward of its own; else a piece of the prompt
                row.state.stored = len(row.tokens)

    def propose(self, rows: list[Row]) -> Window:
        """Pending tokens up to the block's start, then the block; a row that stores separately feeds no block."""
        pending = [len(row.tokens) - self._tail(row) - row.cached for row in rows]
        count = [self.block_size] * len(rows)
        for i, row in enumerate(rows):
            if self.store == "separate" and pending[i] and row.state.stored != len(row.tokens):
                count[i], row.state.stored = 0, len(row.tokens)
        offsets = torch.arange(self.block_size) + (0 if self.settled["shift"] else 1)
        return Window.build(
            rows,
            torch.stack([row.state.ids for row in rows]),
            count,
            visible=torch.ones(self.block_size, self.block_size, dtype=torch.bool),
            logits=offsets,
            text_block=self.text_block,
            text_block_start=self.text_block_start,
            pending=pending,
        )

    def accept(self, rows: list[Row], output: Output) -> Commit:
        states: list[BlockState] = [row.state for row in rows]
        block, known, score = (torch.stack([getattr(s, name) for s in states]) for name in ("ids", "known", "score"))
        predicted = confidence(without_mask(output.logits, self.mask_token_id), self.confidence, self.tau)
        if self.settled["shift"]:  # the first column is that of the last pending token, void where nothing was pending
            has_pending = output.window.pending > 0
            remembered = (torch.stack(x) for x in zip(*(s.first for s in states), strict=True))
            for new, old in zip(predicted, remembered, strict=True):
                new[:, 0] = torch.where(has_pending, new[:, 0], old)
        ids, sure, passed = predicted
        open_ = ~known & (output.window.count > 0)[:, None]
        rank = (-sure if self.confidence == "entropy" else sure).masked_fill(~open_, -torch.inf)
        is_best = torch.arange(self.block_size, device=ids.device) == rank.argmax(1, keepdim=True)
        unmask = (passed | is_best) & open_
        block, score, known = torch.where(unmask, ids, block), torch.where(unmask, sure, score), known | unmask
        full = known.all(1)
        tail = torch.tensor([self._tail(row) for row in rows], device=ids.device)
        own = (tail[:, None] + torch.arange(self.block_size, device=ids.device)).clamp(max=self.block_size - 1)
        commit = Commit(block.gather(1, own), full * (self.block_size - tail), confidences=score.gather(1, own))
        block, known = block.masked_fill(full[:, None], self.mask_token_id), known & ~full[:, None]
        for i, state in enumerate(states):
            state.ids, state.known, state.score = block[i], known[i], score[i]
            state.first = tuple(x[i, 0] for x in predicted)
        return commit
