"""What methods to come need of the engine, shown by throwaway ones: block-causal text, and a drafter's own cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from oracles import MASK, Target, greedy, micro_model

from harness.engine.cache import CursorCache
from harness.engine.commit import Commit
from harness.engine.contract import Context
from harness.engine.forward import run_window
from harness.engine.loop import Engine
from harness.engine.rows import Completion, Request, Row
from harness.engine.window import Output, Window
from harness.errors import UserError
from methods.contract import Method

BLOCK = 4
CACHES = ("cursor", "block", "none")


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(micro_model(), eos_token_ids=())


def requests(cap: int = 24) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    return [
        Request(torch.randint(0, 60, (n,), generator=generator).tolist(), cap - i, key=n)
        for i, n in enumerate((3, 10, 17, 4, 5))
    ]


def decode(target: Target, method: Method, **kw: Any) -> dict[Any, Completion]:
    return {c.key: c for c in Engine(target, method, **kw).run(requests())}


@dataclass
class BlockFill(Method):
    """Fills a block of masks in one forward, bidirectionally; committed text sees itself in whole blocks."""

    name: ClassVar[str] = "block_fill"
    checkpoint_kind: ClassVar[str] = "ar_sft"
    text_block: ClassVar[int | None] = BLOCK

    @property
    def window(self) -> int:
        return BLOCK

    def propose(self, rows: list[Row]) -> Window:
        together = torch.ones(BLOCK, BLOCK, dtype=torch.bool)
        masks = torch.full((len(rows), BLOCK), MASK)
        return Window.build(rows, masks, visible=together, logits=torch.arange(1, BLOCK + 1), text_block=BLOCK)

    def accept(self, rows: list[Row], output: Output) -> Commit:
        ids = output.logits.argmax(-1)
        return Commit(ids, torch.full((len(rows),), BLOCK))


def filled_blocks(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """The same by full recomputation under one block-causal mask."""
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        ids = prompt + tokens + [MASK] * BLOCK
        block = (torch.arange(len(ids)) - len(prompt)) // BLOCK
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([ids]),
                attention_mask=(block[None, :] <= block[:, None])[None, None],
                position_ids=torch.arange(len(ids))[None],
            ).logits
        tokens += logits[0, -BLOCK:].argmax(-1).tolist()
    return tokens[:num_tokens]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("chunk", [None, 4, 5, 8])
def test_block_causal_text(target: Target, cache: str, batch_size: int, chunk: int | None) -> None:
    """Prompt pieces and cache blocks end where text blocks end, or tokens are stored that saw too little."""
    got = decode(target, BlockFill(), cache=cache, cache_block=8, batch_size=batch_size, prefill_chunk=chunk)
    for request in requests():
        expected = filled_blocks(target.model, request.prompt_ids, request.max_new_tokens)
        assert got[request.key].token_ids == expected


def test_a_cache_block_that_cuts_a_text_block_is_refused(target: Target) -> None:
    with pytest.raises(UserError, match="^cache_block=6: whole blocks"):
        Engine(target, BlockFill(), cache="block", cache_block=6)


@dataclass
class SelfDraft(Method):
    """Drafts with the target itself in a cache of its own, so that every draft must be confirmed."""

    name: ClassVar[str] = "self_draft"
    checkpoint_kind: ClassVar[str] = "ar_sft"
    lossless: ClassVar[bool] = True

    @property
    def window(self) -> int:
        return 1

    @property
    def caches(self) -> Sequence[CursorCache]:
        return (self.cache,)

    def start(self, context: Context) -> None:
        super().start(context)
        self.model = context.target.model
        layers = self.model.config.num_hidden_layers
        self.cache = CursorCache(layers, context.num_slots, 2 * context.max_length)

    def admit(self, row: Row) -> None:
        row.state = 0  # length in the drafter's cache

    def propose(self, rows: list[Row]) -> Window:
        shadows = [dataclasses.replace(row, cached=row.state) for row in rows]
        slots, cached = [row.slot for row in rows], [row.state for row in rows]
        draft = run_window(self.model, self.cache, Window.build(shadows), slots, cached).logits.argmax(-1)
        for row in rows:
            row.state = len(row.tokens)
        return Window.build(rows, draft, [min(1, row.room - 1) for row in rows])

    def accept(self, rows: list[Row], output: Output) -> Commit:
        best = output.logits.argmax(-1)
        if best.shape[1] == 1:
            return Commit.one(best)
        window = output.window
        drafts = window.ids.gather(1, window.pending[:, None].clamp(max=window.width - 1))[:, 0]
        kept = ((drafts == best[:, 0]) & (window.count > 0)).long()
        return Commit(best, kept + 1, kept=kept, drafted=window.count, accepted=kept, draft_forwards=kept * 0 + 1)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_drafters_cache_follows_its_row(target: Target, cache: str, batch_size: int) -> None:
    """Rows change slots when others finish; a drafter that lost its keys and values there would draft wrongly."""
    got = decode(target, SelfDraft(), cache=cache, cache_block=8, batch_size=batch_size)
    for request in requests():
        completion = got[request.key]
        assert completion.token_ids == greedy(target.model, request.prompt_ids, request.max_new_tokens, eos=())
        assert completion.stats.accepted == completion.stats.drafted > 0
        deciding = [n for n in completion.stats.acceptance_lengths if n]
        assert completion.stats.draft_forwards >= len(deciding) - 1


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_hidden_states_of_layers_are_handed_out(target: Target, layer: int) -> None:
    """Layer 0 is the embedding's output; the last is the final-norm state that the head reads."""
    row = Row(Request([5, 6, 7]), [5, 6, 7], 0, torch.Generator(), 9)
    window = Window.build([row], hidden_layers=(layer,))
    output = run_window(target.model, CursorCache(2, 1, 8), window, [0], [0])
    with torch.no_grad():
        plain = target.model(input_ids=torch.tensor([[5, 6, 7]]), output_hidden_states=True)
    assert torch.allclose(output.layers[layer], plain.hidden_states[layer], atol=1e-6)
    assert torch.allclose(output.hidden, plain.hidden_states[-1], atol=1e-6)


@dataclass
class Hesitates(Method):
    """Commits nothing in its first two forwards of a row, as a denoising method does, then one token each."""

    name: ClassVar[str] = "hesitates"
    checkpoint_kind: ClassVar[str] = "ar_sft"

    def propose(self, rows: list[Row]) -> Window:
        return Window.build(rows, logits=torch.zeros(1, dtype=torch.long))

    def accept(self, rows: list[Row], output: Output) -> Commit:
        return Commit(output.logits.argmax(-1), torch.tensor([int(row.stats.target_forwards >= 2) for row in rows]))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_prompt_is_read_in_pieces_once(target: Target, batch_size: int) -> None:
    """A row that has committed nothing yet is not reading its prompt any more, and its forwards count."""
    whole = decode(target, Hesitates(), cache="none", batch_size=batch_size)
    pieces = decode(target, Hesitates(), cache="none", batch_size=batch_size, prefill_chunk=4)
    for key, completion in whole.items():
        assert pieces[key].token_ids == completion.token_ids
        assert pieces[key].stats.positions == completion.stats.positions
        assert pieces[key].stats.acceptance_lengths == completion.stats.acceptance_lengths
