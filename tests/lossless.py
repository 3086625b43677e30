"""What every lossless method must show, for its own test to call: the answers of greedy AR, whatever it drafts.

    case = lossless.case("qwen2")                                     # a micro model, 200 prompts, greedy's answers
    lossless.check(lambda teacher: Taught(teacher), case, runs=range(4))   # drafts that are often right
    lossless.check(lambda teacher: MyMethod(), case)                  # the method's own drafts

``Taught`` is the method under test with its draft source replaced by ``teacher.candidates``: a random model's own
drafts are hardly ever confirmed, and what is never accepted is never tested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from oracles import VOCAB, Target, micro_model
from torch import Tensor

from harness.engine.commit import Commit
from harness.engine.loop import Engine
from harness.engine.rows import Completion, Request, Row
from harness.engine.window import Output
from methods.contract import Method

CACHES = ("cursor", "block", "none")
LENGTHS = (3, 4, 5, 7, 9, 12, 17, 23, 30)  # of prompts: no two neighbours in a batch are alike
CAP = 24
COUNTS = ("new_tokens", "target_forwards", "positions", "drafted", "accepted", "draft_forwards", "acceptance_lengths")


def continuations(model: Any, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Greedy AR past any EOS, by full recomputation; prompts of one length share a forward, so nothing is padded."""
    texts = [list(p) for p in prompts]
    for length in {len(p) for p in prompts}:
        group = [i for i, p in enumerate(prompts) if len(p) == length]
        ids = torch.tensor([texts[i] for i in group])
        for _ in range(num_tokens):
            with torch.no_grad():
                best = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1].argmax(-1)
            ids = torch.cat([ids, best[:, None]], 1)
        for i, text in zip(group, ids.tolist(), strict=True):
            texts[i] = text[length:]
    return texts


@dataclass
class Teacher:
    """A draft source that knows what greedy AR says next and errs at random, so that runs of every length occur.

    Attributes:
        truth: greedy's continuation of each prompt, EOS ignored.
        right: probability that a depth holds the true token.
    """

    truth: dict[tuple[int, ...], list[int]]
    right: float = 0.7

    def candidates(self, row: Row, depths: int, width: int = 1) -> Tensor:
        """Drafts of the row's next tokens, drawn from the row's own generator.

        Returns:
            int64 [depths, width], distinct tokens per depth; where a depth is right, the true one has a random rank
            and elsewhere it is absent. ``[:, 0]`` of width 1 is a chain.
        """
        known = self.truth[tuple(row.request.prompt_ids)][row.new_tokens :][:depths]
        true = torch.tensor(known + [0] * (depths - len(known)), dtype=torch.long)
        score = torch.rand(depths, VOCAB, generator=row.generator)
        score[torch.arange(depths), true] = -1
        drawn = score.topk(width).indices
        rank = torch.randint(width, (depths,), generator=row.generator)
        is_right = torch.rand(depths, generator=row.generator) < self.right
        is_right[len(known) :] = False
        drawn[is_right, rank[is_right]] = true[is_right]
        return drawn


@dataclass
class Case:
    """A model, prompts with a cap and a seed each, and what greedy AR answers.

    ``target`` ends at tokens that the model often says, so that about half of the answers end inside the cap.
    """

    target: Target
    asked: list[Request]
    teacher: Teacher

    def first(self, num_prompts: int) -> Case:
        """The same with fewer prompts."""
        return replace(self, asked=self.asked[:num_prompts])

    def answer(self, request: Request) -> tuple[list[int], str]:
        """Greedy's tokens, EOS included, and why they end."""
        tokens = self.teacher.truth[tuple(request.prompt_ids)][: request.max_new_tokens]
        end = next((i + 1 for i, t in enumerate(tokens) if t in self.target.eos_token_ids), None)
        return (tokens, "length") if end is None else (tokens[:end], "eos")


@functools.cache
def case(kind: str = "qwen2", num_prompts: int = 200, cap: int = CAP, seed: int = 0) -> Case:
    """``num_prompts`` random prompts of ragged lengths for the micro model ``kind`` (``qwen2`` or ``llama``)."""
    model = micro_model(kind, sharpen=3.0)
    generator = torch.Generator().manual_seed(seed)
    prompts = [
        torch.randint(0, 60, (LENGTHS[i % len(LENGTHS)],), generator=generator).tolist() for i in range(num_prompts)
    ]
    truth = continuations(model, prompts, cap)
    # Two tokens that each end about a quarter of the answers.
    said = {t: sum(t in answer for answer in truth) for t in range(VOCAB)}
    eos = tuple(sorted(said, key=lambda t: abs(said[t] - num_prompts / 4))[:2])
    asked = [Request(p, max_new_tokens=cap - i % (cap // 2), key=i, seed=i) for i, p in enumerate(prompts)]
    teacher = Teacher({tuple(p): answer for p, answer in zip(prompts, truth, strict=True)})
    return Case(Target(model, eos_token_ids=eos), asked, teacher)


def decode(target: Target, method: Method, asked: Iterable[Request], **kw: Any) -> dict[Hashable, Completion]:
    """Completions by key."""
    return {c.key: c for c in Engine(target, method, **kw).run(asked)}


def check_answers(case: Case, got: Iterable[Completion]) -> None:
    """Each completion is greedy's answer, ends for the same reason, and its counts follow from its trace."""
    asked = {request.key: request for request in case.asked}
    for completion in got:
        stats = completion.stats
        answer, reason = case.answer(asked[completion.key])
        assert completion.token_ids == answer, f"prompt {completion.key}: not what greedy AR says"
        assert stats.finish_reason == reason
        assert [t for step in completion.trace for t in step.token_ids] == answer
        assert sum(stats.acceptance_lengths) == stats.new_tokens == len(answer)
        assert stats.accepted <= stats.drafted


def check_same_steps(one: Completion, other: Completion) -> None:
    """Two decodings of a request took the same steps and cost the same."""
    assert [s.token_ids for s in one.trace] == [s.token_ids for s in other.trace]
    for count in COUNTS:
        assert getattr(one.stats, count) == getattr(other.stats, count), f"prompt {one.key}: {count}"


def check(
    make_method: Callable[[Teacher], Method],
    case: Case,
    *,
    runs: Collection[int] = (),
    caches: Collection[str] = CACHES,
    batch_size: int = 25,
    chunk: int = 4,
    cache_block: int = 9,
    same_steps: bool = True,
) -> list[Completion]:
    """Equality with greedy AR: every prompt in a ragged batch, and some of them alone or in pieces.

    Slots are refilled as rows finish; caps and EOS fall anywhere in a run. The first cache takes every prompt, the
    others every second one. Where ``runs`` are asked for, every prompt is also decoded alone under the first cache
    (else, and under the others, a sixth); an eighth is read in pieces.

    Args:
        make_method: makes a fresh method; it may take its drafts from the teacher.
        case: the model and the prompts.
        runs: how many tokens beyond the guaranteed one forwards must have committed, each at least once (the test
            would be vacuous without); then an EOS and a cap must have ended a run too.
        caches: cache modes to run.
        batch_size: rows of the ragged batches.
        chunk: longest piece of a prompt read at once.
        cache_block: block of the ``block`` cache; runs are cut at its boundaries.
        same_steps: a prompt alone must take the steps that it takes in a batch.

    Returns:
        All completions.

    Raises:
        AssertionError: an answer is not greedy's, or the runs did not occur.
    """
    every: list[Completion] = []
    for number, cache in enumerate(caches):
        options = {"cache": cache, "cache_block": cache_block}
        asked = case.asked[number::2] if number else case.asked
        batched = decode(case.target, make_method(case.teacher), asked, batch_size=batch_size, **options)
        step = 1 if runs and not number else 6
        alone = decode(case.target, make_method(case.teacher), asked[::step], **options)
        pieces = decode(
            case.target, make_method(case.teacher), asked[::8],
            batch_size=batch_size, prefill_chunk=chunk, **options,
        )  # fmt: skip
        assert len(batched) == len(asked)
        for got in (batched, alone, pieces):
            check_answers(case, got.values())
            every += got.values()
            for key, completion in got.items():
                if same_steps:
                    check_same_steps(completion, batched[key])
    if runs:
        check_runs(every, runs)
    return every


def check_runs(got: Iterable[Completion], runs: Collection[int]) -> None:
    """Forwards committed each number of tokens in ``runs`` beyond the guaranteed one, and stops fell inside runs."""
    got = list(got)
    seen = {n - 1 for c in got for n in c.stats.acceptance_lengths if n}
    assert set(runs) <= seen, f"runs of {sorted(set(runs) - seen)} never occurred: the test shows nothing about them"
    for reason in ("eos", "length"):
        ends = [len(c.trace[-1].token_ids) for c in got if c.stats.finish_reason == reason]
        assert any(n > 1 for n in ends), f"no answer ended inside a run ({reason})"


def check_cache(make_method: Callable[[Teacher], Method], case: Case, *, num_prompts: int = 12, **kw: Any) -> int:
    """After every forward, each live row's keys and values equal those of a plain forward over its cached tokens.

    Returns:
        Positions kept without being fed again, summed over forwards: 0 means that nothing was shown.
    """
    engine = Engine(case.target, make_method(case.teacher), **({"batch_size": 3} | kw))
    apply = engine._apply
    kept_positions = 0

    def checked(rows: list[Row], *args: Any) -> None:
        nonlocal kept_positions
        before = [len(row.tokens) for row in rows]
        apply(rows, *args)
        for row, fed in zip(rows, before, strict=True):
            kept_positions += max(row.cached - fed, 0)
            if not row.cached:
                continue
            with torch.no_grad():
                output = case.target.model(input_ids=torch.tensor([row.tokens[: row.cached]]), use_cache=True)
            fresh = output.cache if hasattr(output, "cache") else output.past_key_values  # the name moved
            for layer, mine in zip(fresh.layers, engine.cache.layers, strict=True):
                for name in ("keys", "values"):
                    kept = getattr(mine, name)[row.slot, :, : row.cached]
                    assert torch.allclose(kept, getattr(layer, name)[0], atol=1e-6), f"prompt {row.request.key}: {name}"

    engine._apply = checked  # type: ignore[method-assign]
    check_answers(case, engine.run(case.asked[:num_prompts]))
    return kept_positions


def confirmed(output: Output, ids: Tensor) -> Tensor:
    """Which fed tokens of a chain equal the prediction before them: bool [rows, most added]."""
    window = output.window
    columns = torch.arange(ids.shape[1] - 1)
    drafts = window.ids.gather(1, (window.pending[:, None] + columns).clamp(max=window.width - 1))
    return (drafts == ids[:, :-1]) & (columns < window.count[:, None])


def one_more(commit: Commit, output: Output) -> Commit:
    """Broken on purpose: also commits the prediction made after the first draft that was not confirmed."""
    return replace(commit, length=torch.minimum(commit.length + 1, output.count))


def jump_gap(commit: Commit, output: Output) -> Commit:
    """Broken on purpose, for chains: counts confirmed drafts though one before them was not."""
    return replace(commit, length=1 + confirmed(output, commit.ids).long().sum(1))


def broken(method: Method, change: Callable[[Commit, Output], Commit]) -> Method:
    """The method with its commits changed; what it keeps in the cache stays as it was."""
    accept = method.accept

    def changed(rows: list[Row], output: Output) -> Commit:
        return change(accept(rows, output), output)

    method.accept = changed  # type: ignore[method-assign]
    return method
