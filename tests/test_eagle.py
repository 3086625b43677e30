"""EAGLE: the drafter and its losses, its cached drafts and its tree against plain readings, and greedy AR's answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lossless
import micro
import pytest
import sampling
import torch
from lossless import Case, Teacher
from oracles import Target, micro_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness import decode
from harness.engine.contract import Context
from harness.engine.rows import Row
from harness.errors import UserError
from harness.models.manifest import Manifest
from harness.training import data, recipe
from harness.training.compose import compose
from methods import accept, eagle, trees
from methods.contract import OWN_WEIGHTS, Example
from methods.eagle import Drafter, Eagle, EagleObjective

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
    """A random one in fp64, of fp32 numbers as a checkpoint has; biases are not zero, or a forgotten one would hide."""
    torch.manual_seed(seed)
    made = Drafter(model).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, spread)
            else:
                parameter.add_(spread * torch.randn_like(parameter))
    return made.double()


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


def test_a_batch_without_drafts_has_a_loss() -> None:
    """Answers of one token: the base says it itself."""
    model = micro_model()
    made = objective(model)
    loss, parts = made.loss(model, made.collate([Example([1, 2, 3], [False, False, True])]))
    assert float(loss.detach()) == 0
    loss.backward()
    assert not any(parts.values())


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
    with pytest.raises(UserError, match=rf"^objective\.{key}="):
        EagleObjective(**{key: value})


# ---- decoding


def with_weights(target: Target, own: Drafter, directory: Path) -> Target:
    """The target with a drafter in its checkpoint's directory."""
    save_file(own.state_dict(), directory / OWN_WEIGHTS)
    return replace(target, checkpoint_dir=directory)


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The kit's prompts and a random drafter."""
    case = lossless.case(request.param)
    own = drafter(case.target.model)
    return replace(case, target=with_weights(case.target, own, tmp_path_factory.mktemp(request.param)))


class Taught(Eagle):
    """Drafts as ever, then takes the tokens from a teacher, so that paths of every length are accepted."""

    def __init__(self, teacher: Teacher, depth: int = 3, top_k: int = 2, num_nodes: int = 9) -> None:
        super().__init__(depth, top_k, num_nodes)
        self.teacher = teacher

    def _expand(self, rows: list[Row], levels: list[int]) -> Any:
        tree = super()._expand(rows, levels)
        for i, row in enumerate(rows):
            if levels[i]:
                known = self.teacher.candidates(row, self.depth, self.top_k)
                rank = torch.arange(tree.ids.shape[1]) % self.top_k  # among the children of one parent
                tree.ids[i] = known[tree.level[i] - 1, rank]
        return tree


def test_answers_are_greedy_ars(case: Case) -> None:
    """200 prompts in ragged batches and alone, three caches, EOS and caps inside runs, prompts in pieces."""
    lossless.check(Taught, case, runs=range(4))


@pytest.mark.parametrize("options", [(3, 1, 3), (4, 3, 5), (1, 5, 5), (2, 99, 3)])
def test_whatever_is_drafted_answers_are_greedy_ars(case: Case, options: tuple[int, int, int]) -> None:
    """Its own drafts: a chain, a tree of few nodes, a tree of one level, one wider than the vocabulary."""
    got = lossless.check(lambda teacher: Eagle(*options), case.first(8))
    assert sum(c.stats.accepted for c in got) > 0


def no_gap_seen(passed: Tensor, path: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Broken on purpose: a node passes with all before it, whatever they hold."""
    return trees.longest_path((passed[:, :, None] & path).any(1), path)


def test_a_broken_acceptance_rule_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="not what greedy AR says"):
        lossless.check(lambda teacher: lossless.broken(Taught(teacher), lossless.one_more), case.first(24))
    monkeypatch.setattr(eagle, "longest_path", no_gap_seen)
    with pytest.raises(AssertionError, match="not what greedy AR says"):
        lossless.check(Taught, case.first(24))


def test_kept_keys_and_values_equal_a_fresh_forward(case: Case) -> None:
    assert lossless.check_cache(Taught, case) > 30
    lossless.check_cache(Taught, case, cache="block", cache_block=9)


# ---- drafts against plain readings


@dataclass
class Drafted:
    """What was drafted after some committed tokens: every draft's path with its score, and the paths verified."""

    tokens: list[int]
    levels: int
    drafts: dict[tuple[int, ...], float]
    verified: list[tuple[int, ...]]


def paths(ids: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(ids, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


class Recorded(Taught):
    """Remembers every tree, and checks the states that true pairs lead to against a recomputation without cache."""

    def __init__(self, teacher: Teacher, *options: int) -> None:
        super().__init__(teacher, *options)
        self.trees: dict[Any, list[Drafted]] = {}
        self.num_checked = 0

    def _expand(self, rows: list[Row], levels: list[int]) -> Any:
        tree = Eagle._expand(self, rows, levels)
        for i, row in enumerate(rows):
            found = paths(tree.ids[i].tolist(), tree.parents[i].tolist())
            has = tree.score[i] > -torch.inf
            drafts = {p: float(s) for p, s, h in zip(found, tree.score[i], has, strict=True) if h}
            self.trees.setdefault(row.request.key, []).append(Drafted(list(row.tokens), levels[i], drafts, []))
        return tree

    def propose(self, rows: list[Row]) -> Any:
        window = super().propose(rows)
        if self.parents is not None:
            for i, row in enumerate(rows):
                n, start = int(window.count[i]), len(row.pending)
                ids = window.ids[i, start : start + n].tolist()
                self.trees[row.request.key][-1].verified = paths(ids, self.parents[i, :n].tolist())
                assert window.visible[i, start : start + n, start : start + n].sum(1).tolist() == [
                    len(p) for p in self.trees[row.request.key][-1].verified
                ]
        return window

    def _read(self, rows: list[Row], which: list[int], pairs: list[int]) -> Any:
        before = [row.state.stored for row in rows]
        output = super()._read(rows, which, pairs)
        model, own = self.model.base, self.model.drafter
        for line, (i, n) in enumerate(zip(which, pairs, strict=True)):
            if n:
                states = plain_states(model, rows[i].tokens)
                end = before[i] + n
                pairs_so_far = model.get_input_embeddings()(torch.tensor([rows[i].tokens[1 : end + 1]]))
                plain = own(pairs_so_far, states[None, :end], use_cache=False)[0, before[i] :]
                assert torch.allclose(output.hidden[line, :n], plain, atol=1e-6)
                assert torch.allclose(output.logits[line, 0], model.lm_head(plain[-1]), atol=1e-5)
                self.num_checked += n
        return output


def plain_states(model: Any, tokens: list[int]) -> Tensor:
    """Final-norm states of a plain forward: [length, hidden]."""
    with torch.no_grad():
        return model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]


def eagle_2(
    model: Any, own: Drafter, tokens: list[int], depth: int, top_k: int, num_nodes: int
) -> tuple[dict[tuple[int, ...], float], list[tuple[int, ...]]]:
    """EAGLE-2 read literally: no cache, no batch, each path a sequence of its own.

    Returns:
        Every draft's path with its log-probability, and the best paths.
    """
    states = plain_states(model, tokens[:-1])
    predicted: dict[tuple[int, ...], Tensor] = {}

    def children(path: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        features = torch.cat([states, *(predicted[path[:j]][None] for j in range(len(path)))])
        with torch.no_grad():
            embedded = model.get_input_embeddings()(torch.tensor([tokens[1:] + list(path)]))
            predicted[path] = own(embedded, features[None], use_cache=False)[0, -1]
            score = torch.log_softmax(model.lm_head(predicted[path]).float(), -1)
        best = sorted(range(len(score)), key=lambda t: -float(score[t]))[:top_k]
        return {(*path, t): float(score[t]) for t in best}

    level = children(())
    drafts = dict(level)
    for _ in range(depth - 1):
        expanded = sorted(level, key=lambda p: -level[p])[:top_k]
        level = {new: level[p] + score for p in expanded for new, score in children(p).items()}
        drafts |= level
    return drafts, sorted(drafts, key=lambda p: (-drafts[p], len(p)))[:num_nodes]


@pytest.mark.parametrize(("options", "cache"), [((4, 3, 8), "cursor"), ((3, 1, 3), "none"), ((3, 2, 99), "block")])
def test_drafts_are_those_of_eagle_2_read_literally(case: Case, options: tuple[int, int, int], cache: str) -> None:
    """In a ragged batch with refilled slots and prompts in pieces; near a row's end a tree is as deep as has room."""
    method = Recorded(case.teacher, *options)
    asked = [replace(request, max_new_tokens=12) for request in case.asked[:7]]
    lossless.decode(case.target, method, asked, batch_size=3, cache=cache, cache_block=5, prefill_chunk=4)
    model, own = case.target.model, method.model.drafter
    count = 0
    for trees_of_row in method.trees.values():
        for tree in trees_of_row:
            if not tree.levels:
                assert not tree.drafts
                continue
            drafts, best = eagle_2(model, own, tree.tokens, tree.levels, *options[1:])
            assert tree.drafts.keys() == drafts.keys()
            assert all(tree.drafts[p] == pytest.approx(drafts[p], abs=1e-4) for p in drafts)
            assert sorted(tree.verified) == sorted(best)
            assert [len(p) for p in tree.verified] == sorted(len(p) for p in best), (
                "by level, so that a prefix is a tree"
            )
            count += 1
    assert count > 30
    assert method.num_checked > 100


# ---- costs


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("options", [(3, 2, 9), (4, 1, 3)])
def test_counts_follow_from_the_trace(case: Case, batch_size: int, options: tuple[int, int, int]) -> None:
    depth, top_k, num_nodes = options
    asked = case.asked[:14]
    got = lossless.decode(case.target, Taught(case.teacher, *options), asked, batch_size=batch_size)
    for request in asked:
        stats, trace = got[request.key].stats, got[request.key].trace
        forwards, positions, drafted, done, stored = [0], 0, 0, len(trace[0].token_ids), 0
        for step in trace[1:]:
            levels = min(depth, request.max_new_tokens - done - 1)
            pairs = len(request.prompt_ids) + done - 1
            forwards.append(levels + (levels > 0 and stored == 0))  # the prompt is read in a forward of its own
            if levels:
                fed = [top_k * level for level in range(1, levels)]  # the tree grows by top_k nodes and is fed whole
                positions += pairs - stored + sum(fed)
                stored = pairs
                drafted += min(num_nodes, top_k + (levels - 1) * top_k**2)
            done += len(step.token_ids)
        assert [step.draft_forwards for step in trace] == forwards
        assert (stats.draft_forwards, stats.draft_positions) == (sum(forwards), positions)
        assert stats.drafted == drafted
        assert stats.accepted <= stats.new_tokens - len(trace)


# ---- sampling


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Target:
    target = sampling.toy_target("qwen2")
    return with_weights(target, drafter(target.model), tmp_path_factory.mktemp("toy"))


def test_samples_have_the_bases_distribution(toy: Target) -> None:
    sampling.check_sampler(
        lambda: Eagle(2, 3, 7, temperature=0.8), toy, temperature=0.8, runs=range(3), cap=4, batch_size=100
    )


def test_a_biased_sampler_is_caught(toy: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """One random number for all nodes of a tree, instead of one each."""

    def choose(logits: Tensor, rows: list[Row], temperature: float, most: int) -> Tensor:
        number = accept.uniforms(rows, 1, logits.device).expand(-1, logits.shape[1])
        return accept.draw(accept.probabilities(logits, temperature), number)

    monkeypatch.setattr(eagle, "choose", choose)
    with pytest.raises(AssertionError, match="not the target's"):
        sampling.check_sampler(
            lambda: Eagle(2, 3, 7, temperature=0.8), toy, temperature=0.8, num_draws=4000, cap=4, batch_size=100
        )


# ---- weights and options


def test_weights_come_back_from_the_checkpoint(case: Case, tmp_path: Path) -> None:
    own = drafter(case.target.model, seed=5)
    method = Eagle()
    method.start(Context(with_weights(case.target, own, tmp_path), 1, 64))
    loaded = method.model.drafter
    assert all(torch.equal(p, own.state_dict()[name]) for name, p in loaded.state_dict().items())
    assert not any(p.requires_grad for p in loaded.parameters())
    assert not loaded.training


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_saves_a_drafter_that_decodes(kind: str, tmp_path: Path) -> None:
    """Through the recipe: the base stays what it was, both losses are logged and fall, the drafter comes back."""
    base = micro.save(tmp_path / "micro", micro.model(kind))
    before = load_file(base / "model.safetensors")
    path = tmp_path / "chats.jsonl"
    chats = [data.pair(f"{'x' * (i % 7)} {i}?", f"It is {i}{'!' * (i % 5)}") for i in range(70)]
    path.write_text("\n".join(json.dumps(chat) for chat in chats), "utf-8")
    args = [
        "method=eagle", "model=local", f"model.path={base}", "data=jsonl", f"data.path={path}", "data.held_out=6",
        "train.batch_size=8", "train.max_steps=16", "train.learning_rate=1e-2", "train.log_every=2",
        "train.save_every=0", "train.eval_every=4", "train.bf16=false", "init_from=base", "device=cpu",
        "objective.soft_weight=0.3", f"checkpoints_dir={tmp_path / 'made'}", "train.optimizer=muon",
    ]  # fmt: skip
    made = recipe.train_checkpoint(compose(args), args, progress=False)
    assert all(torch.equal(w, before[name]) for name, w in load_file(base / "model.safetensors").items())
    assert sorted(p.name for p in made.iterdir()) == ["manifest.json", OWN_WEIGHTS, "train.jsonl"]
    manifest = Manifest.read(made)
    assert (manifest.kind, manifest.adapter) == ("eagle", "own")
    assert manifest.objective == {"noise": 0.1, "regression_weight": 1.0, "soft_weight": 0.3}
    log = [json.loads(line) for line in (made / "train.jsonl").read_text("utf-8").splitlines()]
    losses = [(line["loss_regression"], line["loss_soft"]) for line in log if "loss_soft" in line]
    assert all(last < first for first, last in zip(losses[0], losses[-1], strict=True))

    model = {"name": "micro", "source": "local", "path": str(base)}
    options: dict[str, Any] = {"checkpoints_dir": tmp_path / "made", "max_new_tokens": 12, "dtype": "float64"}
    prompts = [f"{'x' * i}?" for i in range(4)]
    got = decode(model, "eagle", prompts, checkpoint=made, **options)
    plain = decode(model, "ar_sft", prompts, checkpoint=base, **options)
    assert [c.token_ids for c in got] == [c.token_ids for c in plain]
    assert sum(c.stats.draft_forwards for c in got) > 0


def test_a_drafter_of_another_model_is_refused(case: Case, tmp_path: Path) -> None:
    other = drafter(micro_model("llama" if case.target.model.config.model_type == "qwen2" else "qwen2"))
    with pytest.raises(UserError, match="does not fit"):
        Eagle().start(Context(with_weights(case.target, other, tmp_path), 1, 64))
    with pytest.raises(UserError, match=f"a directory with {OWN_WEIGHTS}"):
        Eagle().start(Context(replace(case.target, checkpoint_dir=None), 1, 64))


def test_in_16_bit_the_drafter_rotates_as_its_base_does(tmp_path: Path) -> None:
    """A model opened in bf16 keeps precise frequencies; a drafter that is cast must not lose them."""
    model = micro_model()
    precise = model.model.rotary_emb.inv_freq.float()
    model.bfloat16()
    model.model.rotary_emb.inv_freq = precise
    method = Eagle()
    method.start(Context(with_weights(Target(model), drafter(micro_model()), tmp_path), 1, 64))
    assert method.model.drafter.fc.weight.dtype == torch.bfloat16
    assert torch.equal(method.model.drafter.stack.rotary_emb.inv_freq, precise)


@pytest.mark.parametrize("key", ["depth", "top_k", "num_nodes"])
@pytest.mark.parametrize("value", [0, 2.0, True])
def test_bad_options_name_the_key(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^method\.{key}="):
        Eagle(**{key: value})


@pytest.mark.parametrize(("depth", "top_k", "drafted"), [(5, 1, 5), (1, 3, 3), (3, 2, 10)])
def test_settings_that_verify_every_draft_are_one(depth: int, top_k: int, drafted: int) -> None:
    assert Eagle(depth, top_k, drafted + 1) == Eagle(depth, top_k, 99) == Eagle(depth, top_k, drafted)
    assert Eagle(depth, top_k, 99).num_nodes == drafted
    if drafted > 3:
        assert Eagle(depth, top_k, drafted - 1).num_nodes == drafted - 1
    assert Eagle().num_nodes == 16


def test_a_bad_temperature_is_refused() -> None:
    with pytest.raises(UserError, match="^temperature=-1"):
        Eagle(temperature=-1)
