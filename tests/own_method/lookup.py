"""A method of one's own in one file: prompt-lookup decoding, which drafts what followed the same words before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from harness.engine.commit import Commit
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from methods.accept import confirmed
from methods.contract import Method


def draft(tokens: list[int], ngram: int, most: int) -> list[int]:
    """Up to ``most`` tokens that followed the latest earlier occurrence of the last ``ngram`` tokens."""
    key = tokens[-ngram:]
    for start in range(len(tokens) - ngram - 1, -1, -1):
        if tokens[start : start + ngram] == key:
            return tokens[start + ngram : start + ngram + most]
    return []


@dataclass
class Lookup(Method):
    """Feed the last token and a chain of drafts; keep those that greedy AR confirms, plus one token."""

    name: ClassVar[str] = "lookup"
    checkpoint_kind: ClassVar[str] = "ar_sft"
    lossless: ClassVar[bool] = True

    ngram: int = 2
    num_drafts: int = 4

    @property
    def window(self) -> int:
        return self.num_drafts

    def propose(self, rows: list[Row]) -> Window:
        drafts = [draft(row.tokens, self.ngram, min(self.num_drafts, row.room - 1)) for row in rows]
        count = [len(d) for d in drafts]
        padded = [d + [0] * (max(count) - len(d)) for d in drafts]
        return Window.build(rows, torch.tensor(padded, dtype=torch.long), count)

    def accept(self, rows: list[Row], output: Output) -> Commit:
        best = output.logits.argmax(-1)  # [rows, 1 + drafts]: what greedy AR says after each position
        window = output.window
        run = confirmed(window.added(best.shape[1] - 1), best, window.count)
        return Commit(best, run + 1, kept=run, drafted=window.count, accepted=run)
