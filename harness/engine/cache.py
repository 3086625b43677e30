"""The KV cache: preallocated buffers in which every row has its own length. The only file that knows transformers' API.

A forward writes its window into each row's slots from that row's length on and sees them there, so keeping a prefix of
the window moves nothing: the row's length grows. Keeping a path of a tree moves that path together. Whatever lies
beyond a row's length is masked, and finite (buffers start at zero), so it cannot leak.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class _Geometry:
    """Where the next forward writes and how far it reads; one object shared by all layers."""

    def __init__(self) -> None:
        self.slots: Tensor | slice = slice(0, 0)
        self.rows = torch.zeros(0, 1, dtype=torch.long)
        self.positions = torch.zeros(0, 0, dtype=torch.long)
        self.extent = 0


class _CursorLayer(CacheLayerMixin):
    """One layer's keys and values, ``[num_slots, kv_heads, max_length, head_dim]``."""

    is_sliding = False

    def __init__(self, geometry: _Geometry, num_slots: int, max_length: int) -> None:
        super().__init__()
        self.geometry, self.num_slots, self.max_length = geometry, num_slots, max_length

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate zeroed buffers in the shape, dtype and device of the first keys and values."""

        def buffer(x: Tensor) -> Tensor:
            return x.new_zeros(self.num_slots, x.shape[1], self.max_length, x.shape[3])

        self.keys, self.values = buffer(key_states), buffer(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the window at each row's own positions; return the rows' buffers cut to the longest row."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        g = self.geometry
        self.keys[g.rows, :, g.positions] = key_states.transpose(1, 2)
        self.values[g.rows, :, g.positions] = value_states.transpose(1, 2)
        return self.keys[:, :, : g.extent][g.slots], self.values[:, :, : g.extent][g.slots]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Unused: the engine brings its own 4-D mask."""
        return self.geometry.extent, 0

    def get_seq_length(self) -> int:
        """Unused: the engine brings its own positions."""
        return self.geometry.extent

    def get_max_length(self) -> int:
        """Positions a slot can hold."""
        return self.max_length


class CursorCache(Cache):
    """Keys and values of up to ``num_slots`` rows, each with a length of its own that the caller keeps.

    Lengths live with the rows, not here: truncating a row is lowering its length.
    """

    def __init__(self, num_layers: int, num_slots: int, max_length: int) -> None:
        self.geometry = _Geometry()
        self.max_length = max_length
        super().__init__(layers=[_CursorLayer(self.geometry, num_slots, max_length) for _ in range(num_layers)])

    def open(self, slots: Sequence[int], lengths: Tensor, width: int) -> int:
        """Aim the next forward: row i of the window goes to ``slots[i]`` from position ``lengths[i]`` on.

        Args:
            slots: distinct slot numbers, one per window row.
            lengths: int64 [rows].
            width: window positions.

        Returns:
            Number of key positions that the forward will see (the mask's last axis).
        """
        g = self.geometry
        device = lengths.device
        g.extent = int(lengths.max()) + width
        if g.extent > self.max_length:
            raise ValueError(f"a window ends at position {g.extent} of a cache that holds {self.max_length}")
        g.rows = torch.tensor(slots, device=device)[:, None]
        g.positions = lengths[:, None] + torch.arange(width, device=device)
        # Consecutive slots are a view; anything else (a few rows among many) is copied.
        consecutive = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        g.slots = slice(slots[0], slots[0] + len(slots)) if consecutive else g.rows[:, 0]
        return g.extent

    def keep_path(self, slots: Sequence[int], start: Tensor, path: Tensor) -> None:
        """Move window positions together: position ``start[i] + path[i, j]`` of a slot to ``start[i] + j``.

        Args:
            slots: slot numbers, one per row.
            start: int64 [rows], cache position that ``path`` counts from.
            path: int64 [rows, kept]; past a row's own path any valid column may stand.
        """
        rows = torch.tensor(slots, device=start.device)[:, None]
        source, target = start[:, None] + path, start[:, None] + torch.arange(path.shape[1], device=start.device)
        for buffer in self._buffers():
            buffer[rows, :, target] = buffer[rows, :, source]

    def move(self, source: int, target: int, length: int | None = None) -> None:
        """Copy the first ``length`` positions of one slot over another; all when None."""
        for buffer in self._buffers():
            buffer[target, :, :length] = buffer[source, :, :length]

    def _buffers(self) -> Iterator[Tensor]:
        for layer in self.layers:
            assert isinstance(layer, _CursorLayer)
            if layer.keys is not None and layer.values is not None:
                yield from (layer.keys, layer.values)


_NAMES: dict[type, str] = {}


def cache_argument(module: Any) -> str:
    """Name under which a decoder stack takes its cache: ``cache``, or ``past_key_values`` before it was renamed."""
    kind = type(module)
    if kind not in _NAMES:
        _NAMES[kind] = "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"
    return _NAMES[kind]
