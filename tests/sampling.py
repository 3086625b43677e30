"""What every method that samples must show, for its own test to call: it draws whole sequences as the target would.

    target = sampling.toy_target("qwen2")                             # a vocabulary so small that it can be enumerated
    sampling.check_sampler(lambda: MyMethod(temperature=1.0), target, temperature=1.0, runs=range(3))
    with pytest.raises(AssertionError, match="not the target's"):     # and the check sees what is wrong
        sampling.check_sampler(lambda: MyBiasedMethod(temperature=1.0), target, temperature=1.0)

Many requests with seeds of their own draw a sequence each; a chi-square test compares how often each sequence occurred
with its exact probability. Seeds are fixed, so an outcome is the same on every day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from oracles import Target, micro_model
from torch import Tensor

from harness.engine.loop import Engine
from harness.engine.rows import Completion, Request
from methods.contract import Method

VOCAB = 6
PROMPT = (1, 4, 0, 2)
LENGTH = 3  # tokens of a sequence that is counted
CAP = 5  # tokens that are drawn: drafts reach beyond what is counted, as they do in the middle of a text
NUM_DRAWS = 20_000
LOWEST_P = 0.001


def toy_target(
    kind: str = "qwen2", *, eos: tuple[int, ...] = (VOCAB - 1,), mask: int | None = None, **kw: Any
) -> Target:
    """A random micro model of ``VOCAB`` tokens, the last of which ends a text."""
    return Target(micro_model(kind, vocab=VOCAB, **kw), mask_token_id=mask, eos_token_ids=eos)


def sequence_probabilities(
    target: Target, temperature: float, prompt: Sequence[int] = PROMPT, length: int = LENGTH
) -> Tensor:
    """Exact probability of every sequence, by enumeration without cache: float64 [vocab ** length].

    A sequence is read as a number with the first token as its highest digit; one that ended is filled with what ended
    it.
    """
    vocab = target.model.config.vocab_size
    texts = torch.zeros(1, 0, dtype=torch.long)
    probability = torch.ones(1, dtype=torch.float64)
    eos = torch.tensor(target.eos_token_ids, dtype=torch.long)
    for step in range(length):
        ids = torch.cat([torch.tensor(prompt).expand(len(texts), -1), texts], 1)
        with torch.no_grad():
            logits = target.model(input_ids=ids, use_cache=False).logits[:, -1].double()
        following = torch.softmax(logits / temperature, -1)
        if step:
            ended = torch.isin(texts[:, -1], eos)
            following[ended] = torch.nn.functional.one_hot(texts[ended, -1], vocab).double()
        texts = torch.cat([texts.repeat_interleave(vocab, 0), torch.arange(vocab).repeat(len(texts))[:, None]], 1)
        probability = (probability[:, None] * following).flatten()
    return probability


def draw(
    method: Method,
    target: Target,
    num_draws: int = NUM_DRAWS,
    *,
    prompt: Sequence[int] = PROMPT,
    cap: int = CAP,
    batch_size: int = 200,
    **kw: Any,
) -> list[Completion]:
    """One completion per seed 0 … ``num_draws`` − 1, in this order."""
    asked = [Request(list(prompt), max_new_tokens=cap, key=seed, seed=seed) for seed in range(num_draws)]
    got = list(Engine(target, method, batch_size=batch_size, **kw).run(asked))
    return sorted(got, key=lambda completion: completion.key)  # type: ignore[arg-type, return-value]


def sequence_counts(got: Collection[Completion], vocab: int, length: int = LENGTH) -> Tensor:
    """How often each sequence was drawn, numbered as in ``sequence_probabilities``: int64 [vocab ** length]."""
    texts = [c.token_ids[:length] for c in got]
    padded = torch.tensor([text + [text[-1]] * (length - len(text)) for text in texts])
    place = vocab ** torch.arange(length - 1, -1, -1)
    return torch.bincount((padded * place).sum(1), minlength=vocab**length)


def p_value(counts: Tensor, probability: Tensor, least: float = 5.0) -> float:
    """Pearson's chi-square test of counts against exact probabilities; sequences rarer than ``least`` are one cell.

    0 where something was drawn that cannot occur.
    """
    if bool((counts[probability == 0] > 0).any()):
        return 0.0
    expected = probability * counts.sum()
    rare = expected < least
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    half_freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, statistic / 2))


def check_sampler(
    make_method: Callable[[], Method],
    target: Target,
    *,
    temperature: float,
    runs: Collection[int] = (),
    num_draws: int = NUM_DRAWS,
    length: int = LENGTH,
    prompt: Sequence[int] = PROMPT,
    alone: int = 40,
    **kw: Any,
) -> list[Completion]:
    """The method's sequences have the target's distribution at ``temperature``, and its own seed decides each.

    Args:
        make_method: makes a fresh method, set to this temperature.
        runs: how many tokens beyond the guaranteed one forwards must have committed, each at least once among the
            tokens that are counted or next to them.
        alone: so many of the draws are repeated with a batch of one, and must be the same.
        kw: of ``draw`` (``cap``, ``batch_size``) and of the engine (``cache``).

    Returns:
        All completions of the batch.

    Raises:
        AssertionError: p at or below ``LOWEST_P``, a run that never occurred, or a draw that depends on its batch.
    """
    probability = sequence_probabilities(target, temperature, prompt, length)
    got = draw(make_method(), target, num_draws, prompt=prompt, **kw)
    p = p_value(sequence_counts(got, target.model.config.vocab_size, length), probability)
    assert p > LOWEST_P, f"not the target's distribution: p = {p:.2g} over {num_draws} draws"
    seen = {n - 1 for c in got for n in c.stats.acceptance_lengths if n}
    assert set(runs) <= seen, f"runs of {sorted(set(runs) - seen)} never occurred: the test shows nothing about them"
    single = draw(make_method(), target, alone, prompt=prompt, **(kw | {"batch_size": 1}))
    for one, other in zip(single, got, strict=False):
        assert [s.token_ids for s in one.trace] == [s.token_ids for s in other.trace], f"seed {one.key}: not alone"
    return got
