"""Block diffusion: layout, mask, loss and decoding against brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles import MASK, micro_model
from torch import Tensor

from harness.errors import UserError
from methods.block_diffusion import BlockDiffusionObjective
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
    assert float(loss) == pytest.approx(plain_loss(model, batch, examples(), made), abs=1e-5)
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
    batch = made.collate([Example([1] * 40, [False] * 4 + [True] * 36)] * 2000)
    t, masked = batch["t"][:, 36:].double(), batch["masked"][:, 36:].double()
    assert t.shape[1] == 36
    assert float(t.min()) >= 0.3
    assert float(t.max()) <= 0.8
    assert float(t.mean()) == pytest.approx(0.55, abs=0.01)
    blocks = t.unflatten(1, (-1, 4))
    assert bool((blocks == blocks[..., :1]).all())
    assert len(blocks[..., 0].unique()) > 17_900
    assert float((masked / t).mean()) == pytest.approx(1.0, abs=0.02)
    low = t < 0.4
    assert float(masked[low].mean()) == pytest.approx(0.35, abs=0.02)


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
    assert float(loss) == 0


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
