"""What goes into one forward (Window), what comes out (Output), and what a method decides about it (Commit)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from harness.engine.rows import Row


@dataclass
class Window:
    """Positions fed in one forward after the cached prefix: each row's pending tokens, then what the method adds.

    Rows are ragged and left-aligned, ``[pending | added | padding]``. Added positions are numbered from 0 within a row;
    added position k of row i stands in column ``pending[i] + k``.

    Attributes:
        ids: int64 [rows, width].
        depth: int64 [rows, width]; a position's place in the text is the row's cached length plus its depth.
        valid: bool [rows, width].
        visible: bool [rows, width, width] (query, key) within the window; the cached prefix is visible to all.
        pending: int64 [rows], pending tokens at the start of each row.
        count: int64 [rows], positions added to each row.
        logits_at: int64 [rows, n], columns whose logits are wanted; empty where none are.
        hidden_layers: layers whose output hidden states are wanted besides the final one.
    """

    ids: Tensor
    depth: Tensor
    valid: Tensor
    visible: Tensor
    pending: Tensor
    count: Tensor
    logits_at: Tensor
    hidden_layers: tuple[int, ...] = ()

    @classmethod
    def build(
        cls,
        rows: Sequence[Row],
        added: Tensor | None = None,
        count: Tensor | Sequence[int] | None = None,
        *,
        depth: Tensor | None = None,
        visible: Tensor | None = None,
        logits: Tensor | None = None,
        text_block: int | None = None,
        text_block_start: str = "prompt",
        pending: Sequence[int] | None = None,
        hidden_layers: tuple[int, ...] = (),
    ) -> Window:
        """Lay out a window.

        Args:
            rows: the rows of this forward.
            added: int64 [rows, most], ids that the method adds; the window is laid out on their device.
            count: how many of them each row has; all when None.
            depth: int64 [most] or [rows, most], place of an added position after the last pending token (0 is the
                next one); 0, 1, 2, … when None.
            visible: bool [most, most] or [rows, most, most], who sees whom among the added; causal when None. All
                pending tokens are visible to all added ones.
            logits: int64 [n], wanted logits by offset: 0 the last pending token, k + 1 added position k; all of these
                when None. Past a row's own count its last column stands in, for want of a pending token its first.
            text_block: pending tokens see each other block-causally in blocks of this size; causally when None.
            text_block_start: where blocks count from: the response (``prompt``) or position 0 (``sequence``).
            pending: how many of each row's pending tokens are fed; all when None.
            hidden_layers: see the attribute.
        """
        device = added.device if added is not None else torch.device("cpu")
        texts = [r.pending if pending is None else r.pending[: pending[i]] for i, r in enumerate(rows)]
        lengths = [len(text) for text in texts]
        most = added.shape[1] if added is not None else 0
        if isinstance(count, Tensor) and count.device.type != "cpu":
            counts = [most] * len(rows)  # reading it would wait for the device; padding costs less
            num_added = count
        else:
            counts = [most] * len(rows) if count is None else [int(c) for c in count]
            num_added = torch.tensor(counts, device=device)
        width = max(a + b for a, b in zip(lengths, counts, strict=True))
        num_pending = torch.tensor(lengths, device=device)
        columns = torch.arange(width, device=device)
        valid = columns < (num_pending + num_added)[:, None]
        ids = torch.tensor([text + [0] * (width - len(text)) for text in texts], device=device)
        place = columns - num_pending[:, None]  # index among the added; negative in the pending part
        is_added = (place >= 0) & valid
        is_pending = place < 0
        depths = columns.expand(len(rows), -1).clone()
        causal = (columns[None, :] <= columns[:, None]).expand(len(rows), -1, -1)
        seen = causal
        if text_block is not None:
            starts = [r.prompt_length if text_block_start == "prompt" else 0 for r in rows]
            start = torch.tensor(starts, device=device)
            position = torch.tensor([r.cached for r in rows], device=device)[:, None] + columns
            block = torch.div(position - start[:, None], text_block, rounding_mode="floor")
            seen = block[:, None, :] <= block[:, :, None]
        if added is not None and most:
            index = place.clamp(0, most - 1)
            ids = torch.where(is_added, added.gather(1, index), ids)
            if depth is not None:
                places = depth.to(device).expand(len(rows), most).gather(1, index)
                depths = torch.where(is_added, num_pending[:, None] + places, depths)
            own = causal
            if visible is not None:
                every = visible.to(device).expand(len(rows), most, most)
                line = torch.arange(len(rows), device=device)[:, None, None]
                own = every[line, index[:, :, None], index[:, None, :]]
            seen = torch.where(is_added[:, :, None] & is_added[:, None, :], own, seen)
        seen = torch.where(is_added[:, :, None] & is_pending[:, None, :], True, seen)
        seen = torch.where(is_pending[:, :, None] & is_added[:, None, :], False, seen)
        itself = torch.eye(width, dtype=torch.bool, device=device)
        # Padding sees itself alone: a softmax over nothing would be NaN, and NaN passes through masks.
        seen = (seen & valid[:, :, None] & valid[:, None, :]) | itself
        if logits is None:
            logits = torch.arange(1 + max(counts))
        last = (num_pending + num_added - 1)[:, None]
        logits_at = torch.minimum((num_pending - 1)[:, None] + logits.to(device), last).clamp(min=0)
        return cls(ids, torch.where(valid, depths, 0), valid, seen, num_pending, num_added, logits_at, hidden_layers)

    def to(self, device: torch.device | str) -> Window:
        """The same window on another device."""
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    def added(self, most: int) -> Tensor:
        """Ids of the added positions by their number: int64 [rows, most]; past a row's own count any id may stand."""
        columns = self.pending[:, None] + torch.arange(most, device=self.ids.device)
        return self.ids.gather(1, columns.clamp(max=self.width - 1))

    @property
    def width(self) -> int:
        """Columns of the widest row."""
        return self.ids.shape[1]


@dataclass
class Output:
    """What a forward returns to the method, on the model's device.

    Attributes:
        window: the window as it was fed.
        logits: [rows, n, vocab] in the model's dtype, at ``window.logits_at``.
        hidden: [rows, width, hidden], final-norm hidden states of every window position.
        layers: [rows, width, hidden] per requested intermediate layer.
    """

    window: Window
    logits: Tensor
    hidden: Tensor
    layers: dict[int, Tensor] = field(default_factory=dict)

    @property
    def count(self) -> Tensor:
        """int64 [rows], predictions by offset: 1 + added positions (the first is void where nothing was pending)."""
        return self.window.count + 1
