"""What a method decides after a forward (Commit), checked against the contract and brought to the host at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.engine.window import Window


@dataclass
class Commit:
    """What a forward leads to, per row. The engine trims it at a stop, at the length cap and at the row's ``room``.

    Attributes:
        ids: int64 [rows, n], tokens to commit, in order.
        length: int64 [rows], how many of them; 0 for an inner step that commits nothing.
        kept: int64 [rows], added positions whose keys and values stay in the cache, in path order; they hold the first
            of the committed tokens.
        path: int64 [rows, k], numbers of the added positions that stay; None where they are 0, 1, 2, ….
        confidences: fp32 [rows, n], for the trace; None where the method has none.
        draft_confidences: fp32 [rows, k], what each draft of a chain was proposed with, in order; NaN where that is not
            known. The trace keeps those that were judged, within the answer: the accepted ones and the first other.
        drafted, accepted: int64 [rows], tokens proposed beyond the guaranteed one, and those of them committed.
        draft_forwards, draft_positions: int64 [rows], cost in the method's own draft model.
    """

    ids: Tensor
    length: Tensor
    kept: Tensor | None = None
    path: Tensor | None = None
    confidences: Tensor | None = None
    draft_confidences: Tensor | None = None
    drafted: Tensor | None = None
    accepted: Tensor | None = None
    draft_forwards: Tensor | None = None
    draft_positions: Tensor | None = None

    @classmethod
    def one(cls, ids: Tensor, confidences: Tensor | None = None) -> Commit:
        """One token per row: ``ids`` int64 [rows, 1]."""
        return cls(ids, torch.ones(len(ids), dtype=torch.long, device=ids.device), confidences=confidences)

    def padded_path(self) -> Tensor:
        """Each row's path, then columns that stay where they are, so that no move disturbs what is kept."""
        assert self.path is not None
        assert self.kept is not None
        columns = torch.arange(self.path.shape[1], device=self.path.device)
        return torch.where(columns < self.kept[:, None], self.path, columns)

    def violations(self, window: Window) -> Tensor:
        """Rows whose kept positions break the contract: bool [rows].

        A kept position must have the depth of its final slot, must have seen, among the added ones, only itself and
        those kept before it, and must hold the token that is committed there.
        """
        assert self.kept is not None
        device = self.ids.device
        window = window.to(device)
        path = self.path
        if path is None:
            path = torch.arange(int(self.kept.max()), device=device).expand(len(self.ids), -1)
        num_steps = path.shape[1]
        steps = torch.arange(num_steps, device=device)
        keeps = steps < self.kept[:, None]
        columns = torch.arange(window.width, device=device)
        column = (window.pending[:, None] + path).clamp(max=window.width - 1)
        is_step = (columns == column[:, :, None]) & keeps[:, :, None]  # [rows, steps, width]
        allowed = is_step.cumsum(1) > 0
        rows = torch.arange(len(path), device=device)[:, None]
        added = columns >= window.pending[:, None]
        strayed = (window.visible[rows, column] & added[:, None, :] & ~allowed).any(-1)
        misplaced = window.depth.gather(1, column) != window.pending[:, None] + steps
        other_token = window.ids.gather(1, column) != pad(self.ids, (0, num_steps))[:, :num_steps]
        absent = (path >= window.count[:, None]) | (steps >= self.length[:, None])
        return ((strayed | misplaced | other_token | absent) & keeps).any(1)

    def to_host(self, window: Window) -> tuple[list[list[int]], list[list[int]], list[list[float]], list[list[float]]]:
        """The forward's one transfer to the host.

        Returns:
            Per row: [length, kept, drafted, accepted, draft_forwards, draft_positions, violates the contract, pending,
            count], token ids, confidences and draft confidences (empty where the method gives none).
        """
        zero = torch.zeros(len(self.ids), dtype=torch.long, device=self.ids.device)
        violated = zero if self.kept is None else self.violations(window)
        counts = (
            self.length, self.kept, self.drafted, self.accepted, self.draft_forwards, self.draft_positions, violated,
            window.pending, window.count,
        )  # fmt: skip
        none = self.ids[:, :0]
        packed = [
            torch.stack([zero if c is None else c.to(zero) for c in counts], 1),
            self.ids,
            *(none if c is None else c.float().contiguous().view(torch.int32).long()
              for c in (self.confidences, self.draft_confidences)),
        ]  # fmt: skip
        fields, ids, *floats = torch.cat(packed, 1).cpu().split([part.shape[1] for part in packed], 1)
        confidences, drafts = (part.to(torch.int32).view(torch.float32).tolist() for part in floats)
        return fields.tolist(), ids.tolist(), confidences, drafts
