"""MARS: layouts, masks, losses and acceptance against brute force."""

from __future__ import annotations

import math

import pytest
import torch
from oracles import MASK, Target, logits_of, micro_model

from harness.engine.forward import run_window
from harness.errors import UserError
from methods.accept import accepted_length, confidence
from methods.ar_sft import ArSftObjective
from methods.contract import Example
from methods.mars import Mars, MarsObjective
from methods.masks import MASK as MASK_KIND
from methods.masks import masked_stream, segments

PROMPT, RESPONSE = 6, 11
RESPONSES = [
    [False] * PROMPT + [True] * RESPONSE,
    [False] * 3 + [True] * 7,
    [False] * 2 + [True] * 5 + [False] * 4 + [True] * 6 + [False],  # two assistant turns
    [False] * 4 + [True],
]


def masks_before_target(response: list[bool], block_size: int, alignment: str) -> dict[int, int]:
    """m of each target position, by counting what its prediction really sees."""
    stream = masked_stream(response, block_size, alignment)
    table = {int(p): 0 for p in stream.first}
    for position, start in zip(stream.position.tolist(), stream.block_start.tolist(), strict=True):
        own = (stream.block_start == start) & (stream.position <= position)
        table[position + 1] = int(own.sum())
    return dict(sorted(table.items()))


def test_mask_count_table() -> None:
    """m = [MASK]s between the last clean token seen and the target, for the response positions 6 … 16 and B = 4."""
    paper = masks_before_target(RESPONSES[0], 4, "paper")
    released = masks_before_target(RESPONSES[0], 4, "released")
    print("position", *paper, "\npaper   ", *paper.values(), "\nreleased", *released.values())
    assert list(paper) == list(released) == list(range(6, 17))
    assert list(paper.values()) == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    # Blocks 4-7, 8-11, 12-15, 16: the first straddles the prompt, so its masks are 6 and 7.
    assert list(released.values()) == [0, 1, 2, 1, 2, 3, 4, 1, 2, 3, 4]


@pytest.mark.parametrize("alignment", ["paper", "released"])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 8, 16])
def test_every_response_token_is_a_target_once(alignment: str, block_size: int) -> None:
    for response in RESPONSES:
        table = masks_before_target(response, block_size, alignment)
        assert list(table) == [t for t, r in enumerate(response) if r]
        most = block_size - 1 if alignment == "paper" else block_size
        assert max(table.values()) <= most
        stream = masked_stream(response, block_size, alignment)
        assert len(stream.position) + len(stream.first) == sum(response)


def test_segments_are_the_assistant_turns() -> None:
    assert segments(RESPONSES[2]) == [(2, 7), (11, 17)]
    assert segments([True, True]) == [(0, 2)]
    assert segments([False]) == []


def visible_by_the_text(
    response: list[bool], block_size: int, alignment: str
) -> tuple[list[tuple[str, int]], list[list[bool]]]:
    """Eq. 2 read aloud: who sees whom, one pair at a time, blocks found by walking along the response."""
    block_of: dict[int, tuple[int, int]] = {}  # response position -> its block, named by the first masked position
    for start, end in segments(response):
        for p in range(start, end):
            index = (p - start) // block_size if alignment == "paper" else p // block_size
            block_of[p] = (index, start)
    first_of = {b: min(p for p in block_of if block_of[p] == b) for b in block_of.values()}
    stream = masked_stream(response, block_size, alignment)
    things = [("clean", t) for t in range(len(response))] + [("mask", int(p)) for p in stream.position]
    table = []
    for q_kind, q in things:
        line = []
        for k_kind, k in things:
            if q_kind == "clean":
                line.append(k_kind == "clean" and k <= q)
            elif k_kind == "clean":
                line.append(k < first_of[block_of[q]])
            else:
                line.append(block_of[k] == block_of[q] and k <= q)
        table.append(line)
    return things, table


@pytest.mark.parametrize("alignment", ["paper", "released"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 5])
def test_training_mask_is_equation_2(alignment: str, block_size: int) -> None:
    objective = MarsObjective(block_size=block_size, alignment=alignment)
    objective.bind(MASK, 0)
    batch = objective.collate([Example(list(range(len(r))), r) for r in RESPONSES])
    for i, response in enumerate(RESPONSES):
        things, table = visible_by_the_text(response, block_size, alignment)
        n = len(things)
        assert batch["attention"][i, 0, :n, :n].tolist() == table
        assert batch["position_ids"][i, :n].tolist() == [t for _, t in things]
        assert batch["masked"][i, :n].tolist() == [kind == "mask" for kind, _ in things]
        outside = batch["attention"][i, 0, :n, n:]
        assert not outside.any(), "padding must not be seen"
        assert batch["attention"][i, 0].any(-1).all(), "a query that sees nothing becomes NaN"


def inference_loss(model: object, example: Example, block_size: int, alignment: str) -> tuple[float, float]:
    """Both losses by really running inference-shaped forwards: for each block, the clean text before it and masks."""
    masked, clean = [], []
    for start, end in segments(example.response):
        for t in range(start, end):
            clean.append(-torch.log_softmax(logits_of(model, example.ids[:t])[-1].double(), -1)[example.ids[t]])
        if alignment == "paper":
            begins = list(range(start, end, block_size))
        else:
            begins = [start, *range((start // block_size + 1) * block_size, end, block_size)]
        for begin, nxt in zip(begins, [*begins[1:], end], strict=True):
            logits = logits_of(model, example.ids[:begin] + [MASK] * (nxt - begin))
            targets = range(begin, nxt) if alignment == "paper" else range(begin + 1, min(nxt + 1, end))
            if alignment == "released" and begin == start:
                targets = range(begin, min(nxt + 1, end))
            for t in targets:
                masked.append(-torch.log_softmax(logits[t - 1].double(), -1)[example.ids[t]])
    return float(torch.stack(masked).mean()), float(torch.stack(clean).mean())


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("alignment", ["paper", "released"])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_two_stream_loss_is_the_loss_of_inference(kind: str, alignment: str, block_size: int) -> None:
    model = micro_model(kind)
    generator = torch.Generator().manual_seed(3)
    examples = [Example(torch.randint(0, 60, (len(r),), generator=generator).tolist(), r) for r in RESPONSES]
    for example in examples:
        objective = MarsObjective(block_size=block_size, alignment=alignment, ar_weight=0.5)
        objective.bind(MASK, 0)
        total, parts = objective.loss(model, objective.collate([example]))
        masked, clean = inference_loss(model, example, block_size, alignment)
        assert float(parts["masked"]) == pytest.approx(masked, abs=1e-5)
        assert float(parts["clean"]) == pytest.approx(clean, abs=1e-5)
        assert float(total.detach()) == pytest.approx(masked + 0.5 * clean, abs=1e-5)
    # A padded batch is the token-weighted mean of its examples.
    total, parts = objective.loss(model, objective.collate(examples))
    alone = [objective.loss(model, objective.collate([e]))[1] for e in examples]
    tokens = [sum(e.response) for e in examples]
    for part in ("masked", "clean"):
        mean = sum(float(p[part]) * n for p, n in zip(alone, tokens, strict=True)) / sum(tokens)
        assert float(parts[part]) == pytest.approx(mean, abs=1e-5)


def test_training_and_the_engine_agree_on_what_masks_see() -> None:
    """The engine's own window over the true text gives the logits that the training layout gives."""
    from harness.engine.cache import CursorCache
    from harness.engine.rows import Request, Row

    model, block_size = micro_model(), 4
    example = Example(torch.randint(0, 60, (17,), generator=torch.Generator().manual_seed(5)).tolist(), RESPONSES[0])
    objective = MarsObjective(block_size=block_size)
    objective.bind(MASK, 0)
    batch = objective.collate([example])
    with torch.no_grad():
        trained = model(
            input_ids=batch["ids"], position_ids=batch["position_ids"], attention_mask=batch["attention"]
        ).logits[0]
    method = Mars(block_size=block_size)
    from harness.engine.contract import Context

    method.start(Context(Target(model), 1, 64))
    cache = CursorCache(model.config.num_hidden_layers, 1, 64)
    row = Row(Request(example.ids[:PROMPT]), example.ids[:PROMPT], 0, torch.Generator(), 99)
    stream = masked_stream(example.response, block_size, "paper")
    for begin in range(PROMPT, 17, block_size):
        row.tokens, row.room = example.ids[:begin], block_size
        output = run_window(model, cache, method.propose([row]), [0], [row.cached])
        row.cached = begin
        assert torch.allclose(output.logits[0, 0], trained[begin - 1], atol=1e-5)
        masks = [len(example.ids) + i for i, s in enumerate(stream.block_start.tolist()) if s == begin]
        assert torch.allclose(output.logits[0, 1 : 1 + len(masks)], trained[masks], atol=1e-5)


def test_without_the_sft_loss_only_block_targets_remain() -> None:
    model = micro_model()
    example = Example(list(range(17)), RESPONSES[0])
    bare, full = MarsObjective(sft_loss=False), MarsObjective()
    for objective in (bare, full):
        objective.bind(MASK, 0)
    loss, parts = bare.loss(model, bare.collate([example]))
    assert set(parts) == {"masked"}
    masked = full.loss(model, full.collate([example]))[1]["masked"]
    assert float(loss.detach()) == pytest.approx(float(masked), abs=1e-9)


def test_inverse_t_weights_a_block_with_one_draw() -> None:
    model = micro_model()
    objective = MarsObjective(sft_loss=False, loss_weight="inverse_t")
    objective.bind(MASK, 0)
    batch = objective.collate([Example(list(range(17)), RESPONSES[0])])
    at = batch["masked"] | batch["first"]
    torch.manual_seed(0)
    weight = objective._weight(batch, at)
    starts = batch["block_start"][at]
    assert all(weight[starts == s].unique().numel() == 1 for s in starts.unique())
    assert weight.unique().numel() == starts.unique().numel() == 3
    torch.manual_seed(0)
    weighted, _ = objective.loss(model, batch)
    assert torch.isfinite(weighted)
    assert weight.min() >= 1


def test_gradients_of_masks_do_not_reach_other_blocks() -> None:
    """A masked target depends on clean tokens before its block and on nothing later."""
    model = micro_model()
    objective = MarsObjective(block_size=4)
    objective.bind(MASK, 0)
    base = Example(list(range(17)), RESPONSES[0])
    changed = Example([*base.ids[:9], 50, *base.ids[10:]], base.response)  # position 9, in the block 6-9

    def logits(example: Example) -> torch.Tensor:
        batch = objective.collate([example])
        with torch.no_grad():
            out = model(input_ids=batch["ids"], position_ids=batch["position_ids"], attention_mask=batch["attention"])
        return out.logits[0][batch["masked"][0]]

    moved = (logits(base) - logits(changed)).abs().amax(-1) > 1e-9
    assert moved.tolist() == [False] * 3 + [True] * 5


def test_ar_loss_is_the_cross_entropy_of_the_response() -> None:
    model = micro_model()
    objective = ArSftObjective()
    example = Example([(7 * t) % 60 for t in range(18)], RESPONSES[2])
    shorter = Example([5, 4, 3, 2, 1], RESPONSES[3])
    loss, _ = objective.loss(model, objective.collate([example, shorter]))
    terms = [
        -torch.log_softmax(logits_of(model, e.ids[:t])[-1], -1)[e.ids[t]]
        for e in (example, shorter)
        for t, is_target in enumerate(e.response)
        if is_target
    ]
    assert float(loss.detach()) == pytest.approx(float(torch.stack(terms).mean()), abs=1e-5)


def test_confidences() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [50.0, 0.0, 0.0]])
    p = torch.softmax(logits, -1)
    ids, probability, passed = confidence(logits, "probability", 0.6)
    assert ids.tolist() == [0, 0, 0]
    assert torch.allclose(probability, p[:, 0])
    assert passed.tolist() == [True, False, True]
    _, margin, passed = confidence(logits, "margin", 0.5)
    assert torch.allclose(margin, p[:, 0] - p[:, 1])
    assert passed.tolist() == [False, False, True]
    _, entropy, passed = confidence(logits, "entropy", 1.0)
    assert float(entropy[1]) == pytest.approx(math.log(3))
    assert passed.tolist() == [True, False, True]


@pytest.mark.parametrize(("metric", "tau"), [("probability", 1.0), ("margin", 1.0), ("entropy", 0.0)])
def test_one_token_mode_never_passes_though_the_softmax_rounds_to_one(metric: str, tau: float) -> None:
    logits = torch.tensor([[40.0, 0.0]])
    _, score, passed = confidence(logits, metric, tau)
    assert float(score) == pytest.approx(0.0 if metric == "entropy" else 1.0, abs=1e-6)
    assert not passed.any()


def test_acceptance_stops_at_the_first_failure() -> None:
    passed = torch.tensor([[False, True, True, True], [True, True, False, True], [True, False, True, True]])
    assert accepted_length(passed, torch.tensor([4, 4, 4])).tolist() == [4, 2, 1]
    assert accepted_length(passed, torch.tensor([2, 1, 4])).tolist() == [2, 1, 1]
    assert accepted_length(passed[:, :1], torch.tensor([1, 1, 1])).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tau": 1.1}, "tau"),
        ({"tau": -0.1}, "tau"),
        ({"tau": "abc"}, "tau"),
        ({"tau": float("nan")}, "tau"),
        ({"tau": True}, "tau"),
        ({"tau": -1, "confidence": "entropy"}, "tau"),
        ({"tau": float("inf"), "confidence": "entropy"}, "tau"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 2.0}, "block_size"),
        ({"confidence": "top1"}, "confidence"),
    ],
)
def test_bad_options_name_the_key(options: dict[str, object], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}="):
        Mars(**options)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"block_size": 0}, "block_size"),
        ({"alignment": "peper"}, "alignment"),
        ({"ar_weight": -1}, "ar_weight"),
        ({"loss_weight": "t"}, "loss_weight"),
    ],
)
def test_bad_objective_options_name_the_key(options: dict[str, object], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}="):
        MarsObjective(**options)


def test_entropy_tau_may_exceed_one() -> None:
    assert Mars(tau=2.5, confidence="entropy").tau == 2.5


def test_a_checkpoint_without_a_mask_is_refused() -> None:
    from harness.engine.loop import Engine
    from harness.engine.rows import Request

    with pytest.raises(UserError, match="mask token"):
        list(Engine(Target(micro_model(), mask_token_id=None), Mars()).run([Request([1, 2])]))


def test_own_options_are_checked_against_the_fields() -> None:
    shared = {"tau": 0.7, "block_size": 8, "confidence": "margin", "other": 1}
    assert Mars.from_settings(shared, {}) == Mars(0.7, 8, "margin")
    assert Mars.axes() == ("tau", "block_size", "confidence", "verify", "temperature")
    with pytest.raises(UserError, match=r"method\.verfy"):
        Mars.from_settings(shared, {"verfy": True})


def test_kinds_do_not_depend_on_token_ids() -> None:
    """A clean token that happens to carry the mask's or the padding's id is still clean."""
    objective = MarsObjective()
    objective.bind(5, 5)
    batch = objective.collate([Example([5] * 17, RESPONSES[0]), Example([5] * 5, RESPONSES[3])])
    assert batch["masked"].sum().item() == 8
    assert MASK_KIND == 1
