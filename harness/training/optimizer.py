"""Muon for hidden weight matrices beside AdamW for everything else, as one optimizer for the Trainer.

Both parts are torch's own. From random weights on few tokens Muon needs fewer of them than AdamW; embeddings, norms and
biases stay with AdamW, which Muon is not meant for. With ``match_rms_adamw`` both share a learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers that look like one: shared ``param_groups``, one ``step``, one state.

    Args:
        model: its trainable parameters are divided by name and shape.
        lr, weight_decay: of both parts.
        beta2: AdamW's second-moment decay.
    """

    def __init__(self, model: nn.Module, *, lr: float, weight_decay: float, beta2: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                is_hidden = parameter.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name
                (matrices if is_hidden else others).append(parameter)
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, lr=lr, betas=(0.9, beta2), weight_decay=weight_decay, fused=True),
            torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        ]
        super().__init__([*others, *matrices], {"lr": lr})
        self._share_groups()

    def _share_groups(self) -> None:
        # A schedule writes learning rates into our groups: they must be the parts' own dicts, also after loading.
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of both parts."""
        loss = closure() if closure is not None else None
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """States of both parts, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()
