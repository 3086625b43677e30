"""Chains of drafts with masks for every outcome, against each outcome as a sequence of its own; verified MARS."""

from __future__ import annotations

import functools
import math
from typing import Any

import lossless
import pytest
import sampling
import torch
from lossless import Case, Teacher
from oracles import MASK, Target, logits_of, micro_model

from harness.engine.cache import CursorCache
from harness.engine.forward import run_window
from harness.engine.rows import Completion, Draft, Request, Row, Step
from harness.engine.stats import SequenceStats
from harness.engine.window import Window
from harness.errors import UserError
from harness.evaluation import lm
from methods import mars
from methods.mars import Mars
from methods.outcomes import carried, carry, outcome_window, outcomes


def row(tokens: list[int], slot: int, cached: int, room: int) -> Row:
    return Row(Request(tokens), list(tokens), slot, torch.Generator(), 99, cached=cached, room=room)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize(("num_drafts", "block_size"), [(3, 4), (4, 1), (1, 5), (0, 4), (3, 2)])
def test_every_outcome_is_its_own_sequence(kind: str, num_drafts: int, block_size: int) -> None:
    """Logits of outcome j equal those of ``text + drafts 1…j + masks`` alone, for ragged rows beside a filled cache."""
    model = micro_model(kind)
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(0, 60, (n,), generator=generator).tolist() for n in (9, 4, 6)]
    rows = [row(text, i, 0, 99) for i, text in enumerate(texts)]
    cache = CursorCache(2, 3, 64)
    stored = [len(text) - n for text, n in zip(texts, (1, 2, 1), strict=True)]
    run_window(model, cache, Window.build(rows, pending=stored), [0, 1, 2], [0, 0, 0])
    for one, cached in zip(rows, stored, strict=True):
        one.cached = cached
    drafts = torch.randint(0, 60, (3, num_drafts), generator=generator)
    given = [num_drafts, num_drafts, max(0, num_drafts - 1)]
    window = outcome_window(rows, drafts if num_drafts else None, given, block_size, MASK)
    output = run_window(model, cache, window, [0, 1, 2], stored)
    found, logits, fed = outcomes(output, block_size)
    assert fed.tolist() == given
    for i, text in enumerate(texts):
        assert found[i, : given[i]].tolist() == drafts[i, : given[i]].tolist()
        for j in range(given[i] + 1):
            whole = logits_of(model, text + drafts[i, :j].tolist() + [MASK] * (block_size - 1))
            assert torch.allclose(logits[i, j], whole[-block_size:], atol=1e-9)


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_no_row_is_given_more_than_it_has_room_for(block_size: int) -> None:
    """Draft j can be accepted if j + 1 tokens fit; masks behind it are of use if one more does."""
    for room in range(1, 8):
        window = outcome_window([row([1, 2], 0, 1, room)], torch.zeros(1, 3, dtype=torch.long), [3], block_size, MASK)
        kinds = (window.ids[0, 1 : 1 + int(window.count[0])] == MASK).tolist()
        assert kinds.count(False) == sum(j + 1 <= room for j in range(1, 4))
        assert kinds.count(True) == sum(j + 2 <= room for j in range(4)) * (block_size - 1)


def test_what_a_trimmed_commit_lost_is_the_next_draft() -> None:
    rows = [row([5, 6], 0, 1, 9), row([7], 1, 0, 9)]
    assert carried(rows, 2) is None
    carry(rows, torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1]), torch.tensor([[8, 9], [10, 11]]))
    rows[0].tokens += [1]  # the engine took one of three
    rows[1].tokens += [4]
    assert carried(rows, 2).tolist() == [[2, 3], [10, 11]]  # type: ignore[union-attr]
    rows[0].tokens += [2, 3]
    assert carried(rows, 2).tolist() == [[8, 9], [10, 11]]  # type: ignore[union-attr]


B = 4


class Taught(Mars):
    """Drafts come from a teacher: what a random model's masks predict is hardly ever right."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__(block_size=B, verify=True)
        self.teacher = teacher

    def propose(self, rows: list[Row]) -> Window:
        drafts = torch.stack([self.teacher.candidates(r, B - 1)[:, 0] for r in rows])
        return outcome_window(rows, drafts, [B - 1] * len(rows), B, MASK)


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def case(request: pytest.FixtureRequest) -> Case:
    return lossless.case(request.param)


def test_verified_mars_writes_what_greedy_ar_writes(case: Case) -> None:
    lossless.check(Taught, case, runs=range(B))


def test_its_own_drafts_change_nothing_but_the_speed(case: Case) -> None:
    got = lossless.check(lambda _: Mars(block_size=B, verify=True), case.first(50))
    assert sum(c.stats.accepted for c in got) > 0


def literal(model: Any, request: Request, eos: tuple[int, ...]) -> list[list[int]]:
    """Drafts are what the masks after the last committed token predicted, recomputed without cache or groups."""
    tokens, end = list(request.prompt_ids), len(request.prompt_ids) + request.max_new_tokens
    drafts: list[int] = []
    steps: list[list[int]] = []
    while len(tokens) < end and not (steps and tokens[-1] in eos):
        step: list[int] = []
        while True:
            best = int(logits_of(model, tokens + step)[-1].argmax())
            step.append(best)
            if len(step) > len(drafts) or drafts[len(step) - 1] != best:
                break
        before = tokens + step[:-1]  # the masks stood after the last accepted draft, beside the token it led to
        drafts = logits_of(model, before + [MASK] * (B - 1))[-(B - 1) :].argmax(-1).tolist()
        step = step[: end - len(tokens)]
        step = step[: next((i + 1 for i, t in enumerate(step) if t in eos), len(step))]
        steps.append(step)
        tokens += step
    return steps


def test_drafts_are_the_masks_predictions(case: Case) -> None:
    asked = case.asked[:50]
    expected = {r.key: literal(case.target.model, r, case.target.eos_token_ids) for r in asked}
    assert {len(s) for steps in expected.values() for s in steps} >= {1, 2}
    got = lossless.decode(case.target, Mars(block_size=B, verify=True), asked, batch_size=7)
    assert {k: [s.token_ids for s in c.trace] for k, c in got.items()} == expected


def test_judged_drafts_are_what_masks_predicted_and_the_model_said(case: Case) -> None:
    """Their confidence is that of the prediction through as many masks, their verdict greedy AR's: all recomputed."""
    asked = case.asked[:10]
    verdicts: dict[int, set[bool]] = {}
    for key, got in lossless.decode(case.target, Mars(block_size=B, verify=True), asked, batch_size=7).items():
        request = next(one for one in asked if one.key == key)
        text = list(request.prompt_ids)
        guesses: torch.Tensor | None = None  # [B − 1, vocabulary], from masks at the end of the text as it then was
        for step in got.trace:
            if guesses is None:
                assert step.drafts == []
            else:
                chosen = guesses.argmax(-1).tolist()
                for depth, draft in enumerate(step.drafts, 1):
                    before = text + chosen[: depth - 1]
                    assert draft.is_right == (
                        int(logits_of(case.target.model, before)[-1].argmax()) == chosen[depth - 1]
                    )
                    expected = float(torch.softmax(guesses[depth - 1], -1).max())
                    assert draft.confidence == pytest.approx(expected, abs=1e-6)
                    verdicts.setdefault(depth, set()).add(draft.is_right)
                rights = [draft.is_right for draft in step.drafts]
                assert all(rights[:-1]), "none is judged after the first wrong one"
                assert rights.count(True) + 1 >= len(step.token_ids)
                if len(step.token_ids) > 1:
                    assert len(rights) >= len(step.token_ids) - 1, "what was committed was judged"
            text += step.token_ids
            masked = text[:-1] + [MASK] * (B - 1)  # in the place of the token that the last accepted draft led to
            guesses = logits_of(case.target.model, masked)[-(B - 1) :]
    assert verdicts[1] == {True, False}
    assert set(verdicts) >= {1, 2}


def test_records_tell_judged_drafts_by_the_masks_they_were_read_through() -> None:
    """Places in the chain; what was carried over from a commit cut short has no confidence and is left out."""
    drafts = [[], [Draft(0.9, True), Draft(0.5, False)], [Draft(math.nan, True), Draft(0.25, True)]]
    trace = [Step([5], drafts=one) for one in drafts]
    row = lm._row(
        Completion(("a", 1), [1], [5, 5, 5], "xyz", SequenceStats(target_forwards=3), trace, [1, 2, 3]), "hash"
    )
    assert row["draft_depths"] == [1, 2, 2]
    assert row["draft_confidences"] == [0.9, 0.5, 0.25]
    assert row["draft_right"] == [True, False, True]
    assert row["token_ends"] == [1, 2, 3]


@pytest.mark.parametrize("change", [lossless.one_more, "jump_gap"])
def test_a_broken_acceptance_rule_is_caught(case: Case, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if change == "jump_gap":
        monkeypatch.setattr(mars, "confirmed", jump_gap)
        make: Any = Taught
    else:
        make = lambda teacher: lossless.broken(Taught(teacher), change)  # noqa: E731
    with pytest.raises((AssertionError, RuntimeError)):
        lossless.check(make, case.first(50))


def jump_gap(drafts: torch.Tensor, targets: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Broken on purpose: counts confirmed drafts though one before them was not."""
    places = torch.arange(drafts.shape[1])
    return ((drafts == targets[:, :-1]) & (places < count[:, None])).sum(1)


def test_kept_keys_and_values_are_those_of_a_fresh_forward(case: Case) -> None:
    assert lossless.check_cache(Taught, case) > 50


def toy(kind: str) -> Target:
    return sampling.toy_target(kind, mask=0)


@pytest.mark.parametrize(("kind", "temperature"), [("qwen2", 1.0), ("llama", 0.6)])
def test_sampling_is_the_targets(kind: str, temperature: float) -> None:
    make = functools.partial(Mars, block_size=3, verify=True, temperature=temperature)
    sampling.check_sampler(make, toy(kind), temperature=temperature, runs=range(3))


class Eager(Mars):
    """Biased on purpose: drafts win ties that they should lose."""

    def _accept_verified(self, rows: list[Row], output: Any) -> Any:
        commit = super()._accept_verified(rows, output)
        drafts, _, fed = outcomes(output, self.block_size)
        likes = (torch.rand(len(rows)) < 0.2) & (fed > 0)
        commit.ids = torch.where(likes[:, None], torch.nn.functional.pad(drafts, (0, 1)), commit.ids)
        return commit


def test_a_biased_sampler_is_caught() -> None:
    make = functools.partial(Eager, block_size=3, verify=True, temperature=1.0)
    with pytest.raises(AssertionError, match="not the target's distribution"):
        sampling.check_sampler(make, toy("qwen2"), temperature=1.0, num_draws=6000)


def test_verified_settings() -> None:
    """tau is of no account, so sweeping it makes one cell; sampling under tau is refused with the way out."""
    assert Mars(tau=0.5, verify=True) == Mars(tau=0.9, confidence="margin", verify=True)
    assert Mars(verify=True).lossless
    assert not Mars().lossless
    with pytest.raises(UserError, match="temperature=0.5: mars decodes greedily: .*verify=true samples exactly"):
        Mars(temperature=0.5)
    with pytest.raises(UserError, match="verify='perhaps': true or false"):
        Mars(verify="perhaps")  # type: ignore[arg-type]
