"""Jacobi decoding: greedy AR as a fixed point, iterated over a window of guesses (arXiv 2305.10427; MARS, Table 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from harness.engine.commit import Commit
from harness.engine.contract import Context, Target
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from harness.errors import UserError
from methods.accept import confirmed
from methods.contract import Method

INITIALS = ("prompt", "random")


def ordinary_ids(target: Target) -> Tensor:
    """Token ids that may be guessed: int64 [ids], the tokenizer's without special ones, EOS ids and the mask."""
    tokenizer = target.tokenizer
    num_ids = target.model.config.vocab_size
    if hasattr(tokenizer, "__len__"):
        num_ids = min(num_ids, len(tokenizer))  # an embedding is often padded beyond the tokenizer's ids
    special = {*target.eos_token_ids, target.mask_token_id, *getattr(tokenizer, "all_special_ids", ())}
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special |= {i for i, token in added.items() if token.special}
    is_ordinary = torch.ones(num_ids, dtype=torch.bool)
    is_ordinary[[i for i in special if i is not None and i < num_ids]] = False
    return is_ordinary.nonzero()[:, 0]


@dataclass
class _Guesses:
    """A row's guesses: what first ones are drawn from, and the last forward's predictions from position ``base`` on."""

    source: Tensor  # int64 [ids], on the CPU, as the row's generator is
    base: int
    predictions: Tensor  # int64 [predictions], on the model's device


@dataclass
class Jacobi(Method):
    """Feed ``[last token | n−1 guesses]``; commit the guesses that are confirmed and one token more.

    With p_j the argmax at position j of the window, the longest run of guesses with guess j = p_j is what greedy AR
    says, and so is the prediction after it: answers equal greedy AR's, whatever is guessed. The remaining predictions
    are the next forward's guesses (the Jacobi iteration); where they do not reach, new first guesses are drawn.

    The paper's variant iterates on the whole answer and recomputes the full sequence at every forward
    (``method.window_length=null cache=none``); its Table 9 reports 1.07 tokens per forward and scores that differ from
    AR's, which exact Jacobi decoding cannot.

    Attributes:
        window_length: n, predictions per forward, the guaranteed token's included; None guesses every token that the
            answer may still have.
        initial: first guesses are drawn from the ``prompt``'s tokens or at ``random`` from the vocabulary, by the
            row's own generator; never special tokens. A prompt of nothing else draws from the vocabulary.
    """

    name: ClassVar[str] = "jacobi"
    checkpoint_kind: ClassVar[str] = "ar_sft"
    lossless: ClassVar[bool] = True
    greedy_only: ClassVar[str] = "its guesses are confirmed by greedy predictions"

    window_length: int | None = 4
    initial: str = "prompt"

    def __post_init__(self) -> None:
        n = self.window_length
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            allowed = "a whole number of tokens, at least 1, or null"
            raise UserError("method.window_length", n, allowed, "method.window_length=4")
        if self.initial not in INITIALS:
            raise UserError("method.initial", self.initial, f"one of {', '.join(INITIALS)}")

    @property
    def window(self) -> int:
        return self.context.max_length if self.window_length is None else self.window_length - 1

    def start(self, context: Context) -> None:
        super().start(context)
        self.ordinary = ordinary_ids(context.target)

    def admit(self, row: Row) -> None:
        source = self.ordinary
        if self.initial == "prompt":
            prompt = torch.tensor(row.request.prompt_ids)
            prompt = prompt[torch.isin(prompt, self.ordinary)]
            source = prompt if len(prompt) else source
        row.state = _Guesses(source, row.prompt_length, torch.zeros(0, dtype=torch.long))

    def first_guesses(self, row: Row, count: int) -> Tensor:
        """Guesses for places that no forward has predicted yet: int64 [count], on the CPU."""
        source = row.state.source
        return source[torch.randint(len(source), (count,), generator=row.generator)]

    def _count(self, row: Row) -> int:
        """A row near its end gets no more guesses than it has room for."""
        return min(self.window, row.room - 1)

    def propose(self, rows: list[Row]) -> Window:
        count = [self._count(row) for row in rows]
        guesses = torch.zeros(len(rows), max(count), dtype=torch.long, device=self.context.target.model.device)
        for i, row in enumerate(rows):
            # What was committed since is no guess any more; the engine may have taken less than was offered.
            carried = row.state.predictions[len(row.tokens) - row.state.base :][: count[i]]
            guesses[i, : len(carried)] = carried
            if len(carried) < count[i]:
                guesses[i, len(carried) : count[i]] = self.first_guesses(row, count[i] - len(carried)).to(guesses)
        return Window.build(rows, guesses, count)

    def accept(self, rows: list[Row], output: Output) -> Commit:
        predictions = output.logits.argmax(-1)  # [rows, 1 + most guesses]
        window = output.window
        run = confirmed(window.added(predictions.shape[1] - 1), predictions, window.count)
        for i, row in enumerate(rows):
            row.state = _Guesses(row.state.source, len(row.tokens), predictions[i, : 1 + self._count(row)])
        return Commit(predictions, run + 1, kept=run, drafted=window.count, accepted=run)
