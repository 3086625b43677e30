"""Counts of every method in conf/method, whoever wrote it: re-counted from the trace and from outside, alone and in a
batch, on the shipped checkpoints of ``tiny`` in float64."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch

from harness import problems
from harness.config import CONF
from harness.decoding import decode, pick_method
from harness.engine.forward import backbone
from harness.engine.rows import Completion
from harness.models.load import LoadedModel, load
from methods.contract import Method

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
# Settings under which a method decodes in another way than by default.
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    ("block_diffusion", {"store": "fused"}),
    ("mars", {"verify": True}),
    ("speculative", {"draft": "mars"}),
    ("speculative", {"target": "mars"}),
]
NUM_PROBLEMS, CAP = 6, 32
SECONDS = ("prefill_seconds", "decode_seconds", "share_seconds", "target_seconds", "draft_seconds")

every_case = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=["-".join([n, *(f"{k}_{v}" for k, v in o.items())]) for n, o in CASES]
)


class Calls:
    """Forwards of a model, seen from outside."""

    def __init__(self) -> None:
        self.forwards = self.positions = 0

    def __call__(self, module: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        self.forwards += 1
        self.positions += inputs["input_ids"].shape[1]


@contextlib.contextmanager
def watch(model: Any) -> Iterator[Calls]:
    calls = Calls()
    handle = backbone(model).register_forward_pre_hook(calls, with_kwargs=True)
    yield calls
    handle.remove()


def opened(name: str, options: dict[str, Any]) -> tuple[Method, LoadedModel]:
    method = pick_method(name, options)
    return method, load("tiny", method=method, block_size=method.trained_as.trained_block_size, dtype="float64")


@functools.cache
def prompts() -> list[str]:
    return [problem.question for problem in problems.generate("test", NUM_PROBLEMS, seed=11)]


def check_trace(completion: Completion) -> None:
    """The statistics are what one counts in the trace."""
    stats, trace = completion.stats, completion.trace
    assert [token for step in trace for token in step.token_ids] == completion.token_ids
    assert stats.new_tokens == len(completion.token_ids)
    assert stats.acceptance_lengths == [len(step.token_ids) for step in trace]
    assert stats.target_forwards == len(trace)
    assert stats.draft_forwards == sum(step.draft_forwards for step in trace)
    assert stats.tokens_per_forward == len(completion.token_ids) / len(trace)
    assert stats.prompt_tokens == len(completion.prompt_ids)
    assert 0 <= stats.accepted <= stats.drafted
    assert stats.draft_positions >= stats.draft_forwards


@every_case
def test_counts_follow_from_trace_and_calls_and_not_from_the_batch(name: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    method, loaded = opened(name, options)
    drafting = [other.model for other in loaded.companions.values()]
    with watch(loaded.model) as target, contextlib.ExitStack() as stack:
        drafts = [stack.enter_context(watch(model)) for model in drafting]
        alone = decode(loaded, method, prompts(), max_new_tokens=CAP, batch_size=1)
    for completion in alone:
        check_trace(completion)
    stats = [completion.stats for completion in alone]
    assert target.forwards == sum(s.target_forwards for s in stats), "forwards that nobody counted"
    read = sum(s.prompt_tokens - 1 for s in stats)  # a prompt counts as one position
    assert target.positions - read == sum(s.positions for s in stats)
    if drafts:
        assert sum(d.forwards for d in drafts) == sum(s.draft_forwards for s in stats) > 0
        assert sum(d.positions for d in drafts) == sum(s.draft_positions for s in stats)

    batched = decode(loaded, pick_method(name, options), prompts(), max_new_tokens=CAP, batch_size=NUM_PROBLEMS - 1)
    for one, other in zip(alone, batched, strict=True):
        check_trace(other)
        assert [step.token_ids for step in one.trace] == [step.token_ids for step in other.trace]
        counts = [{k: v for k, v in asdict(c.stats).items() if k not in SECONDS} for c in (one, other)]
        assert counts[0] == counts[1]
