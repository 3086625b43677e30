"""Acceptance rules as pure functions of logits: by confidence (MARS §3.4, Figure 6), by agreement, by sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from harness.engine.rows import Row
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


def confirmed(drafts: Tensor, targets: Tensor, count: Tensor) -> Tensor:
    """Drafts that the target would have written itself, left to right up to the first that it would not.

    Args:
        drafts: int64 [rows, n].
        targets: int64 [rows, at least n], the target's token in the place of each draft.
        count: int64 [rows], drafts that a row has.

    Returns:
        int64 [rows], 0 … count.
    """
    places = torch.arange(drafts.shape[1], device=drafts.device)
    agree = (drafts == targets[:, : drafts.shape[1]]) & (places < count[:, None])
    return agree.long().cumprod(1).sum(1)


def check_temperature(temperature: object) -> None:
    """Raises UserError unless ``temperature`` is a finite number from 0."""
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature < math.inf:  # type: ignore[operator]
        raise UserError("temperature", temperature, "a number from 0 (0 is greedy)", "temperature=0")


def uniforms(rows: Sequence[Row], count: int, device: torch.device) -> Tensor:
    """Random numbers in [0, 1), float64 [rows, count], from each row's own generator.

    ``count`` must not depend on the other rows of the batch, or a document would draw other numbers in other company.
    """
    drawn = [torch.rand(count, generator=row.generator, dtype=torch.float64) for row in rows]
    return torch.stack(drawn).to(device)


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Distribution that sampling at ``temperature`` above 0 draws from: float64 [..., vocab]."""
    return torch.softmax(logits.double() / temperature, -1)


def draw(probability: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-CDF sampling: token of each distribution at a uniform number.

    Args:
        probability: float64 [..., vocab]; need not sum to 1.
        uniform: float64 [...], in [0, 1).

    Returns:
        int64 [...]; never a token of probability 0.
    """
    total = probability.cumsum(-1)
    return (total <= uniform[..., None] * total[..., -1:]).sum(-1).clamp(max=probability.shape[-1] - 1)


def choose(logits: Tensor, rows: Sequence[Row], temperature: float, most: int) -> Tensor:
    """The target's own token at each prediction: the argmax, or a sample at ``temperature`` above 0.

    A draft that was not itself sampled (a head's best guess) may be compared with this token: it is then accepted with
    exactly the target's probability of it, and where it is not, the token is a sample of what remains. That is
    rejection sampling for a draft distribution that puts everything on one token, so the output's distribution is the
    target's.

    Args:
        logits: [rows, n, vocab].
        most: numbers that each row draws, whatever it uses (see ``uniforms``); at least n.

    Returns:
        int64 [rows, n].
    """
    if temperature == 0:
        return logits.argmax(-1)
    numbers = uniforms(rows, most, logits.device)[:, : logits.shape[1]]
    return draw(probabilities(logits, temperature), numbers)


def rejection_sample(
    target: Tensor, draft: Tensor, drafts: Tensor, count: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Speculative sampling (Leviathan et al. 2023, Algorithm 1): keep a draft with probability min(1, p/q).

    Args:
        target: float64 [rows, n + 1, vocab], p in the place of each draft and after the last.
        draft: float64 [rows, n, vocab], q that each draft was sampled from.
        drafts: int64 [rows, n].
        count: int64 [rows], drafts that a row has.
        uniform: float64 [rows, n + 1]; the last number draws the token after the accepted ones.

    Returns:
        accepted int64 [rows], and the next token int64 [rows], from max(0, p − q) after a rejection, else from p.
    """
    num_drafts = drafts.shape[1]
    p = target[:, :num_drafts].gather(2, drafts[:, :, None])[:, :, 0]
    q = draft.gather(2, drafts[:, :, None])[:, :, 0]
    keeps = (uniform[:, :num_drafts] * q < p) & (torch.arange(num_drafts, device=p.device) < count[:, None])
    accepted = keeps.long().cumprod(1).sum(1)
    lines = torch.arange(len(drafts), device=p.device)
    own = target[lines, accepted]
    padded = torch.nn.functional.pad(draft, (0, 0, 0, 1))
    rest = (own - padded[lines, accepted]).clamp(min=0)
    rejected = (accepted < count) & (rest.sum(-1) > 0)
    return accepted, draw(torch.where(rejected[:, None], rest, own), uniform[:, -1])
