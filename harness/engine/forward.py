"""One forward of one model over one window; the engine's for the target, a method's for its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harness.engine.cache import CursorCache, cache_argument
from harness.engine.window import Output, Window


def backbone(model: Any) -> nn.Module:
    """The stack that maps ids to final-norm hidden states (``h_t``), without the LM head."""
    return model.get_decoder()


def lm_head(model: Any) -> nn.Module:
    """The output embedding: logits of token t+1 from ``h_t``."""
    return model.get_output_embeddings()


def attention_mask(window: Window, cached: Tensor, extent: int) -> Tensor:
    """Who sees whom among cached prefix and window.

    Args:
        window: the window to be fed.
        cached: int64 [rows], valid cache positions of each row.
        extent: key positions that the cache returns.

    Returns:
        bool [rows, 1, width, extent], True = visible.
    """
    key = torch.arange(extent, device=cached.device)[None, :] - cached[:, None]  # window column of a key; < 0 is prefix
    inside = (key >= 0) & (key < window.width)
    index = key.clamp(0, window.width - 1)[:, None, :].expand(-1, window.width, -1)
    visible = window.visible.gather(2, index) & inside[:, None, :]
    prefix = (key < 0)[:, None, :] & window.valid[:, :, None]
    return (visible | prefix)[:, None]


@torch.no_grad()
def run_window(
    model: Any, cache: CursorCache, window: Window, slots: Sequence[int], cached: Sequence[int], **inputs: Tensor
) -> Output:
    """Feed a window: keys and values land in the cache, logits come back for the wanted positions only.

    Args:
        model: a causal LM whose attention is ``sdpa`` (a boolean mask is wrong under eager attention).
        cache: the model's cache.
        window: what to feed; moved to the model's device.
        slots: cache slot of each window row.
        cached: valid cache positions of each row.
        inputs: what a drafter reads beside ids, [rows, width, …] (the target's hidden states, say).

    Raises:
        ValueError: the model runs another attention implementation.
    """
    if model.config._attn_implementation != "sdpa":
        raise ValueError(f"attn_implementation is {model.config._attn_implementation!r}; boolean masks need 'sdpa'")
    device = model.device
    window = window.to(device)
    lengths = torch.tensor(cached, device=device)
    extent = cache.open(slots, lengths, window.width)
    stack = backbone(model)
    result = stack(
        input_ids=window.ids,
        position_ids=torch.where(window.valid, lengths[:, None] + window.depth, 0),
        attention_mask=attention_mask(window, lengths, extent),
        use_cache=True,
        output_hidden_states=bool(window.hidden_layers),
        **{cache_argument(stack): cache},
        **inputs,
    )
    hidden = result.last_hidden_state
    at = window.logits_at[:, :, None].expand(-1, -1, hidden.shape[-1])
    logits = lm_head(model)(hidden.gather(1, at))
    layers = {k: result.hidden_states[k] for k in window.hidden_layers}
    return Output(window, logits, hidden, layers)
