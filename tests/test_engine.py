"""The decode loop against slow oracles: tokens, counts, stops, caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from oracles import EOS, MASK, LetterTokenizer, Target, greedy, logits_of, mars, micro_model

from harness.engine.commit import Commit
from harness.engine.loop import Engine
from harness.engine.rows import Completion, Request, Row
from harness.engine.window import Output, Window
from harness.errors import UserError
from methods.ar_sft import ArSft
from methods.contract import Method
from methods.mars import Mars

LENGTHS = (3, 9, 17, 4, 5, 30, 8)
CACHES = ("cursor", "block", "none")


def requests(lengths: tuple[int, ...] = LENGTHS, cap: int = 24, seed: int = 1, **kw: Any) -> list[Request]:
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(0, 60, (n,), generator=generator).tolist() for n in lengths]
    return [Request(p, max_new_tokens=cap, key=i, **kw) for i, p in enumerate(prompts)]


def decode(target: Target, method: Method, asked: list[Request], **kw: Any) -> dict[Any, Completion]:
    return {c.key: c for c in Engine(target, method, **kw).run(asked)}


def tokens_of(completions: dict[Any, Completion]) -> dict[Any, list[int]]:
    return {k: c.token_ids for k, c in completions.items()}


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def target(request: pytest.FixtureRequest) -> Target:
    return Target(micro_model(request.param, sharpen=3.0))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_one_token_mode_is_greedy_ar(target: Target, cache: str, batch_size: int) -> None:
    """Batch 3 of 7 requests refills slots; prompts are ragged."""
    asked = requests()
    expected = {r.key: greedy(target.model, r.prompt_ids, 24) for r in asked}
    for method in (ArSft(), Mars(tau=1.0), Mars(tau=0.0, confidence="entropy"), Mars(tau=1.0, confidence="margin")):
        got = decode(target, method, asked, batch_size=batch_size, cache=cache, cache_block=8)
        assert tokens_of(got) == expected
        if cache != "block":
            assert all(c.stats.tokens_per_forward == 1.0 for c in got.values())


@pytest.mark.parametrize("cache", CACHES)
def test_mars_is_the_paper_read_literally(target: Target, cache: str) -> None:
    """Runs of every length occur, and batch 7 equals seven single runs equals the oracle."""
    asked = requests(cap=40)
    block = 4 if cache != "block" else 1000  # block boundaries cut runs; without one in reach they must not matter
    expected = {r.key: mars(target.model, r.prompt_ids, 40, 4, 0.6) for r in asked}
    lengths = {len(step) for steps in expected.values() for step in steps}
    assert lengths == {1, 2, 3, 4}, "the oracle must meet runs of every length, or the test shows nothing"
    for batch_size in (1, 7, 3):
        got = decode(target, Mars(tau=0.6), asked, batch_size=batch_size, cache=cache, cache_block=block)
        assert {k: [s.token_ids for s in c.trace] for k, c in got.items()} == expected
        assert {k: c.stats.acceptance_lengths for k, c in got.items()} == {
            k: [len(s) for s in v] for k, v in expected.items()
        }


@pytest.mark.parametrize("broken", ["counts_all", "one_more", "always_all"])
def test_a_broken_acceptance_rule_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    rules = {
        "counts_all": lambda passed, count: 1 + torch.minimum(passed[:, 1:].long().sum(1), count - 1),  # gaps jumped
        "one_more": lambda passed, count: torch.minimum(2 + passed[:, 1:].long().cumprod(1).sum(1), count),
        "always_all": lambda passed, count: count,
    }
    monkeypatch.setattr("methods.mars.accepted_length", rules[broken])
    asked = requests(cap=40)
    expected = {r.key: mars(target.model, r.prompt_ids, 40, 4, 0.6) for r in asked}
    got = decode(target, Mars(tau=0.6), asked, batch_size=7)
    assert {k: [s.token_ids for s in c.trace] for k, c in got.items()} != expected


def test_eos_at_every_offset_of_a_run(target: Target) -> None:
    """Make each token of each accepted run the EOS in turn: nothing after it is kept or counted."""
    asked = requests(lengths=tuple(range(3, 27)), cap=12)
    offsets = set()
    for request in asked:
        steps = mars(target.model, request.prompt_ids, 12, 4, 0.6)
        seen: set[int] = set()
        for number, step in enumerate(steps):
            for offset, token in enumerate(step):
                if token in seen:
                    continue  # an earlier forward would stop there
                seen.add(token)
                ends = Target(target.model, eos_token_ids=(token,))
                (got,) = decode(ends, Mars(tau=0.6), [request]).values()
                before = sum(len(s) for s in steps[:number])
                offsets.add((offset, len(step)))
                assert got.token_ids == sum(steps, [])[: before + offset + 1]
                assert got.stats.new_tokens == before + offset + 1
                assert got.stats.acceptance_lengths == [len(s) for s in steps[:number]] + [offset + 1]
                assert got.stats.target_forwards == number + 1
                assert got.stats.finish_reason == "eos"
                assert got.stats.accepted == sum(got.stats.acceptance_lengths) - number - 1
    assert {(i, n) for n in (1, 2, 3, 4) for i in range(n)} <= offsets


def test_stop_strings_split_across_tokens_and_forwards(target: Target) -> None:
    """Every substring of three characters, wherever the forward boundaries fall."""
    target = Target(target.model, LetterTokenizer(special=()), eos_token_ids=())
    asked = requests(lengths=(9, 17, 4), cap=40)
    crossed = 0
    for request in asked:
        steps = mars(target.model, request.prompt_ids, 40, 4, 0.6, eos=())
        tokens = sum(steps, [])
        text = target.tokenizer.decode(tokens, skip_special_tokens=False)
        starts = [sum(len(s) for s in steps[:k]) for k in range(len(steps) + 1)]
        for at in range(1, len(text) - 3):
            stop = text[at : at + 3]
            first = text.find(stop)
            num_tokens = (first + 3 + 1) // 2  # two characters per token
            (got,) = decode(target, Mars(tau=0.6), [Request(request.prompt_ids, 40, stop=(stop, "never"))]).values()
            assert got.token_ids == tokens[:num_tokens]
            assert got.text == text[:first]
            forwards = next(k for k in range(len(starts)) if starts[k] >= num_tokens)
            assert got.stats.target_forwards == forwards
            assert sum(got.stats.acceptance_lengths) == got.stats.new_tokens == num_tokens
            crossed += first // 2 < starts[forwards - 1]
    assert crossed > 5, "no stop string was split across forwards"


def test_the_prompt_is_not_searched_for_stops(target: Target) -> None:
    (request,) = requests(lengths=(9,), cap=12)
    tokens = greedy(target.model, request.prompt_ids, 12)
    ending = target.tokenizer.decode(request.prompt_ids[-1:], False) + target.tokenizer.decode(tokens[:1], False)
    (got,) = decode(target, ArSft(), [Request(request.prompt_ids, 12, stop=(ending,))]).values()
    assert ending not in target.tokenizer.decode(tokens, False)
    assert got.token_ids == tokens


@pytest.mark.parametrize("cache", CACHES)
def test_length_cap_and_context_end_inside_a_run(target: Target, cache: str) -> None:
    (request,) = requests(lengths=(9,), cap=40)
    full = sum(mars(target.model, request.prompt_ids, 40, 4, 0.6), [])
    for cap in range(1, 20):
        capped = Request(request.prompt_ids, max_new_tokens=cap)
        (got,) = decode(target, Mars(tau=0.6), [capped], cache=cache, cache_block=1000).values()
        assert (got.token_ids, got.stats.finish_reason) == (full[:cap], "length")
        short = Target(target.model, context_length=9 + cap)
        (got,) = decode(short, Mars(tau=0.6), [request], cache=cache, cache_block=1000).values()
        assert (got.token_ids, got.stats.finish_reason) == (full[:cap], "context")


def test_block_cache_spends_a_forward_per_block_and_waits(target: Target) -> None:
    target = Target(target.model, eos_token_ids=())
    asked = requests(cap=24)
    got = decode(target, ArSft(), asked, batch_size=7, cache="block", cache_block=8)
    for completion in got.values():
        # two boundaries lie inside 24 tokens; the third is the end, and a stopped row stores nothing
        assert completion.stats.target_forwards == 24 + 2
        assert completion.stats.acceptance_lengths.count(0) == 2
    cursor = decode(target, ArSft(), asked, batch_size=7)
    assert tokens_of(got) == tokens_of(cursor)
    assert got[0].stats.positions > cursor[0].stats.positions


def test_accept_limit_lets_a_forward_fill_the_cache_block(target: Target) -> None:
    (request,) = requests(lengths=(9,), cap=24)
    sure = Mars(tau=0.0)  # accepts everything it sees
    by_block = decode(target, sure, [request], cache="block", cache_block=12)
    assert [len(s.token_ids) for s in by_block[0].trace] == [4] * 6
    by_cache = decode(target, sure, [request], cache="block", cache_block=12, accept_limit="cache_block")
    assert [len(s.token_ids) for s in by_cache[0].trace] == [12, 12]
    assert by_cache[0].token_ids[:12] == sum(mars(target.model, request.prompt_ids, 12, 12, 0.0), [])


@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_a_prompt_read_in_pieces_is_one_forward(target: Target, chunk: int) -> None:
    asked = requests()
    whole = decode(target, Mars(tau=0.6), asked, batch_size=3)
    pieces = decode(target, Mars(tau=0.6), asked, batch_size=3, prefill_chunk=chunk)
    for key, completion in whole.items():
        assert pieces[key].token_ids == completion.token_ids
        for count in ("target_forwards", "positions", "acceptance_lengths"):
            assert getattr(pieces[key].stats, count) == getattr(completion.stats, count)


@pytest.mark.parametrize("cache", CACHES)
def test_counts_follow_from_the_trace_and_not_from_the_batch(target: Target, cache: str) -> None:
    asked = requests(cap=40)
    singles = decode(target, Mars(tau=0.6), asked, cache=cache, cache_block=8)
    for batch_size in (2, 7):
        batched = decode(target, Mars(tau=0.6), asked, batch_size=batch_size, cache=cache, cache_block=8)
        for key, one in singles.items():
            many = batched[key]
            for count in ("new_tokens", "target_forwards", "positions", "drafted", "accepted", "acceptance_lengths"):
                assert getattr(many.stats, count) == getattr(one.stats, count), count
            assert [t for step in many.trace for t in step.token_ids] == many.token_ids
            assert all(len(s.token_ids) == len(s.confidences) for s in many.trace)
            stores = many.stats.acceptance_lengths.count(0)
            assert many.stats.target_forwards == len(many.trace) + stores
            assert many.stats.new_tokens == len(many.token_ids)


def test_greedy_ar_feeds_one_position_per_token(target: Target) -> None:
    for completion in decode(target, ArSft(), requests(), batch_size=3).values():
        assert completion.stats.positions_per_token == 1.0
        assert completion.stats.tokens_per_forward == 1.0


def test_shared_seconds_add_up_to_the_run(target: Target) -> None:
    got = decode(target, ArSft(), requests(), batch_size=7)
    waited = max(c.stats.prefill_seconds + c.stats.decode_seconds for c in got.values())
    shared = sum(c.stats.share_seconds for c in got.values())
    assert shared == pytest.approx(waited, rel=0.05)


@dataclass
class TrueTree(Method):
    """A tree of drafts that mixes the true continuation with errors; greedy verification, so lossless by contract.

    Node 0 and 1 are first tokens, the rest hang below; ``right`` steers how much of the true path the tree holds.
    """

    name: ClassVar[str] = "true_tree"
    checkpoint_kind: ClassVar[str] = "ar_sft"
    lossless: ClassVar[bool] = True

    right: int = 2
    damage: str = ""

    # parent of each node; -1 is the last pending token
    PARENTS: ClassVar[tuple[int, ...]] = (-1, -1, 0, 1, 1, 3, 4)
    DEPTHS: ClassVar[tuple[int, ...]] = (0, 0, 1, 1, 1, 2, 2)
    TRUE: ClassVar[tuple[int, ...]] = (1, 4, 6)  # nodes that carry the truth, by depth

    @property
    def window(self) -> int:
        return len(self.PARENTS)

    def ancestors(self) -> torch.Tensor:
        sees = torch.eye(self.window, dtype=torch.bool)
        for node, parent in enumerate(self.PARENTS):
            if parent >= 0:
                sees[node] |= sees[parent]
        if self.damage == "sees_sibling":
            sees[4, 3] = True
        return sees

    def propose(self, rows: list[Row]) -> Window:
        drafts = torch.zeros(len(rows), self.window, dtype=torch.long)
        for i, row in enumerate(rows):
            truth = greedy(self.context.target.model, row.tokens, 3, eos=())
            drafts[i] = torch.tensor([(truth[d] + 7 * (n + 1)) % 60 for n, d in enumerate(self.DEPTHS)])
            hold = len(row.trace) % 4 if self.right < 0 else self.right  # how many true nodes this time
            for depth in range(hold):
                drafts[i, self.TRUE[depth]] = truth[depth]
        depths = torch.tensor(self.DEPTHS)
        if self.damage == "depth":
            depths = depths + 1
        return Window.build(rows, drafts, depth=depths, visible=self.ancestors())

    def accept(self, rows: list[Row], output: Output) -> Commit:
        best = output.logits.argmax(-1)  # [rows, 1 + nodes]
        ids = torch.zeros(len(rows), 4, dtype=torch.long)
        path = torch.zeros(len(rows), 3, dtype=torch.long)
        kept = torch.zeros(len(rows), dtype=torch.long)
        for i in range(len(rows)):
            node = -1
            for depth in range(4):
                ids[i, depth] = best[i, node + 1]
                drafts = output.window.ids[i, int(output.window.pending[i]) :]
                below = [n for n, p in enumerate(self.PARENTS) if p == node and drafts[n] == ids[i, depth]]
                if not below or depth == 3:
                    kept[i] = depth
                    break
                node = path[i, depth] = below[0]
        if self.damage == "other_token":
            ids[kept > 0, 0] += 1
        if self.damage == "skips":
            path = path.roll(1, 1)
        return Commit(ids, kept + 1, kept, path)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_tree_method_is_lossless_through_the_contract(target: Target, cache: str, batch_size: int) -> None:
    """Kept paths are gathered, trimmed at caps and boundaries, and rows stay exact; runs of every length occur."""
    asked = requests(cap=21)
    got = decode(target, TrueTree(right=-1), asked, batch_size=batch_size, cache=cache, cache_block=11)
    assert tokens_of(got) == {r.key: greedy(target.model, r.prompt_ids, 21) for r in asked}
    assert {len(s.token_ids) for c in got.values() for s in c.trace} == {1, 2, 3, 4}


@pytest.mark.parametrize("damage", ["sees_sibling", "depth", "other_token", "skips"])
def test_a_kept_position_that_breaks_the_contract_is_refused(target: Target, damage: str) -> None:
    with pytest.raises(RuntimeError, match="kept position"):
        decode(target, TrueTree(right=3, damage=damage), requests(cap=21), batch_size=3)


def test_kept_keys_and_values_equal_a_fresh_forward(target: Target) -> None:
    """Stop the loop in mid-flight and compare every live row's cache with a plain forward over its tokens."""
    engine = Engine(target, TrueTree(right=-1), batch_size=3)
    compared = 0
    apply = engine._apply

    def checked(rows: list[Row], *args: Any) -> None:
        nonlocal compared
        apply(rows, *args)
        for row in rows:
            with torch.no_grad():
                output = target.model(input_ids=torch.tensor([row.tokens[: row.cached]]), use_cache=True)
            fresh = output.cache if hasattr(output, "cache") else output.past_key_values  # the name moved
            for layer, kept in zip(fresh.layers, engine.cache.layers, strict=True):
                for name in ("keys", "values"):
                    mine = getattr(kept, name)[row.slot, :, : row.cached]
                    assert torch.allclose(mine, getattr(layer, name)[0], atol=1e-6)
                    compared += 1

    engine._apply = checked  # type: ignore[method-assign]
    list(engine.run(requests(cap=12)))
    assert compared > 100


@dataclass
class InnerSteps(Method):
    """Commits nothing on every other forward: an inner step must count a forward and change nothing else."""

    name: ClassVar[str] = "inner"
    checkpoint_kind: ClassVar[str] = "ar_sft"

    def propose(self, rows: list[Row]) -> Window:
        return Window.build(rows, torch.full((len(rows), 2), MASK))

    def accept(self, rows: list[Row], output: Output) -> Commit:
        for row in rows:
            row.state = not row.state
        commits = torch.tensor([bool(row.state) for row in rows]).long()
        if not hasattr(self, "last"):
            self.last: dict[int, int] = {}
        for i, row in enumerate(rows):
            if row.state:
                self.last[id(row)] = int(output.logits[i, 0].argmax())
        ids = torch.tensor([[self.last[id(row)]] for row in rows])
        return Commit(ids, 1 - commits)

    @property
    def window(self) -> int:
        return 2


def test_inner_steps_that_commit_nothing_are_counted(target: Target) -> None:
    asked = requests(lengths=(9, 4), cap=10)
    got = decode(target, InnerSteps(), asked, batch_size=2)
    for request in asked:
        completion = got[request.key]
        assert completion.token_ids == greedy(target.model, request.prompt_ids, 10)
        assert completion.stats.target_forwards == 20
        assert completion.stats.acceptance_lengths == [0, 1] * 10


def test_block_causal_text_sees_its_whole_block() -> None:
    row = Row(Request([1, 2, 3]), [1, 2, 3, 4, 5, 6, 7, 8], 0, torch.Generator(), 9, cached=1)
    for start, offset in (("prompt", 3), ("sequence", 0)):
        window = Window.build([row], text_block=2, text_block_start=start)
        for q in range(7):
            for k in range(7):
                assert bool(window.visible[0, q, k]) == ((1 + k - offset) // 2 <= (1 + q - offset) // 2)


def test_window_shapes_of_ragged_rows() -> None:
    rows = [Row(Request([1] * n), list(range(1, n + 1)), i, torch.Generator(), 9) for i, n in enumerate((2, 5))]
    window = Window.build(rows, torch.tensor([[50, 51, 52], [60, 61, 62]]), [3, 1])
    assert window.ids.tolist() == [[1, 2, 50, 51, 52, 0], [1, 2, 3, 4, 5, 60]]
    assert window.depth.tolist() == [[0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 5]]
    assert window.valid.sum(1).tolist() == [5, 6]
    assert window.logits_at.tolist() == [[1, 2, 3, 4], [4, 5, 5, 5]]
    assert window.visible[0, 5].tolist() == [False] * 5 + [True]  # padding sees itself alone


def test_unused_slots_cannot_leak(target: Target) -> None:
    """Fill every cache position beyond the rows with a huge value: nothing may change."""
    asked = requests(cap=12)
    engine = Engine(target, Mars(tau=0.6), batch_size=3)
    forward = engine._forward

    def poisoned(rows: list[Row], window: Window) -> Output:
        for buffer in engine.cache._buffers():
            for row in rows:
                buffer[row.slot, :, row.cached :] = 1e30
        return forward(rows, window)

    engine._forward = poisoned  # type: ignore[method-assign]
    assert tokens_of({c.key: c for c in engine.run(asked)}) == tokens_of(decode(target, Mars(tau=0.6), asked))


def test_eager_attention_is_refused(target: Target) -> None:
    model = micro_model()
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="sdpa"):
        decode(Target(model), ArSft(), requests())


@pytest.mark.parametrize(
    ("bad", "key"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"cache": "curser"}, "cache"),
        ({"cache": "block", "cache_block": 0}, "cache_block"),
        ({"accept_limit": "all"}, "accept_limit"),
        ({"prefill_chunk": 0}, "prefill_chunk"),
    ],
)
def test_bad_settings_name_the_key(target: Target, bad: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}="):
        Engine(target, ArSft(), **bad)


def test_prompts_that_cannot_be_answered_are_refused_before_decoding(target: Target) -> None:
    for prompt in ([], [1] * 256, [1] * 300):
        with pytest.raises(UserError, match="^prompt="):
            next(Engine(target, ArSft()).run([Request([1, 2, 3]), Request(prompt)]))
    (got,) = decode(target, ArSft(), [Request([1] * 255)]).values()
    assert got.stats.finish_reason == "context"


def test_no_requests_no_completions(target: Target) -> None:
    assert list(Engine(target, ArSft()).run([])) == []


def test_rows_draw_from_their_own_generator(target: Target) -> None:
    """A document's random numbers follow its seed, whatever batch it lands in."""
    drawn: dict[int, float] = {}

    class Draws(ArSft):
        def admit(self, row: Row) -> None:
            drawn[row.request.seed] = float(torch.rand((), generator=row.generator))

    asked = [Request([1, 2, 3], 2, seed=s) for s in range(5)]
    list(Engine(target, Draws(), batch_size=5).run(asked))
    first = dict(drawn)
    drawn.clear()
    list(Engine(target, Draws(), batch_size=2).run(asked[::-1]))
    assert drawn == first
    assert len(set(first.values())) == 5


def test_logits_oracle_is_causal(target: Target) -> None:
    ids = [1, 2, 3, 4, EOS]
    assert torch.allclose(logits_of(target.model, ids)[:3], logits_of(target.model, ids[:3]), atol=1e-6)
