"""Speculative decoding: greedy AR's answers with AR, MARS §4.6 read literally, exact sampling, honest counts."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import lossless
import pytest
import sampling
import torch
from lossless import Case
from oracles import MASK, Target, greedy, logits_of, micro_model

from harness.engine.loop import Engine
from harness.engine.rows import Request
from harness.errors import UserError
from methods import speculative
from methods.accept import draw
from methods.speculative import Speculative

K, B, TAU = 3, 4, 0.6


def drafter(model: Any, noise: float) -> Any:
    """The target's weights, disturbed: a draft model that is often right."""
    torch.manual_seed(7)
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return model


@functools.cache
def case_of(kind: str) -> Case:
    case = lossless.case(kind)
    draft = Target(drafter(case.target.model, 0.02), eos_token_ids=case.target.eos_token_ids)
    return replace(case, target=replace(case.target, companions={"draft": draft}))


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param)


@pytest.mark.parametrize("draft", ["ar_sft", "mars"])
def test_an_ar_target_writes_what_greedy_ar_writes(case: Case, draft: str) -> None:
    """With drafts of either kind, accepted in runs of every length; every prompt alone takes the same steps."""
    asked = case if draft == "ar_sft" else case.first(60)
    lossless.check(lambda _: Speculative(draft=draft, num_drafts=K, tau=TAU), asked, runs=range(K + 1))


@pytest.mark.parametrize("change", [lossless.one_more, lossless.jump_gap])
def test_a_broken_acceptance_rule_is_caught(case: Case, change: Any) -> None:
    with pytest.raises(AssertionError, match="not what greedy AR says"):
        lossless.check(lambda _: lossless.broken(Speculative(num_drafts=K), change), case.first(50))


def test_kept_keys_and_values_are_those_of_a_fresh_forward(case: Case) -> None:
    assert lossless.check_cache(lambda _: Speculative(num_drafts=K), case) > 50


def composed(
    model: Any, draft: Any, prompt: list[int], cap: int, tau: float, eos: tuple[int, ...]
) -> list[tuple[int, list[int]]]:
    """AR drafts for a MARS target, read literally: each outcome's continuation is a sequence of its own.

    Returns:
        Per forward the number of accepted drafts and the tokens committed, cut at EOS and at the cap.
    """
    steps: list[tuple[int, list[int]]] = []
    tokens = list(prompt)
    end = len(prompt) + cap
    while len(tokens) < end and not (len(tokens) > len(prompt) and tokens[-1] in eos):
        drafts = greedy(draft, tokens, min(K, end - len(tokens) - 1), eos=())
        accepted = 0
        while (
            accepted < len(drafts)
            and int(logits_of(model, tokens + drafts[:accepted])[-1].argmax()) == drafts[accepted]
        ):
            accepted += 1
        logits = logits_of(model, tokens + drafts[:accepted] + [MASK] * (B - 1))[-B:]
        step = drafts[:accepted]
        for i in range(B):
            if i and not (float(torch.softmax(logits[i].float(), -1).max()) >= tau and tau < 1):
                break
            step = [*step, int(logits[i].argmax())]
        step = step[: end - len(tokens)]
        step = step[: next((i + 1 for i, t in enumerate(step) if t in eos), len(step))]
        steps.append((min(accepted, len(step)), step))
        tokens += step
    return steps


@pytest.mark.parametrize("cache", ["cursor", "none"])
def test_a_mars_target_is_the_paper_read_literally(case: Case, cache: str) -> None:
    """Tokens of every forward, for every number of accepted drafts and every length of the run after them."""
    asked = case.asked[:60]
    draft = case.target.companions["draft"].model
    eos = case.target.eos_token_ids
    expected = {r.key: composed(case.target.model, draft, r.prompt_ids, r.max_new_tokens, TAU, eos) for r in asked}
    seen = {(accepted, len(step) - accepted) for steps in expected.values() for accepted, step in steps}
    assert {(j, n) for j in range(K + 1) for n in range(1, B + 1)} <= seen, "an outcome never occurred"
    for batch_size in (1, 7):
        method = Speculative(target="mars", num_drafts=K, tau=TAU, block_size=B)
        got = lossless.decode(case.target, method, asked, batch_size=batch_size, cache=cache)
        assert {k: [s.token_ids for s in c.trace] for k, c in got.items()} == {
            k: [step for _, step in steps] for k, steps in expected.items()
        }


def test_a_mars_target_in_one_token_mode_is_greedy(case: Case) -> None:
    lossless.check(lambda _: Speculative(target="mars", num_drafts=K, tau=1.0), case.first(50))


def test_a_draft_model_that_is_the_target_is_always_right(case: Case) -> None:
    target = replace(case.target, companions={"draft": case.target}, eos_token_ids=())
    for completion in lossless.decode(target, Speculative(num_drafts=K), case.asked[:20], batch_size=6).values():
        stats = completion.stats
        assert stats.accepted == stats.drafted
        assert stats.target_forwards == -(-stats.new_tokens // (K + 1))
        # one draft forward per draft; each feeds what the draft model has not stored yet
        assert stats.draft_forwards == stats.drafted
        rounds = sum(step.draft_forwards > 0 for step in completion.trace)
        if rounds:  # the first reads the prompt; later ones the last draft, never fed so far, and the token after it
            assert stats.draft_positions == stats.prompt_tokens - 1 + stats.draft_forwards + rounds - 1


def test_a_mars_draft_costs_fewer_draft_forwards(case: Case) -> None:
    per_draft = {}
    for draft in ("ar_sft", "mars"):
        method = Speculative(draft=draft, num_drafts=6, tau=0.3)
        got = lossless.decode(case.target, method, case.asked[:40], batch_size=8).values()
        per_draft[draft] = sum(c.stats.draft_forwards for c in got) / sum(c.stats.drafted for c in got)
    assert per_draft["ar_sft"] == 1
    assert per_draft["mars"] < 0.8


def toy(kind: str) -> Target:
    target = sampling.toy_target(kind)
    return replace(target, companions={"draft": replace(target, model=drafter(target.model, 0.15))})


@pytest.mark.parametrize(("kind", "temperature"), [("qwen2", 1.0), ("llama", 1.7)])
def test_sampling_is_the_targets(kind: str, temperature: float) -> None:
    make = functools.partial(Speculative, num_drafts=2, temperature=temperature)
    sampling.check_sampler(make, toy(kind), temperature=temperature, runs=range(3))


def test_a_biased_sampler_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are kept a little too readily."""
    right = speculative.rejection_sample
    monkeypatch.setattr(speculative, "rejection_sample", lambda p, q, *rest: right(p, 0.7 * q, *rest))
    with pytest.raises(AssertionError, match="not the target's distribution"):
        sampling.check_sampler(
            lambda: Speculative(num_drafts=2, temperature=1.0), toy("qwen2"), temperature=1.0, num_draws=6000
        )


def test_a_sampler_that_draws_again_from_p_after_a_rejection_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual max(0, p − q) is what makes rejection sampling exact."""
    right = speculative.rejection_sample

    def from_p(target: Any, draft: Any, drafts: Any, count: Any, uniform: Any) -> Any:
        accepted, _ = right(target, draft, drafts, count, uniform)
        return accepted, draw(target[torch.arange(len(drafts)), accepted], uniform[:, -1])

    monkeypatch.setattr(speculative, "rejection_sample", from_p)
    with pytest.raises(AssertionError, match="not the target's distribution"):
        sampling.check_sampler(
            lambda: Speculative(num_drafts=2, temperature=1.0), toy("qwen2"), temperature=1.0, num_draws=6000
        )


@pytest.mark.parametrize("roles", [{"target": "mars"}, {"draft": "mars"}])
def test_sampling_with_mars_is_refused_with_the_reason(roles: dict[str, str]) -> None:
    with pytest.raises(UserError, match="temperature=0.7: speculative decodes greedily: .*argmaxes"):
        Speculative(**roles, temperature=0.7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "medusa"}, "method.target='medusa': one of ar_sft, mars"),
        ({"draft": "jacobi"}, "method.draft='jacobi': one of"),
        ({"num_drafts": 0}, "method.num_drafts=0: a whole number"),
        ({"target": "mars", "tau": 1.5}, "tau=1.5"),
        ({"draft": "mars", "draft_tau": -1}, "method.draft_tau=-1: a number"),
        ({"temperature": -1}, "temperature=-1"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Speculative(**options)


def test_settings_without_effect_are_no_axes() -> None:
    """Without MARS, tau, block_size and confidence change nothing, so they must not make two cells of one."""
    assert Speculative(tau=0.5, block_size=2, draft_tau=0.1) == Speculative()
    assert Speculative(draft="mars", draft_tau=0.95) == Speculative(draft="mars")
    assert Speculative(draft="mars", tau=0.5) != Speculative(draft="mars", tau=0.6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_may_have_a_wider_embedding(temperature: float) -> None:
    """Padded to another size: what has no token in the target is never drafted."""
    target = Target(micro_model(), eos_token_ids=(), companions={"draft": Target(micro_model(vocab=80, seed=3))})
    [got] = Engine(target, Speculative(temperature=temperature)).run([Request([1, 2, 3], max_new_tokens=20)])
    assert len(got.token_ids) == 20


def test_what_a_row_has_no_room_for_is_not_counted_as_drafted() -> None:
    target = Target(micro_model(), eos_token_ids=(), companions={"draft": Target(micro_model(seed=3))})
    [got] = Engine(target, Speculative(target="mars", tau=0.0)).run([Request([1, 2, 3], max_new_tokens=1)])
    assert got.stats.drafted == 0


def test_a_draft_model_with_a_shorter_context_is_refused() -> None:
    model = micro_model()
    target = Target(model, companions={"draft": Target(model, context_length=10)})
    with pytest.raises(UserError, match="10 tokens, the context of the draft model"):
        list(Engine(target, Speculative()).run([Request([1, 2, 3], max_new_tokens=20)]))
