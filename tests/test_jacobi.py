"""Jacobi decoding: greedy AR's answers, and the iteration read literally."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lossless
import pytest
import torch
from lossless import Case, Teacher
from oracles import MASK, LetterTokenizer, Target, logits_of

from harness.engine.rows import Request, Row
from harness.errors import UserError
from methods.jacobi import Jacobi, ordinary_ids

N = 8


class Taught(Jacobi):
    """First guesses come from a teacher, so that runs of every length are confirmed."""

    def __init__(self, teacher: Teacher, window_length: int | None = N) -> None:
        super().__init__(window_length)
        self.teacher = teacher

    def first_guesses(self, row: Row, count: int) -> torch.Tensor:
        places = row.room - 1 if self.window_length is None else min(self.window_length, row.room) - 1
        return self.teacher.candidates(row, places)[places - count :, 0]


def taught(teacher: Teacher) -> Any:
    """The same guesses for the oracle."""
    return lambda row, carried, missing: teacher.candidates(row, carried + missing)[carried:, 0].tolist()


def drawn(eos: tuple[int, ...]) -> Any:
    """Tokens of the prompt, drawn with the row's generator; never EOS (nor MASK, which stands in no prompt)."""

    def first(row: Row, carried: int, missing: int) -> list[int]:
        prompt = [t for t in row.request.prompt_ids if t not in eos]
        return [prompt[i] for i in torch.randint(len(prompt), (missing,), generator=row.generator).tolist()]

    return first


def jacobi(model: Any, request: Request, n: int | None, first: Any, eos: tuple[int, ...]) -> list[list[int]]:
    """The iteration read literally: no cache, no batch, the whole sequence recomputed.

    Returns:
        Tokens committed by each forward, cut at EOS.
    """
    prompt, cap = request.prompt_ids, request.max_new_tokens
    row = Row(request, list(prompt), 0, torch.Generator().manual_seed(request.seed), cap)
    guesses: list[int] = []
    steps: list[list[int]] = []
    while row.new_tokens < cap and not (row.new_tokens and row.tokens[-1] in eos):
        places = (cap - row.new_tokens if n is None else min(n, cap - row.new_tokens)) - 1
        guesses = guesses[:places]
        if len(guesses) < places:
            guesses = guesses + first(row, len(guesses), places - len(guesses))
        best = logits_of(model, row.tokens + guesses).argmax(-1).tolist()[len(row.tokens) - 1 :]
        run = 0
        while run < places and guesses[run] == best[run]:
            run += 1
        step, guesses = best[: run + 1], best[run + 1 :]
        end = next((i + 1 for i, t in enumerate(step) if t in eos), len(step))
        steps.append(step[:end])
        row.tokens += step[:end]
    return steps


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def case(request: pytest.FixtureRequest) -> Case:
    return lossless.case(request.param)


def test_answers_are_greedy_ars(case: Case) -> None:
    """200 prompts in ragged batches and alone, three caches, EOS and caps inside runs, prompts in pieces."""
    lossless.check(Taught, case, runs=range(N))


@pytest.mark.parametrize("method", [Jacobi(None), Jacobi(N, "random"), Jacobi(1)], ids=repr)
def test_whatever_is_guessed_answers_are_greedy_ars(case: Case, method: Jacobi) -> None:
    """Its own guesses, which a random model confirms where it falls into a loop."""
    got = lossless.check(lambda teacher: replace(method), case.first(24))
    assert (sum(c.stats.accepted for c in got) > 30) == (method.window_length != 1)


@pytest.mark.parametrize("change", [lossless.one_more, lossless.jump_gap])
def test_a_broken_acceptance_rule_is_caught(case: Case, change: Any) -> None:
    with pytest.raises(AssertionError, match="not what greedy AR says"):
        lossless.check(lambda teacher: lossless.broken(Taught(teacher), change), case.first(24))


@pytest.mark.parametrize("n", [4, None])
@pytest.mark.parametrize("source", ["teacher", "prompt"])
def test_each_forward_commits_what_the_literal_iteration_commits(case: Case, n: int | None, source: str) -> None:
    asked, eos = case.asked[:14], case.target.eos_token_ids
    first = taught(case.teacher) if source == "teacher" else drawn(eos)
    expected = {r.key: jacobi(case.target.model, r, n, first, eos) for r in asked}
    if source == "teacher" and n is not None:
        assert {len(step) for steps in expected.values() for step in steps} == {1, 2, 3, 4}
    for cache, batch_size in (("cursor", 1), ("cursor", 5), ("none", 5), ("block", 5)):
        method = Taught(case.teacher, n) if source == "teacher" else Jacobi(n)
        got = lossless.decode(case.target, method, asked, batch_size=batch_size, cache=cache, cache_block=1000)
        assert {k: [s.token_ids for s in c.trace] for k, c in got.items()} == expected
        for request in asked:
            done, fed = 0, 0
            for step in expected[request.key]:
                room = request.max_new_tokens - done
                fed += (room if n is None else min(n, room)) - 1
                done += len(step)
            stats = got[request.key].stats
            assert (stats.drafted, stats.draft_forwards) == (fed, 0), "every guess that was fed is a draft"
            assert stats.accepted == done - len(expected[request.key])


def test_kept_keys_and_values_equal_a_fresh_forward(case: Case) -> None:
    assert lossless.check_cache(Taught, case) > 30
    lossless.check_cache(Taught, case, cache="block", cache_block=9)


def test_tokens_per_forward_do_not_depend_on_the_batch(case: Case) -> None:
    counts = set()
    for batch_size in (1, 5, 16):
        got = lossless.decode(case.target, Jacobi(), case.asked[:20], batch_size=batch_size)
        stats = [c.stats for c in got.values()]
        counts.add((sum(s.new_tokens for s in stats), sum(s.target_forwards for s in stats)))
    ((tokens, forwards),) = counts
    assert tokens > forwards


class Recorded(Jacobi):
    """Remembers what it guessed first, by prompt."""

    def start(self, context: Any) -> None:
        super().start(context)
        self.guessed: dict[Any, list[int]] = {}

    def first_guesses(self, row: Row, count: int) -> torch.Tensor:
        guesses = super().first_guesses(row, count)
        self.guessed.setdefault(row.request.key, []).extend(guesses.tolist())
        return guesses


class SpecialTokenizer(LetterTokenizer):
    """Names special tokens in both ways that tokenizers do, and has fewer ids than the model's embedding."""

    all_special_ids = (50, 51)

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        def token(special: bool) -> Any:
            return type("AddedToken", (), {"special": special})

        return {52: token(True), 53: token(False)}

    def __len__(self) -> int:
        return 60


SPECIAL = {7, 50, 51, 52, MASK}


def guesses(case: Case, initial: str, asked: list[Request], **kw: Any) -> dict[Any, list[int]]:
    target = Target(case.target.model, SpecialTokenizer(), eos_token_ids=(7,))
    method = Recorded(initial=initial)
    lossless.decode(target, method, asked, **kw)
    return method.guessed


def test_first_guesses_are_never_special(case: Case) -> None:
    """Prompts here hold special ids too; one holds nothing else, and guesses from the vocabulary."""
    asked = [replace(r, prompt_ids=[50, 7, *r.prompt_ids, 52, MASK]) for r in case.asked[:30]]
    bare = Request([50, 51, 7, MASK], 24, key="bare")
    got = guesses(case, "prompt", [*asked, bare], batch_size=16)
    for request in asked:
        assert set(got[request.key]) <= set(request.prompt_ids) - SPECIAL
    assert not set(got["bare"]) & SPECIAL
    at_random = guesses(case, "random", asked, batch_size=16)
    everything = set().union(*at_random.values())
    assert everything <= set(range(60)) - SPECIAL
    assert len(everything) > 45
    target = Target(case.target.model, SpecialTokenizer(), eos_token_ids=(7,))
    assert ordinary_ids(target).tolist() == sorted(set(range(60)) - SPECIAL)


@pytest.mark.parametrize("initial", ["prompt", "random"])
def test_guesses_follow_from_the_seed_and_not_from_the_batch(case: Case, initial: str) -> None:
    asked = case.asked[:9]
    alone = guesses(case, initial, asked)
    assert guesses(case, initial, asked, batch_size=4) == alone
    assert guesses(case, initial, [replace(r, seed=r.seed + 1) for r in asked]) != alone


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"window_length": 0}, "method.window_length"),
        ({"window_length": 2.0}, "method.window_length"),
        ({"window_length": True}, "method.window_length"),
        ({"initial": "zeros"}, "method.initial"),
    ],
)
def test_bad_options_name_the_key(options: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}="):
        Jacobi(**options)


def test_sampling_is_refused() -> None:
    with pytest.raises(UserError, match=r"^temperature=0.7: jacobi decodes greedily: its guesses"):
        Jacobi.from_settings({"temperature": 0.7}, {})
    assert Jacobi.from_settings({"temperature": 0.0}, {"window_length": None}) == Jacobi(None)
