"""A tree of drafts, verified in one forward.

A tree is told by parents: ``parents[k]`` is the number of the node that node k continues, −1 for the last committed
token. A parent comes before its children.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
