"""Sampling: plain AR against exact probabilities, the rules by themselves, and who refuses with what reason."""

from __future__ import annotations

from typing import Any

import pytest
import sampling
import torch

from harness.decoding import decode, pick_method
from harness.engine.rows import Request, Row
from harness.errors import UserError
from methods.accept import choose, draw, probabilities, rejection_sample
from methods.ar_sft import ArSft

REFUSING = {
    "jacobi": "its guesses are confirmed by greedy predictions",
    "block_diffusion": "tokens are unmasked in the order of their confidence",
    "mars": "argmaxes, no samples; verify=true samples exactly",
}


def test_ar_samples_what_the_model_says() -> None:
    sampling.check_sampler(lambda: ArSft(temperature=1.0), sampling.toy_target(), temperature=1.0)


def test_another_temperature_is_caught() -> None:
    with pytest.raises(AssertionError, match="not the target's distribution"):
        sampling.check_sampler(lambda: ArSft(temperature=1.1), sampling.toy_target(), temperature=1.0, num_draws=8000)


def test_draw_never_takes_what_has_no_probability() -> None:
    probability = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64).expand(5, -1)
    uniform = torch.tensor([0.0, 0.25, 0.5, 0.75, 1 - 1e-16], dtype=torch.float64)
    assert draw(probability, uniform).tolist() == [1, 1, 3, 3, 3]
    assert draw(3 * probability, uniform).tolist() == [1, 1, 3, 3, 3], "need not sum to 1"


def test_a_row_draws_the_same_numbers_in_any_company() -> None:
    logits = torch.randn(3, 2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def rows(seeds: list[int]) -> list[Row]:
        return [Row(Request([1], seed=s), [1], i, torch.Generator().manual_seed(s), 9) for i, s in enumerate(seeds)]

    together = choose(logits, rows([5, 6, 7]), 1.0, 4)
    for i, seed in enumerate((5, 6, 7)):
        assert torch.equal(choose(logits[i : i + 1], rows([seed]), 1.0, 4)[0], together[i])
    assert torch.equal(choose(logits, rows([1, 2, 3]), 0.0, 4), logits.argmax(-1))


def test_rejection_sampling_is_the_target_and_accepts_what_overlaps() -> None:
    """Over one draft: the first token has distribution p, and drafts are accepted with probability Σ min(p, q)."""
    generator = torch.Generator().manual_seed(1)
    p, q = probabilities(torch.randn(2, 5, generator=generator), 1.0)
    count = 40_000
    drafts = draw(q.expand(count, -1), torch.rand(count, dtype=torch.float64, generator=generator))
    target = torch.stack([p, p]).expand(count, -1, -1)
    uniform = torch.rand(count, 2, dtype=torch.float64, generator=generator)
    accepted, after = rejection_sample(
        target, q.expand(count, 1, -1), drafts[:, None], torch.ones(count, dtype=torch.long), uniform
    )
    first = torch.where(accepted > 0, drafts, after)
    assert sampling.p_value(torch.bincount(first, minlength=5), p) > sampling.LOWEST_P
    overlap = float(torch.minimum(p, q).sum())
    assert abs(float(accepted.double().mean()) - overlap) < 5 * (overlap * (1 - overlap) / count) ** 0.5
    none, plain = rejection_sample(
        target, q.expand(count, 1, -1), drafts[:, None], torch.zeros(count, dtype=torch.long), uniform
    )
    assert not none.any()
    assert sampling.p_value(torch.bincount(plain, minlength=5), p) > sampling.LOWEST_P


@pytest.mark.parametrize("name", REFUSING)
def test_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UserError, match=f"temperature=0.7: {name} decodes greedily: .*{REFUSING[name]}"):
        pick_method(name, {"temperature": 0.7})


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf"), True, "hot"])
def test_a_temperature_out_of_range_is_named(temperature: Any) -> None:
    with pytest.raises(UserError, match="a number from 0"):
        ArSft(temperature=temperature)


def test_a_seed_repeats_its_sample() -> None:
    texts = [
        [
            c.token_ids
            for c in decode("tiny-1m", "ar_sft", ["What is 3 + 4?"] * 3, max_new_tokens=12, seed=s, temperature=2.0)
        ]
        for s in (3, 3, 4)
    ]
    assert texts[0] == texts[1]
    assert texts[0][1:] == texts[2][:-1], "each prompt has the seed after that of the prompt before it"
    assert len({tuple(t) for t in texts[0]}) == 3
