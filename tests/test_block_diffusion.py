"""Block diffusion: layout, mask, loss and decoding against brute force."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from oracles import EOS, MASK, LetterTokenizer, Target, micro_model
from torch import Tensor

from harness.engine.cache import CursorCache
from harness.engine.contract import Context
from harness.engine.forward import run_window
from harness.engine.loop import Engine
from harness.engine.rows import Completion, Request, Row
from harness.engine.window import Window
from harness.errors import UserError
from methods.accept import confidence
from methods.block_diffusion import BlockDiffusion, BlockDiffusionObjective
from methods.contract import Example
from methods.masks import segments

RESPONSES = [
    [False] * 6 + [True] * 11,
    [False] * 3 + [True] * 7,
    [False] * 2 + [True] * 5 + [False] * 4 + [True] * 6 + [False],  # two assistant turns
    [False] * 4 + [True],
    [False] * 9 + [True] * 8,
]
ALIGNMENTS = ["paper", "released"]


def examples() -> list[Example]:
    generator = torch.Generator().manual_seed(3)
    return [Example(torch.randint(0, 60, (len(r),), generator=generator).tolist(), r) for r in RESPONSES]


def objective(**options: Any) -> BlockDiffusionObjective:
    made = BlockDiffusionObjective(**options)
    made.bind(MASK, 0)
    return made


def block_causal_logits(model: Any, ids: list[int], offset: int, block_size: int) -> Tensor:
    """[length, vocab] of a plain forward over one sequence whose blocks count from ``offset``, without the mask."""
    block = torch.tensor([(p - offset) // block_size for p in range(len(ids))])
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([ids]),
            attention_mask=(block[None, :] <= block[:, None])[None, None],
            position_ids=torch.arange(len(ids))[None],
            use_cache=False,
        ).logits[0]
    logits[:, MASK] = -torch.inf
    return logits


def turns(example: Example) -> list[tuple[list[int], int]]:
    return [(example.ids[:end], start) for start, end in segments(example.response)]


def walk(ids: list[int], start: int, block_size: int, alignment: str) -> tuple[int, list[int], list[int]]:
    """Offset of the blocks, starts of those with response tokens, and the text filled up to whole blocks."""
    offset = start if alignment == "paper" else 0
    begins = sorted({p - (p - offset) % block_size for p in range(start, len(ids))})
    return offset, begins, ids + [ids[-1]] * (begins[-1] + block_size - len(ids))


def plain_loss(model: Any, batch: dict[str, Tensor], asked: list[Example], made: BlockDiffusionObjective) -> float:
    """Each block as a full sequence of its own: clean text before it, then the block with its masks, nothing later."""
    size, total, count, line = made.block_size, 0.0, 0, 0
    masked, t = batch["fixed_masked"], batch["fixed_t"]
    for example in asked:
        for ids, start in turns(example):
            offset, begins, text = walk(ids, start, size, made.alignment)
            first_column = begins[-1]  # the noisy stream follows a clean one that ends before the last block
            for number, begin in enumerate(begins):
                column = first_column + number * size
                hidden = [bool(masked[line, column + k]) for k in range(size)]
                assert not any(hidden[k] for k in range(size) if begin + k < start), "a prompt token is masked"
                noisy = [MASK if hidden[k] else text[begin + k] for k in range(size)]
                logits = block_causal_logits(model, text[:begin] + noisy, offset, size)
                for k in range(size):
                    count += begin + k >= start
                    if hidden[k]:
                        state = begin + k - 1 if made.shift else begin + k
                        score = torch.log_softmax(logits[state].double(), -1)[text[begin + k]]
                        total -= float(score) / float(t[line, column])
            line += 1
    assert line == len(masked)
    return total / count


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("kind", "block_size"), [("qwen2", 4), ("llama", 3), ("qwen2", 1), ("qwen2", 8)])
def test_two_stream_loss_is_that_of_separate_forwards(kind: str, block_size: int, alignment: str, shift: bool) -> None:
    model = micro_model(kind)
    made = objective(block_size=block_size, alignment=alignment, shift=shift)
    batch = made.collate(examples())
    loss, parts = made.loss(model, batch)
    assert float(loss.detach()) == pytest.approx(plain_loss(model, batch, examples(), made), abs=1e-5)
    assert float(parts["masked"]) > 0


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_training_mask_read_aloud(alignment: str, block_size: int) -> None:
    """Who sees whom, one pair at a time."""
    batch = objective(block_size=block_size, alignment=alignment).collate(examples())
    lines = [turn for example in examples() for turn in turns(example)]
    for line, (ids, start) in enumerate(lines):
        offset, begins, text = walk(ids, start, block_size, alignment)
        things = [("clean", p) for p in range(begins[-1])]
        things += [("noisy", p) for p in range(begins[0], len(text))]
        n = len(things)
        assert batch["position_ids"][line, :n].tolist() == [p for _, p in things]
        assert batch["ids"][line, :n].tolist() == [text[p] for _, p in things]
        for i, (q_kind, q) in enumerate(things):
            for j, (k_kind, k) in enumerate(things):
                q_block, k_block = (q - offset) // block_size, (k - offset) // block_size
                if k_kind == "clean":
                    expected = k_block <= q_block if q_kind == "clean" else k_block < q_block
                else:
                    expected = q_kind == "noisy" and k_block == q_block
                assert bool(batch["attention"][line, 0, i, j]) == expected, (q_kind, q, k_kind, k)
        assert not batch["attention"][line, 0, :n, n:].any(), "padding must not be seen"
        assert batch["attention"][line, 0].any(-1).all(), "a query that sees nothing becomes NaN"


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_no_block_leaks_its_own_clean_tokens(alignment: str, shift: bool) -> None:
    """With everything masked, changing a token moves the predictions of later blocks and of nothing else."""
    model = micro_model()
    made = objective(alignment=alignment, shift=shift, t_min=1.0, t_max=1.0)
    base = examples()[0]
    changed = Example([*base.ids[:9], (base.ids[9] + 1) % 60, *base.ids[10:]], base.response)

    def predictions(example: Example) -> dict[int, Tensor]:
        batch = made.collate([example])
        with torch.no_grad():
            logits = model(
                input_ids=batch["ids"].masked_fill(batch["masked"], MASK),
                position_ids=batch["position_ids"],
                attention_mask=batch["attention"],
            ).logits[0]
        at = batch["labels"][0] != -100
        targets = batch["position_ids"][0, batch["source"][0, at]].tolist()
        return dict(zip(targets, logits[at], strict=True))

    one, other = predictions(base), predictions(changed)
    assert sorted(one) == list(range(6, 18)) if alignment == "paper" else sorted(one) == list(range(6, 20))
    later = 10 if alignment == "paper" else 12  # position 9 lies in the block 6–9, or in 8–11
    for position in one:
        moved = (one[position] - other[position]).abs().max() > 1e-9
        assert bool(moved) == (position >= later), position


def test_the_last_block_is_filled_with_the_end_of_turn() -> None:
    made = objective(t_min=1.0, t_max=1.0)
    batch = made.collate([Example([5, 6, 7, 8, 62], [False, False, True, True, True])])
    assert batch["ids"][0].tolist() == [5, 6, 7, 8, 62, 62]
    assert batch["masked"][0].tolist() == [False, False, True, True, True, True]
    assert batch["labels"][0].tolist() == [-100, 7, 8, 62, 62, -100]  # shifted: from the clean 6, then from masks


def test_one_t_per_block_within_its_bounds_and_unbiased() -> None:
    """Masks fall with probability t, so that the weighted count of masked tokens is the count of tokens."""
    made = objective(t_min=0.3, t_max=0.8)
    torch.manual_seed(0)
    batch = made.collate([Example([1] * 40, [False] * 4 + [True] * 36)] * 500)
    t, masked = batch["t"][:, 36:].double(), batch["masked"][:, 36:].double()
    assert t.shape[1] == 36
    assert float(t.min()) >= 0.3
    assert float(t.max()) <= 0.8
    assert float(t.mean()) == pytest.approx(0.55, abs=0.02)
    blocks = t.unflatten(1, (-1, 4))
    assert bool((blocks == blocks[..., :1]).all())
    assert len(blocks[..., 0].unique()) > 4_490
    assert float((masked / t).mean()) == pytest.approx(1.0, abs=0.03)
    low = t < 0.4
    assert float(masked[low].mean()) == pytest.approx(0.35, abs=0.03)


def test_held_out_noise_follows_the_text_and_training_noise_does_not() -> None:
    made, model = objective(), micro_model()
    torch.manual_seed(0)
    one = made.collate(examples())
    other = made.collate(examples())
    assert torch.equal(one["fixed_masked"], other["fixed_masked"])
    assert torch.equal(one["fixed_t"], other["fixed_t"])
    assert not torch.equal(one["masked"], other["masked"])
    with torch.no_grad():
        assert float(made.loss(model, one)[0]) == float(made.loss(model, other)[0])
        model.train()
        assert float(made.loss(model, one)[0]) != float(made.loss(model, other)[0])
    alone = made.collate(examples()[1:2])
    n = alone["fixed_masked"].shape[1]
    assert torch.equal(alone["fixed_masked"][0], one["fixed_masked"][1, :n]), "the batch must not matter"


def test_the_mask_is_neither_predicted_nor_a_target() -> None:
    """The loss does not depend on the mask's logit, also where the text itself holds the mask's id."""
    model = micro_model()
    made = objective(t_min=1.0, t_max=1.0)
    asked = [Example([1, 2, 3, MASK, 5, 6], [False, False, True, True, True, True])]
    batch = made.collate(asked)
    assert (batch["labels"] != -100).sum() == 3
    loss, _ = made.loss(model, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert not model.lm_head.weight.grad[MASK].any()
    assert model.lm_head.weight.grad[0].any()


def test_a_batch_without_a_masked_token_has_no_loss() -> None:
    made = objective()
    batch = made.collate(examples())
    batch["fixed_masked"] = torch.zeros_like(batch["fixed_masked"])
    loss, _ = made.loss(micro_model(), batch)
    loss.backward()
    assert float(loss.detach()) == 0


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"block_size": 0}, "block_size"),
        ({"alignment": "peper"}, "alignment"),
        ({"shift": "yes"}, "objective.shift"),
        ({"t_min": 0.0}, "objective.t_min"),
        ({"t_min": 0.9, "t_max": 0.8}, "objective.t_min"),
        ({"t_max": 1.5}, "objective.t_min"),
    ],
)
def test_bad_objective_options_name_the_key(options: dict[str, object], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}="):
        BlockDiffusionObjective(**options)


def test_the_shift_follows_the_alignment_and_is_recorded() -> None:
    assert BlockDiffusionObjective().options()["shift"] is True
    assert BlockDiffusionObjective(alignment="released").options()["shift"] is False
    assert BlockDiffusionObjective(alignment="released", shift=True).options()["shift"] is True


# Decoding.

CACHES = ("cursor", "block", "none")
LENGTHS = (3, 9, 17, 4, 5, 12, 8)


@dataclass
class Trained:
    """What decoding reads of a manifest."""

    alignment: str | None = "paper"
    objective: dict[str, Any] = field(default_factory=dict)


@cache
def targets(kind: str) -> Target:
    return Target(micro_model(kind, sharpen=2.0))


@pytest.fixture
def target() -> Target:
    return targets("qwen2")


def requests(lengths: tuple[int, ...] = LENGTHS, cap: int = 11, **kw: Any) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 60, (n,), generator=generator).tolist() for n in lengths]
    return [Request(p, max_new_tokens=cap - i, key=i, **kw) for i, p in enumerate(prompts)]


def decode(target: Target, method: BlockDiffusion, asked: list[Request], **kw: Any) -> dict[Any, Completion]:
    return {c.key: c for c in Engine(target, method, **kw).run(asked)}


@dataclass
class Block:
    """One block of the oracle: its new tokens, the confidence of each, and the forwards that unmasked it."""

    tokens: list[int]
    scores: list[float]
    inner: int


def oracle(
    model: Any, prompt: list[int], cap: int, method: BlockDiffusion, eos: tuple[int, ...] = (EOS,)
) -> list[Block]:
    """BD3-LM read literally: for each inner step the whole text is computed again under one block-causal mask."""
    key = (id(model), tuple(prompt), cap, method.tau, method.alignment, method.shift, eos)  # not of store and cache
    if key not in known_answers:
        known_answers[key] = (model, denoise(model, prompt, cap, method, eos))
    return known_answers[key][1]


known_answers: dict[Any, tuple[Any, list[Block]]] = {}


def denoise(model: Any, prompt: list[int], cap: int, method: BlockDiffusion, eos: tuple[int, ...]) -> list[Block]:
    is_paper = method.alignment in (None, "paper")
    shift = is_paper if method.shift is None else method.shift
    offset, size = len(prompt) if is_paper else 0, method.block_size
    text, done = list(prompt), []
    while len(text) < len(prompt) + cap and not any(t in eos for t in text[len(prompt) :]):
        fixed = (len(text) - offset) % size
        begin = len(text) - fixed
        block: dict[int, tuple[int, float]] = {k: (text[begin + k], 1.0) for k in range(fixed)}
        inner = 0
        while len(block) < size:
            inner += 1
            fed = text[:begin] + [block[k][0] if k in block else MASK for k in range(size)]
            logits = block_causal_logits(model, fed, offset, size)
            seen = {}
            for k in range(size):
                if k not in block:
                    probability = torch.softmax(logits[begin + k - shift].float(), -1)
                    seen[k] = (int(logits[begin + k - shift].argmax()), float(probability.max()))
            best = max(seen, key=lambda k: seen[k][1])
            block |= {k: v for k, v in seen.items() if k == best or (v[1] >= method.tau and method.tau < 1)}
        new = [block[k] for k in range(fixed, size)]
        done.append(Block([t for t, _ in new], [p for _, p in new], inner))
        text += [t for t, _ in new]
    return done


def trimmed(blocks: list[Block], cap: int, eos: tuple[int, ...] = (EOS,)) -> list[int]:
    tokens = [t for block in blocks for t in block.tokens][:cap]
    ends = [i + 1 for i, t in enumerate(tokens) if t in eos]
    return tokens[: min(ends, default=cap)]


def forwards(blocks: list[Block], store: str, prompt_is_stored: bool = True) -> list[int]:
    """Tokens committed by each forward."""
    lengths = []
    for number, block in enumerate(blocks):
        if store == "separate" and (number or prompt_is_stored):
            lengths.append(0)
        lengths += [0] * (block.inner - 1) + [len(block.tokens)]
    return lengths


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("store", ["separate", "fused"])
@pytest.mark.parametrize(("tau", "shift", "kind"), [(1.0, True, "qwen2"), (0.6, True, "llama"), (0.6, False, "qwen2")])
def test_decoding_is_the_paper_read_literally(cache: str, store: str, tau: float, shift: bool, kind: str) -> None:
    """Ragged batches with refill; every forward is what the oracle says it is."""
    target = targets(kind)
    method = BlockDiffusion(tau=tau, store=store, shift=shift)
    asked = requests()
    expected = {r.key: oracle(target.model, r.prompt_ids, r.max_new_tokens, method) for r in asked}
    inner = {block.inner for blocks in expected.values() for block in blocks}
    assert inner == {4} if tau == 1 else inner >= {2, 3, 4}, "blocks of all speeds must occur"
    for batch_size in (1, 3, 7):
        got = decode(target, method, asked, batch_size=batch_size, cache=cache, cache_block=8)
        for request in asked:
            blocks, completion = expected[request.key], got[request.key]
            assert completion.token_ids == trimmed(blocks, request.max_new_tokens)
            assert MASK not in completion.token_ids
            lengths = forwards(blocks, store)
            lengths[-1] -= sum(len(b.tokens) for b in blocks) - len(completion.token_ids)
            seen = completion.stats.acceptance_lengths
            if cache == "block" and store == "fused":  # the mode's own forwards at its boundaries come on top
                assert len(seen) == len(lengths) + (len(completion.token_ids) - 1) // 8
            else:
                assert seen == lengths
            assert completion.stats.target_forwards == len(seen)
            scores = [s for step in completion.trace for s in step.confidences]
            plain = [s for b in blocks for s in b.scores][: len(scores)]
            assert len(scores) == len(completion.token_ids)
            assert scores == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("cache", ["cursor", "none"])
@pytest.mark.parametrize("store", ["separate", "fused"])
@pytest.mark.parametrize("shift", [None, True])
def test_blocks_that_straddle_the_prompt(target: Target, cache: str, store: str, shift: bool | None) -> None:
    """``released``: the prompt's last tokens are fixed in the first block; a prompt below B is no block of its own."""
    method = BlockDiffusion(tau=0.6, store=store, alignment="released", shift=shift)
    asked = requests()
    for batch_size, chunk in ((3, None), (7, None), (7, 1), (7, 6)):
        got = decode(target, method, asked, batch_size=batch_size, cache=cache, prefill_chunk=chunk)
        for request in asked:
            blocks = oracle(target.model, request.prompt_ids, request.max_new_tokens, method)
            assert got[request.key].token_ids == trimmed(blocks, request.max_new_tokens)
            if chunk is None:
                lengths = forwards(blocks, store, prompt_is_stored=len(request.prompt_ids) >= 4)
                assert got[request.key].stats.target_forwards == len(lengths)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("store", "chunk"), [("separate", 1), ("separate", 7), ("fused", 4)])
def test_a_prompt_read_in_pieces_is_the_same(target: Target, cache: str, store: str, chunk: int) -> None:
    method = BlockDiffusion(tau=0.6, store=store)
    asked = requests()
    whole = decode(target, method, asked, batch_size=3, cache=cache, cache_block=8)
    pieces = decode(target, method, asked, batch_size=3, cache=cache, cache_block=8, prefill_chunk=chunk)
    for key, completion in whole.items():
        assert pieces[key].token_ids == completion.token_ids
        assert pieces[key].stats.acceptance_lengths == completion.stats.acceptance_lengths


def test_exact_counts_of_one_token_mode(target: Target) -> None:
    """B inner forwards a block, and one that stores where that is separate; a stopped row stores nothing."""
    endless = Target(target.model, eos_token_ids=())
    (request,) = requests(lengths=(9,), cap=12)
    (separate,) = decode(endless, BlockDiffusion(tau=1.0), [request]).values()
    (fused,) = decode(endless, BlockDiffusion(tau=1.0, store="fused"), [request]).values()
    assert separate.token_ids == fused.token_ids
    assert separate.stats.target_forwards == 3 * (4 + 1)
    assert fused.stats.target_forwards == 3 * 4
    # The prompt counts one position; then 4 masks a forward, and each of two stored blocks once.
    assert separate.stats.positions == 1 + 12 * 4 + 2 * 4
    assert fused.stats.positions == 1 + 12 * 4 + 2 * 4
    assert separate.stats.tokens_per_forward == 12 / 15


@pytest.mark.parametrize("store", ["separate", "fused"])
def test_eos_inside_a_block(target: Target, store: str) -> None:
    """Make each token the EOS in turn: what the block holds after it is neither kept nor counted."""
    method = BlockDiffusion(tau=0.6, store=store)
    ends = set()
    for request in requests(lengths=(9, 4, 3), cap=10):
        blocks = oracle(target.model, request.prompt_ids, 10, method, eos=())
        tokens = [t for b in blocks for t in b.tokens]
        for at, token in enumerate(tokens[: request.max_new_tokens]):
            if token not in tokens[:at]:
                (got,) = decode(Target(target.model, eos_token_ids=(token,)), method, [request]).values()
                assert (got.token_ids, got.stats.finish_reason) == (tokens[: at + 1], "eos")
                assert got.stats.target_forwards == len(forwards(blocks[: at // 4 + 1], store))
                ends.add(at % 4)
    assert ends == {0, 1, 2, 3}


@pytest.mark.parametrize("store", ["separate", "fused"])
def test_caps_inside_a_block(target: Target, store: str) -> None:
    method = BlockDiffusion(tau=0.6, store=store)
    (request,) = requests(lengths=(9,), cap=10)
    tokens = [t for b in oracle(target.model, request.prompt_ids, 10, method, eos=()) for t in b.tokens]
    for cap in range(1, 10):
        endless = Target(target.model, eos_token_ids=())
        (got,) = decode(endless, method, [Request(request.prompt_ids, cap)]).values()
        assert (got.token_ids, got.stats.finish_reason) == (tokens[:cap], "length")
        short = Target(target.model, eos_token_ids=(), context_length=9 + cap)
        (got,) = decode(short, method, [request]).values()
        assert (got.token_ids, got.stats.finish_reason) == (tokens[:cap], "context")


def test_stop_strings(target: Target) -> None:
    target = Target(target.model, LetterTokenizer(special=()), eos_token_ids=())
    method = BlockDiffusion(tau=0.6)
    (request,) = requests(lengths=(9,), cap=10)
    tokens = [t for b in oracle(target.model, request.prompt_ids, 10, method, eos=()) for t in b.tokens]
    text = target.tokenizer.decode(tokens, skip_special_tokens=False)
    for at in range(len(text) - 3):
        stop = text[at : at + 3]
        (got,) = decode(target, method, [Request(request.prompt_ids, 10, stop=(stop,))]).values()
        assert got.token_ids == tokens[: (text.find(stop) + 4) // 2][:10]
        assert got.text == text[: text.find(stop)]


@pytest.mark.parametrize("metric", ["margin", "entropy"])
def test_other_confidences_unmask_the_surest_first(target: Target, metric: str) -> None:
    """One-token mode of each metric against the order in which its score says to unmask."""
    method = BlockDiffusion(tau=0.0 if metric == "entropy" else 1.0, confidence=metric)
    (request,) = requests(lengths=(9,), cap=4)
    (got,) = decode(target, method, [request]).values()
    block: dict[int, int] = {}
    while len(block) < 4:
        fed = request.prompt_ids + [block.get(k, MASK) for k in range(4)]
        logits = block_causal_logits(target.model, fed, 9, 4)
        p = torch.softmax(logits.float(), -1)
        spread = -(p * p.clamp(min=1e-30).log()).sum(-1)
        margin = p.topk(2, -1).values @ torch.tensor([1.0, -1.0])
        sure = -spread if metric == "entropy" else margin
        best = max((k for k in range(4) if k not in block), key=lambda k: float(sure[8 + k]))
        block[best] = int(logits[8 + best].argmax())
    assert got.token_ids == [block[k] for k in range(4)][: len(got.token_ids)]


class CausalText(BlockDiffusion):
    """Encodes committed text causally."""

    @property
    def text_block(self) -> Any:
        return None


class CausalBlock(BlockDiffusion):
    """Positions of a block see only those before them."""

    def propose(self, rows: list[Row]) -> Window:
        window = super().propose(rows)
        window.visible &= torch.ones(window.width, window.width, dtype=torch.bool).tril()
        return window


class NoStore(BlockDiffusion):
    """Forgets that a finished block must be read, in a forward of its own."""

    def propose(self, rows: list[Row]) -> Window:
        for row in rows:
            row.state.stored = len(row.tokens)
        return super().propose(rows)


class StoresMasks(BlockDiffusion):
    """Counts a block as stored though its keys and values are those of its masks."""

    def propose(self, rows: list[Row]) -> Window:
        for row in rows:
            if row.new_tokens:
                row.cached = len(row.tokens)
        return super().propose(rows)


class ForgetsFirst(BlockDiffusion):
    """Reads the block's first position from whatever stands in the void column."""

    def accept(self, rows: list[Row], output: Any) -> Any:
        output.window.pending = output.window.pending.clamp(min=1)
        return super().accept(rows, output)


def unmask_all(logits: Tensor, metric: str, tau: float) -> Any:
    ids, score, passed = confidence(logits, metric, tau)
    return ids, score, torch.ones_like(passed)


def always_the_best_alone(logits: Tensor, metric: str, tau: float) -> Any:
    return confidence(logits, metric, 1.0)


@pytest.mark.parametrize("broken", [CausalText, CausalBlock, NoStore, StoresMasks, ForgetsFirst])
def test_a_broken_method_is_caught(target: Target, broken: type[BlockDiffusion]) -> None:
    assert not agrees(target, broken(tau=0.6))


def test_the_check_that_catches_them_passes_what_is_right(target: Target) -> None:
    assert agrees(target, BlockDiffusion(tau=0.6))


@pytest.mark.parametrize("rule", [unmask_all, always_the_best_alone])
def test_a_broken_rule_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    monkeypatch.setattr("methods.block_diffusion.confidence", rule)
    assert not agrees(target, BlockDiffusion(tau=0.6))


def agrees(target: Target, method: BlockDiffusion) -> bool:
    asked = requests(lengths=(9, 5, 12))
    got = decode(target, method, asked, batch_size=2)
    expected = {r.key: oracle(target.model, r.prompt_ids, r.max_new_tokens, method) for r in asked}
    return all(
        got[r.key].token_ids == trimmed(expected[r.key], r.max_new_tokens)
        and len(got[r.key].stats.acceptance_lengths) == len(forwards(expected[r.key], "separate"))
        for r in asked
    )


def test_a_mask_is_never_committed() -> None:
    """Not even by a model that predicts nothing else."""
    model = micro_model(sharpen=2.0)
    hooked = model.lm_head.register_forward_hook(
        lambda module, args, logits: logits.index_fill(-1, torch.tensor([MASK]), 99.0)
    )
    for store in ("separate", "fused"):
        got = decode(Target(model), BlockDiffusion(tau=0.6, store=store), requests(), batch_size=3)
        assert all(c.token_ids and MASK not in c.token_ids for c in got.values())
    hooked.remove()


@pytest.mark.parametrize("store", ["separate", "fused"])
@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_training_and_decoding_see_the_same(alignment: str, shift: bool, store: str) -> None:
    """With the same noisy block, both give its masked positions the same predictions."""
    model = micro_model()
    example = examples()[0]
    start = example.response.index(True)
    made = objective(alignment=alignment, shift=shift)
    batch = made.collate([example])
    with torch.no_grad():
        trained = model(
            input_ids=batch["ids"].masked_fill(batch["masked"], MASK),
            position_ids=batch["position_ids"],
            attention_mask=batch["attention"],
        ).logits[0]
    trained[:, MASK] = -torch.inf
    columns = {int(batch["source"][0, c]): c for c in range(trained.shape[0]) if batch["labels"][0, c] != -100}
    _, begins, text = walk(example.ids, start, 4, alignment)
    method = BlockDiffusion(tau=0.0, alignment=alignment, shift=shift, store=store)
    method.start(Context(Target(model), 1, 64))
    cache = CursorCache(model.config.num_hidden_layers, 1, 64)
    row = Row(Request(example.ids[:start]), example.ids[:start], 0, torch.Generator(), 99)
    method.admit(row)
    compared = 0
    for number, begin in enumerate(begins):
        row.tokens = text[: max(begin, start)]
        tail = len(row.tokens) - begin
        noisy = [begins[-1] + 4 * number + k for k in range(4)]
        masked = [bool(batch["masked"][0, c]) for c in noisy]
        row.state.ids = torch.tensor([MASK if m else text[begin + k] for k, m in enumerate(masked)])
        row.state.known = ~torch.tensor(masked)
        for _ in range(2 if store == "separate" and begin > row.cached else 1):
            output = run_window(model, cache, method.propose([row]), [0], [row.cached])
            row.cached = begin
            commit = method.accept([row], output)
        for k, column in enumerate(noisy):
            if masked[k]:
                probability = torch.softmax(trained[columns[column]].float(), -1)
                assert int(commit.ids[0, k - tail]) == int(probability.argmax())
                assert float(commit.confidences[0, k - tail]) == pytest.approx(float(probability.max()), abs=1e-6)
                compared += 1
    assert compared == int(batch["masked"].sum()) > 3


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tau": 1.1}, "tau"),
        ({"tau": "abc"}, "tau"),
        ({"block_size": 0}, "block_size"),
        ({"confidence": "top1"}, "confidence"),
        ({"store": "none"}, "method.store"),
        ({"alignment": "peper"}, "method.alignment"),
        ({"shift": "yes"}, "method.shift"),
        ({"shift": 1}, "method.shift"),
    ],
)
def test_bad_options_name_the_key(options: dict[str, object], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}="):
        BlockDiffusion(**options)


def test_decoding_follows_the_checkpoint(target: Target) -> None:
    def started(method: BlockDiffusion, **trained: Any) -> tuple[Any, Any, str]:
        method.start(Context(Target(target.model, manifest=Trained(**trained)), 1, 64))
        return method.settled["alignment"], method.settled["shift"], method.text_block_start

    assert started(BlockDiffusion(), objective={"shift": False}) == ("paper", False, "prompt")
    assert started(BlockDiffusion(), objective={"shift": True}) == ("paper", True, "prompt")
    assert started(BlockDiffusion(), alignment=None) == ("paper", True, "prompt")
    assert started(BlockDiffusion(), alignment="released") == ("released", False, "sequence")
    assert started(BlockDiffusion(shift=True), alignment="released") == ("released", True, "sequence")
    assert started(BlockDiffusion(alignment="released"), alignment="released") == ("released", False, "sequence")
    with pytest.raises(UserError, match=r"(?s)^method\.alignment=.*fix: method\.alignment=released"):
        started(BlockDiffusion(alignment="paper"), alignment="released")
    with pytest.raises(UserError, match=r"(?s)^method\.shift=.*fix: method\.shift=false"):
        started(BlockDiffusion(shift=True), objective={"shift": False})


def test_what_is_left_open_is_settled_before_the_engine_is_made(target: Target) -> None:
    """The engine asks where blocks count from when it is made; and equal outputs have equal fields."""
    method, released = BlockDiffusion(), Trained("released", {"shift": False})
    assert (method.alignment, method.shift, method.text_block_start) == (None, None, "prompt")
    for _ in range(2):
        method.fit(released)
        assert method == BlockDiffusion(), "what the checkpoint says is no setting"
        assert method.text_block_start == "sequence"
    explicit = BlockDiffusion(alignment="released", shift=False)
    assert explicit != method
    explicit.fit(released)
    assert explicit == method
    with pytest.raises(UserError, match=r"^cache_block=8: whole blocks.*counted from the sequence"):
        Engine(replace(target, manifest=released), BlockDiffusion(), cache="block", cache_block=8)
    method.fit(Trained())
    assert method == BlockDiffusion(alignment="paper", shift=True), "what another checkpoint said is not asked for"
    method.fit(None)
    assert method == BlockDiffusion(alignment="paper", shift=True)


def test_a_fitted_method_decodes_as_one_that_was_told(target: Target) -> None:
    trained = Target(target.model, manifest=Trained("released"))
    fitted, told = BlockDiffusion(tau=0.6), BlockDiffusion(tau=0.6, alignment="released", shift=False)
    fitted.fit(trained.manifest)
    got, expected, paper = (
        {k: c.token_ids for k, c in decode(on, method, requests(), batch_size=3).items()}
        for on, method in ((trained, fitted), (target, told), (target, BlockDiffusion(tau=0.6)))
    )
    assert got == expected != paper


def test_what_cannot_be_decoded_is_refused(target: Target) -> None:
    with pytest.raises(UserError, match="mask token"):
        list(Engine(Target(target.model, mask_token_id=None), BlockDiffusion()).run(requests()))
    with pytest.raises(UserError, match=r"^cache_block=6: whole blocks"):
        Engine(target, BlockDiffusion(), cache="block", cache_block=6)
    with pytest.raises(UserError, match="^cache_block"):
        Engine(target, BlockDiffusion(alignment="released"), cache="block", cache_block=8)
    with pytest.raises(UserError, match="^temperature="):
        BlockDiffusion.from_settings({"temperature": 0.5}, {})
