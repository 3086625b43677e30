"""Training layouts and attention masks of two-stream objectives (MARS §3.2–3.3, Eq. 2).

A sequence is laid out as its clean tokens followed by masks. A mask stands for one response token: it takes that
token's position, carries the [MASK] id, and its hidden state predicts the token after it. What a mask may see is told
by one number, the start of its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENTS = ("paper", "released")


@dataclass(frozen=True)
class MaskedStream:
    """The masks of one sequence.

    Attributes:
        position: int64 [masks], the position each mask stands for; it predicts the token at ``position + 1``.
        block_start: int64 [masks], clean tokens before this position are visible; masks that share it are one block.
        first: int64 [firsts], positions of targets with m = 0, predicted from the clean token before them.
        first_block_start: int64 [firsts], the block each first target belongs to.
    """

    position: Tensor
    block_start: Tensor
    first: Tensor
    first_block_start: Tensor


def segments(response: Sequence[bool]) -> list[tuple[int, int]]:
    """Half-open runs of True: each assistant turn of a conversation, in order."""
    edges = [t for t in range(len(response) + 1) if (t < len(response) and response[t]) != (t > 0 and response[t - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))


def masked_stream(response: Sequence[bool], block_size: int, alignment: str) -> MaskedStream:
    """Where the masks of a sequence stand, for blocks of ``block_size`` tiling each response.

    ``paper`` (Eq. 3–6): blocks count from the start of the response; a block's B targets have m = 0 … B−1 masks before
    them, the first predicted from the clean token at the block's boundary, so B−1 masks suffice.
    ``released`` (the authors' code): blocks count from the start of the sequence; a mask for every token of a block
    predicts the next one, m = 1 … B; the block that straddles prompt and response keeps its prompt tokens clean, and
    only the first response token has m = 0.
    """
    position: list[int] = []
    block_start: list[int] = []
    first: list[int] = []
    first_block_start: list[int] = []
    for start, end in segments(response):
        if start == 0:  # a sequence has no token before its first one to predict it from
            start = 1
        if start == end:
            continue
        offset = start if alignment == "paper" else 0
        if alignment == "released":
            first.append(start)
            first_block_start.append(start)
        for begin in range(start - (start - offset) % block_size, end, block_size):
            visible = max(begin, start)  # clean tokens that the block's masks see
            stop = min(begin + block_size, end)
            if alignment == "paper":
                first.append(visible)
                first_block_start.append(visible)
                stop = min(stop, begin + block_size - 1)
            masks = range(visible, min(stop, end - 1))  # the last token of a response has no target after it
            position.extend(masks)
            block_start.extend([visible] * len(masks))
    return MaskedStream(*(torch.tensor(x, dtype=torch.long) for x in (position, block_start, first, first_block_start)))


CLEAN, MASK, PAD = 0, 1, 2


def two_stream_mask(kind: Tensor, position: Tensor, block_start: Tensor) -> Tensor:
    """Attention of the clean and masked streams (MARS Eq. 2).

    Args:
        kind: int64 [batch, length], CLEAN, MASK or PAD.
        position: int64 [batch, length].
        block_start: int64 [batch, length], read at masks only.

    Returns:
        bool [batch, 1, length, length] (query, key), True = visible. Clean tokens see clean tokens causally; masks see
        the masks of their own block causally and the clean tokens before it; padding sees itself, so that no softmax
        runs over nothing and no NaN arises.
    """
    q_kind, k_kind = kind[:, :, None], kind[:, None, :]
    q_position, k_position = position[:, :, None], position[:, None, :]
    q_start, k_start = block_start[:, :, None], block_start[:, None, :]
    causal = k_position <= q_position
    clean = (q_kind == CLEAN) & (k_kind == CLEAN) & causal
    earlier = (q_kind == MASK) & (k_kind == CLEAN) & (k_position < q_start)
    own_block = (q_kind == MASK) & (k_kind == MASK) & (k_start == q_start) & causal
    itself = torch.eye(kind.shape[1], dtype=torch.bool, device=kind.device)
    return (clean | earlier | own_block | itself)[:, None]


def block_diffusion_mask(kind: Tensor, block: Tensor) -> Tensor:
    """Attention of the clean and noisy streams of block diffusion (BD3-LM §3.2 and its Figure of the training mask).

    Args:
        kind: int64 [batch, length], CLEAN, MASK (noisy) or PAD.
        block: int64 [batch, length], number of the block that a position belongs to; earlier text has lower ones.

    Returns:
        bool [batch, 1, length, length] (query, key), True = visible. Clean tokens see their own block whole and clean
        blocks before it; noisy ones see their own noisy block whole and clean blocks before it; padding sees itself.
    """
    q_kind, k_kind = kind[:, :, None], kind[:, None, :]
    q_block, k_block = block[:, :, None], block[:, None, :]
    clean = (q_kind == CLEAN) & (k_kind == CLEAN) & (k_block <= q_block)
    earlier = (q_kind == MASK) & (k_kind == CLEAN) & (k_block < q_block)
    own_block = (q_kind == MASK) & (k_kind == MASK) & (k_block == q_block)
    itself = torch.eye(kind.shape[1], dtype=torch.bool, device=kind.device)
    return (clean | earlier | own_block | itself)[:, None]
