"""EAGLE: the drafter and its losses, its cached drafts and its tree against plain readings, and greedy AR's answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles import micro_model
from torch import Tensor

from harness.errors import UserError
from methods.contract import Example
from methods.eagle import Drafter, EagleObjective

KINDS = ["qwen2", "llama"]
RESPONSES = [
    [False] * 6 + [True] * 11,
    [False] * 3 + [True] * 7,
    [False] * 2 + [True] * 5 + [False] * 4 + [True] * 6 + [False],  # two assistant turns
    [False] * 4 + [True],  # a single token, which the base itself says
]


def examples() -> list[Example]:
    generator = torch.Generator().manual_seed(3)
    return [Example(torch.randint(0, 60, (len(r),), generator=generator).tolist(), r) for r in RESPONSES]


def drafter(model: Any, seed: int = 1, spread: float = 0.2) -> Drafter:
    """A random one in fp64; biases are not zero, or a forgotten one would not show."""
    torch.manual_seed(seed)
    made = Drafter(model).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, spread)
            else:
                parameter.add_(spread * torch.randn_like(parameter))
    return made


def objective(model: Any, **options: Any) -> EagleObjective:
    made = EagleObjective(**options)
    made.bind(None, 0)
    made.own = drafter(model)
    return made


# ---- drafter


def rotate(x: Tensor, position: int, base: float) -> Tensor:
    """Rotary position embedding of one head's vector."""
    half = len(x) // 2
    angle = position / base ** (torch.arange(half, dtype=torch.float64) / half)
    one, two = x[:half], x[half:]
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()])


def by_hand(model: Any, own: Drafter, tokens: list[int], features: Tensor) -> Tensor:
    """The drafter's predictions for pairs at positions 0, 1, …, written out: float64 [pairs, hidden]."""
    weights = own.state_dict()

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(()))

    config, layer = model.config, "stack.layers.0"
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    embedded = model.get_input_embeddings().weight[tokens].detach()
    x = linear("fc", torch.cat([embedded, features], 1))
    q, k, v = (linear(f"{layer}.self_attn.{p}_proj", x) for p in "qkv")
    size = q.shape[1] // heads
    mixed = torch.zeros(len(tokens), heads * size, dtype=torch.float64)
    theta = config.rope_parameters["rope_theta"]
    for t in range(len(tokens)):
        for head in range(heads):
            query = rotate(q[t, head * size : (head + 1) * size], t, theta)
            own_group = slice(head // (heads // groups) * size, (head // (heads // groups) + 1) * size)
            scores = torch.stack([query @ rotate(k[s, own_group], s, theta) for s in range(t + 1)]) / size**0.5
            mixed[t, head * size : (head + 1) * size] = torch.softmax(scores, 0) @ v[: t + 1, own_group]
    x = x + linear(f"{layer}.self_attn.o_proj", mixed)
    scale = (x.square().mean(1, keepdim=True) + config.rms_norm_eps).rsqrt()
    y = x * scale * weights[f"{layer}.post_attention_layernorm.weight"]
    gate = linear(f"{layer}.mlp.gate_proj", y)
    return x + linear(f"{layer}.mlp.down_proj", gate * gate.sigmoid() * linear(f"{layer}.mlp.up_proj", y))


@pytest.mark.parametrize("kind", KINDS)
def test_the_drafter_is_one_layer_of_the_bases_architecture(kind: str) -> None:
    """Written out by hand: attention biases where the base has them, no norm before the layer, none after it."""
    model = micro_model(kind)
    own = drafter(model)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(7, 32, generator=generator, dtype=torch.float64)
    tokens = [3, 9, 27, 1, 5, 5, 60]
    with torch.no_grad():
        got = own(model.get_input_embeddings()(torch.tensor([tokens])), features[None], use_cache=False)[0]
    assert torch.allclose(got, by_hand(model, own, tokens, features), atol=1e-6)
    assert any("q_proj.bias" in name for name in own.state_dict()) == (kind == "qwen2")
    sizes = {p.shape[0] for p in own.state_dict().values()}
    assert model.config.vocab_size not in sizes, "embedding and LM head are the base's"


# ---- objective


def plain_loss(model: Any, made: EagleObjective, asked: list[Example]) -> tuple[float, float, int]:
    """One sequence and one pair at a time."""
    regression, soft, count = 0.0, 0.0, 0
    for example in asked:
        with torch.no_grad():
            states = model.model(input_ids=torch.tensor([example.ids])).last_hidden_state[0]
            predicted = by_hand(model, made.own, example.ids[1:], states[:-1])
            for t in range(len(example.ids) - 2):
                if not (example.response[t + 1] and example.response[t + 2]):
                    continue
                error = (predicted[t] - states[t + 1]).abs()
                regression += float(torch.where(error < 1, error**2 / 2, error - 0.5).mean())
                p = torch.softmax(model.lm_head(states[t + 1]), -1)
                soft -= float((p * torch.log_softmax(model.lm_head(predicted[t]), -1)).sum())
                count += 1
    return regression / count, soft / count, count


@pytest.mark.parametrize("kind", KINDS)
def test_loss_is_that_of_separate_pairs(kind: str) -> None:
    model = micro_model(kind)
    made = objective(model, regression_weight=0.7, soft_weight=0.3)
    batch = made.collate(examples())
    loss, parts = made.loss(model, batch)
    regression, soft, count = plain_loss(model, made, examples())
    assert int(batch["drafts"].sum()) == count == 10 + 6 + 4 + 5
    assert float(parts["regression"]) == pytest.approx(regression, abs=1e-5)
    assert float(parts["soft"]) == pytest.approx(soft, abs=1e-5)
    assert float(loss.detach()) == pytest.approx(0.7 * regression + 0.3 * soft, abs=1e-5)


def test_noise_is_uniform_on_the_states_read_and_only_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model = micro_model()
    made = objective(model, noise=0.25)
    own, read = made.own, []
    assert own is not None
    forward = own.forward

    def watched(embeddings: Tensor, features: Tensor, **inputs: Any) -> Tensor:
        read.append(features)
        return forward(embeddings, features, **inputs)

    monkeypatch.setattr(own, "forward", watched)
    batch = made.collate(examples())
    with torch.no_grad():
        states = model.model(input_ids=batch["ids"]).last_hidden_state
    for training in (False, True):
        own.train(training)
        made.loss(model, batch)
    assert torch.equal(read[0], states[:, :-1])
    noise = read[1] - states[:, :-1]
    assert 0.24 < float(noise.max()) <= 0.25
    assert -0.25 <= float(noise.min()) < -0.24
    assert abs(float(noise.mean())) < 0.01
    assert float(noise.std()) == pytest.approx(0.25 / 3**0.5, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_drafter_learns(kind: str) -> None:
    """A few steps lower the loss and move every weight of the drafter and none of the base."""
    model = micro_model(kind)
    made = objective(model)
    made.own = made.attach(model)
    assert all(p.dtype == torch.float32 for p in made.own.parameters())
    made.own.double().train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    start = {name: p.detach().clone() for name, p in made.own.named_parameters()}
    optimizer = torch.optim.AdamW(made.own.parameters(), lr=1e-2, weight_decay=0.0)
    batch, losses = made.collate(examples()), []
    model.requires_grad_(False)
    for _ in range(30):
        loss, _ = made.loss(model, batch)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    for name, parameter in made.own.named_parameters():
        # A bias of keys adds the same to all scores of a query, which the softmax takes away.
        assert "k_proj.bias" in name or not torch.equal(parameter, start[name]), f"{name} did not move"


@pytest.mark.parametrize("key", ["noise", "regression_weight", "soft_weight"])
@pytest.mark.parametrize("value", [-0.1, float("inf"), "much", True])
def test_bad_objective_options_name_the_key(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^{key}="):
        EagleObjective(**{key: value})
