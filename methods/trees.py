"""Windows that branch: a tree of drafts verified in one forward, and a chain of drafts with masks for every outcome.

A tree is told by parents: ``parents[k]`` is the number of the node that node k continues, −1 for the last committed
token. A parent comes before its children.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.engine.rows import Row
from harness.engine.window import Output, Window


def ancestry(parents: Tensor) -> Tensor:
    """Who lies on whose path: bool [rows, n, n] (node, ancestor or itself) from parents int64 [rows, n]."""
    num_nodes = parents.shape[-1]
    own = torch.eye(num_nodes, dtype=torch.bool, device=parents.device).expand(len(parents), -1, -1)
    step = torch.nn.functional.one_hot(parents + 1, num_nodes + 1)[..., 1:].bool()
    path, reach = own | step, 1
    while reach < num_nodes:  # the paths double in length
        path, reach = (path.double() @ path.double()) > 0, 2 * reach
    return path


def longest_path(passed: Tensor, path: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The deepest node that passed together with all its ancestors.

    Args:
        passed: bool [rows, n]; False where a row has no such node.
        path: bool [rows, n, n] of ``ancestry``.

    Returns:
        length int64 [rows]; nodes int64 [rows, n], the path's nodes first, in order; last int64 [rows], the deepest
        node, −1 where nothing passed. Of equally deep nodes the first.
    """
    whole = (passed[:, None, :] | ~path).all(-1)
    depth = path.sum(-1) * whole
    length, deepest = depth.max(1)
    on_path = path.gather(1, deepest[:, None, None].expand(-1, 1, path.shape[2]))[:, 0]
    nodes = (~on_path).long().argsort(dim=1, stable=True)
    return length, nodes, torch.where(length > 0, deepest, -1)


def agreeing(ids: Tensor, parents: Tensor, targets: Tensor, count: Tensor) -> Tensor:
    """Nodes that hold what the target would have written after their parent.

    Args:
        ids, parents: int64 [rows, n].
        targets: int64 [rows, 1 + n], the target's token after the last committed one and after each node.
        count: int64 [rows], nodes that a row has.

    Returns:
        bool [rows, n].
    """
    places = torch.arange(ids.shape[1], device=ids.device)
    return (ids == targets.gather(1, parents + 1)) & (places < count[:, None])


def walk(targets: Tensor, nodes: Tensor, length: Tensor, last: Tensor, ids: Tensor) -> Tensor:
    """Tokens that a path commits: int64 [rows, n + 1], the path's drafts, then the target's token after them."""
    drafts = torch.nn.functional.pad(ids.gather(1, nodes), (0, 1))
    after = targets.gather(1, last[:, None] + 1)
    places = torch.arange(drafts.shape[1], device=ids.device)
    return torch.where(places < length[:, None], drafts, after)


def outcome_window(
    rows: Sequence[Row], drafts: Tensor | None, num_drafts: Sequence[int], block_size: int, mask_token_id: int
) -> Window:
    """A chain of drafts, each followed by B−1 masks for the case that it is the last one accepted (MARS §4.6).

    Laid out as ``[masks of outcome 0 | draft 1 | its masks | draft 2 | …]``, so that the predictions by offset are
    K+1 groups of B: outcome j's own next token, then what its masks predict. Draft j stands in the place of the j-th
    next token and sees the drafts before it; mask i of group j stands i places after draft j, and sees drafts 1 … j and
    its own group up to itself. A row near its end gets only what it has room for.

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
    at = window.pending[:, None] + torch.arange(block_size, num_offsets, block_size, device=output.logits.device) - 1
    drafts = window.ids.gather(1, at.clamp(max=window.width - 1))
    return drafts, logits, window.count // block_size
