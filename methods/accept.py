"""Acceptance rules as pure functions of logits (MARS §3.4, Figure 6)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.errors import UserError

CONFIDENCES = ("probability", "margin", "entropy")


def check_tau(tau: object, metric: str) -> None:
    """Raises UserError unless ``tau`` lies in the metric's range: 0 to 1, or from 0 nats for entropy."""
    number = isinstance(tau, (int, float)) and not isinstance(tau, bool)
    if metric == "entropy":
        if not number or not 0 <= tau < math.inf:  # type: ignore[operator]
            raise UserError(
                "tau", tau, "a number of nats from 0 (confidence=entropy accepts at or below it)", "tau=0.1"
            )
    elif not number or not 0 <= tau <= 1:  # type: ignore[operator]
        raise UserError("tau", tau, f"a number from 0 to 1 (confidence={metric} accepts at or above it)", "tau=0.95")


def confidence(logits: Tensor, metric: str, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """Greedy token, its confidence, and whether it passes ``tau``.

    Args:
        logits: [..., vocab]; the argmax is taken of them as they are, the softmax in fp32.
        metric: probability, margin or entropy.
        tau: threshold; 1.0 (entropy: 0) never passes, since a softmax rounds to 1.0 at modest logit gaps.

    Returns:
        ids int64 [...], confidence fp32 [...], passed bool [...].
    """
    ids = logits.argmax(-1)
    log_probability = torch.log_softmax(logits.float(), -1)
    if metric == "entropy":
        score = -(log_probability.exp() * log_probability).nan_to_num().sum(-1)
        return ids, score, (score <= tau) & (tau > 0)
    if metric == "margin":
        top = log_probability.topk(min(2, logits.shape[-1]), -1).values.exp()
        score = top[..., 0] - top[..., 1:].sum(-1)
    else:
        score = log_probability.gather(-1, ids[..., None])[..., 0].exp()
    return ids, score, (score >= tau) & (tau < 1)


def accepted_length(passed: Tensor, count: Tensor) -> Tensor:
    """Tokens to commit, left to right while each passes; the first is always committed.

    Args:
        passed: bool [rows, n].
        count: int64 [rows], predictions that a row has, at least 1.

    Returns:
        int64 [rows], 1 … count.
    """
    run = passed[:, 1:].long().cumprod(1).sum(1)
    return 1 + torch.minimum(run, count - 1)
