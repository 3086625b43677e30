"""A chain of drafts with masks for every outcome: verify and predict a block further in one forward (MARS §4.6).

``[masks of outcome 0 | draft 1 | its masks | draft 2 | …]``: outcome j means that draft j is the last one accepted.
Predictions by offset are then K+1 groups of B, outcome j's own next token and what its masks predict. Draft j stands in
the place of the j-th next token and sees the drafts before it; mask i of group j stands i places after draft j and sees
drafts 1 … j and its own group up to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.engine.rows import Row
from harness.engine.window import Output, Window


class Carried(NamedTuple):
    """What ``carry`` leaves in a row's state.

    Attributes:
        base: tokens that the row had.
        expected: int64, the tokens after them: what was committed, then guesses.
        score: number of committed ones (int64 scalar) and the guesses' confidences (fp32); None where not given.
    """

    base: int
    expected: Tensor
    score: tuple[Tensor, Tensor] | None


def outcome_window(
    rows: Sequence[Row], drafts: Tensor | None, num_drafts: Sequence[int], block_size: int, mask_token_id: int
) -> Window:
    """Lay out drafts and masks; a row near its end gets only what it has room for.

    Args:
        drafts: int64 [rows, K]; None where there are none.
        num_drafts: how many each row has.
        block_size: B; 1 leaves the chain alone.
    """
    device = torch.device("cpu") if drafts is None else drafts.device
    most = 0 if drafts is None else drafts.shape[1]
    offsets = torch.arange((most + 1) * block_size, device=device)
    group, member = offsets // block_size, offsets % block_size
    ids = torch.full((len(rows), (most + 1) * block_size), mask_token_id, device=device)
    if drafts is not None:
        ids[:, block_size::block_size] = drafts
    sees_draft = (member[None, :] == 0) & (group[None, :] <= group[:, None])
    sees_own = (group[None, :] == group[:, None]) & (member[None, :] <= member[:, None])
    count = [
        max(0, min((n + 1) * block_size - 1, (row.room - 1) * block_size))
        for row, n in zip(rows, num_drafts, strict=True)
    ]
    width = max(count)
    cut = slice(1, width + 1)  # offset 0 is the last committed token
    return Window.build(
        rows,
        ids[:, cut],
        count,
        depth=(group - 1 + member)[cut],
        visible=(sees_draft | sees_own)[cut, cut],
        logits=torch.arange((most + 1) * block_size),
    )


def outcomes(output: Output, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """What ``outcome_window`` asked for: drafts int64 [rows, K], logits [rows, K+1, B, vocab], drafts fed [rows]."""
    rows, num_offsets, vocab = output.logits.shape
    logits = output.logits.view(rows, num_offsets // block_size, block_size, vocab)
    window = output.window
    return window.added(num_offsets - 1)[:, block_size - 1 :: block_size], logits, window.count // block_size


def carry(
    rows: Sequence[Row], committed: Tensor, length: Tensor, guesses: Tensor, confidences: Tensor | None = None
) -> None:
    """Leave in ``row.state`` what the text is expected to be after the tokens that the rows have now.

    That is what a forward commits, then its guesses: the engine may cut a commit short (``row.room``), and what was cut
    off is then the best guess there is.

    Args:
        committed: int64 [rows, n], of which ``length`` int64 [rows] count.
        guesses: int64 [rows, g], what follows them.
        confidences: fp32 [rows, g] of the guesses.
    """
    places = torch.arange(committed.shape[1] + guesses.shape[1], device=committed.device)
    after = (places - length[:, None]).clamp(0, guesses.shape[1] - 1) if guesses.shape[1] else None
    expected = torch.nn.functional.pad(committed, (0, guesses.shape[1]))
    if after is not None:
        expected = torch.where(places < length[:, None], expected, guesses.gather(1, after))
    for i, row in enumerate(rows):
        score = None if confidences is None else (length[i], confidences[i])
        row.state = Carried(len(row.tokens), expected[i], score)


def carried(rows: Sequence[Row], count: int) -> Tensor | None:
    """The next ``count`` tokens that ``carry`` left, int64 [rows, count]; None where no row has any."""
    if all(row.state is None for row in rows):
        return None
    device = next(row.state[1].device for row in rows if row.state is not None)
    lines = torch.zeros(len(rows), count, dtype=torch.long, device=device)
    for line, row in zip(lines, rows, strict=True):
        if row.state is not None:
            skip = len(row.tokens) - row.state.base
            line.copy_(row.state.expected[skip : skip + count])
    return lines


def carried_confidences(rows: Sequence[Row], count: int) -> Tensor | None:
    """Those of ``carried``'s tokens, fp32 [rows, count]: guess i in place i, NaN where a commit was cut short."""
    states = [row.state for row in rows if row.state is not None]
    if not states:
        return None
    lines = torch.full((len(rows), count), torch.nan, device=states[0].expected.device)
    for line, row in zip(lines, rows, strict=True):
        if row.state is not None and row.state.score is not None:
            length, scores = row.state.score
            is_whole = length == len(row.tokens) - row.state.base
            line.copy_(torch.where(is_whole, scores[:count], torch.nan))
    return lines
