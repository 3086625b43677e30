"""Medusa: greedy AR's answers and exact samples, the method read literally, its heads and their training."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lossless
import micro
import pytest
import sampling
import torch
from lossless import Case, Teacher
from oracles import Target, logits_of, micro_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.engine.rows import Completion, Request, Row
from harness.errors import UserError
from harness.models.manifest import Manifest
from harness.training import data, recipe
from harness.training.compose import compose
from methods.contract import OWN_WEIGHTS, Example
from methods.medusa import RANK_ACCURACY, Medusa, MedusaHeads, MedusaObjective, sparse_tree, typical

HEADS = 4
EVERY_PAIR = [list(path) for k in range(HEADS) for path in itertools.product(range(2), repeat=k + 1)]  # 30 nodes


def with_heads(target: Target, directory: Path, num_heads: int = HEADS, own_head: bool = False) -> Target:
    """The target with random heads, saved as a checkpoint is."""
    vocab_size, hidden_size = target.model.lm_head.weight.shape
    torch.manual_seed(5)
    heads = MedusaHeads(num_heads, hidden_size, vocab_size if own_head else None)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    save_file(heads.state_dict(), directory / OWN_WEIGHTS)
    options = {"num_heads": num_heads, "own_head": own_head, "decay": 0.8}
    return replace(target, checkpoint_dir=directory, manifest=Manifest("medusa", "micro", objective=options))


class Taught(Medusa):
    """Guesses come from a teacher, so that paths of every length are confirmed."""

    def __init__(self, teacher: Teacher, **kw: Any) -> None:
        super().__init__(**kw)
        self.teacher = teacher

    def guesses(self, rows: list[Row]) -> Tensor:
        return torch.stack([self.teacher.candidates(row, self.num_levels, self.num_ranks) for row in rows])


def taught(**kw: Any) -> Callable[[Teacher], Medusa]:
    return lambda teacher: Taught(teacher, **kw)


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    plain = lossless.case(request.param)
    return replace(plain, target=with_heads(plain.target, tmp_path_factory.mktemp("heads")))


# ---- lossless


def test_answers_are_greedy_ars(case: Case) -> None:
    """200 prompts in ragged batches and alone, three caches, EOS and caps inside paths, prompts in pieces."""
    lossless.check(taught(tree=EVERY_PAIR), case, runs=range(HEADS + 1))


@pytest.mark.parametrize("method", [Medusa(), Medusa(tree="chain"), Medusa(num_heads=2, num_nodes=40)], ids=repr)
def test_whatever_its_heads_guess_answers_are_greedy_ars(case: Case, method: Medusa) -> None:
    got = lossless.check(lambda teacher: replace(method), case.first(12))
    assert sum(c.stats.accepted for c in got) > 0
    assert method.lossless


def test_chain_and_sparse_trees_of_a_teacher(case: Case) -> None:
    lossless.check(taught(tree="chain"), case.first(40), runs=range(HEADS + 1), caches=["cursor"])
    lossless.check(taught(num_nodes=40, num_heads=2), case.first(40), runs=range(3), caches=["block"])


@pytest.mark.parametrize(
    ("tree", "change"),
    [(EVERY_PAIR, lossless.one_more), ("chain", lossless.one_more), ("chain", lossless.jump_gap)],
    ids=["tree", "chain", "gap"],
)
def test_a_broken_acceptance_rule_is_caught(case: Case, tree: Any, change: Any) -> None:
    with pytest.raises(AssertionError, match="not what greedy AR says"):
        lossless.check(lambda teacher: lossless.broken(Taught(teacher, tree=tree), change), case.first(24))


def test_kept_keys_and_values_equal_a_fresh_forward(case: Case) -> None:
    assert lossless.check_cache(taught(tree=EVERY_PAIR), case) > 30
    lossless.check_cache(taught(tree=EVERY_PAIR), case, cache="block", cache_block=9)


# ---- the method read literally


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """So few tokens that random heads are often right."""
    return with_heads(sampling.toy_target(request.param), tmp_path_factory.mktemp("toy"))


def toy_requests(num_requests: int = 24) -> list[Request]:
    generator = torch.Generator().manual_seed(2)
    lengths = [2 + i % 7 for i in range(num_requests)]
    prompts = [torch.randint(0, sampling.VOCAB - 1, (n,), generator=generator).tolist() for n in lengths]
    return [Request(p, max_new_tokens=20 - i % 9, key=i, seed=i) for i, p in enumerate(prompts)]


Rule = Callable[[Tensor, int], bool]


def says(logits: Tensor, token: int) -> bool:
    return int(logits.argmax()) == token


def likely(logits: Tensor, token: int, epsilon: float = 0.09, delta: float = 0.3) -> bool:
    p = torch.softmax(logits, -1)
    entropy = sum(-float(x) * float(x.log()) for x in p if x > 0)
    return float(p[token]) > min(epsilon, delta * 2.718281828459045**-entropy)


def head_logits(weights: dict[str, Tensor], head: int, hidden: Tensor, model: Any) -> Tensor:
    z = weights[f"blocks.{head}.weight"] @ hidden + weights[f"blocks.{head}.bias"]
    return weights.get(f"lm_heads.{head}.weight", model.lm_head.weight) @ (hidden + z / (1 + (-z).exp()))


def literal(target: Target, request: Request, tree: list[list[int]], rule: Rule, block: int) -> list[tuple[Any, int]]:
    """No cache, no batch, every path of the tree a sequence of its own.

    Returns:
        Per forward, the tokens committed and the nodes fed.
    """
    model, eos = target.model, target.eos_token_ids
    assert target.checkpoint_dir is not None
    weights = {name: w.double() for name, w in load_file(target.checkpoint_dir / OWN_WEIGHTS).items()}
    text, steps, done = list(request.prompt_ids), [], 0
    while done < request.max_new_tokens and text[-1] not in eos:
        room = min(request.max_new_tokens - done, block - done % block)
        with torch.no_grad():
            states = model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
            ranked = [
                head_logits(weights, k, states[len(text) - 2], model).argsort(descending=True) for k in range(HEADS)
            ]
        nodes = sorted((path for path in tree if len(path) < room), key=len) if done else []
        best: list[int] = []
        for length in sorted({len(path) for path in nodes}):
            drafts = [[int(ranked[k][r]) for k, r in enumerate(path)] for path in nodes if len(path) == length]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([text + d for d in drafts])).logits[:, len(text) - 1 :]
            right = (all(rule(line[j], t) for j, t in enumerate(d)) for d, line in zip(drafts, logits, strict=True))
            best = next(itertools.compress(drafts, right), best)
        step = [*best, int(logits_of(model, text + best)[-1].argmax())]
        end = next((i + 1 for i, t in enumerate(step) if t in eos), len(step))
        steps.append((step[:end], len(nodes)))
        text += step[:end]
        done += end
    return steps


@pytest.mark.parametrize(
    ("acceptance", "rule", "own_head"), [("greedy", says, False), ("typical", likely, True)], ids=["greedy", "typical"]
)
def test_each_forward_commits_what_the_literal_method_commits(
    toy: Target, acceptance: str, rule: Rule, own_head: bool, tmp_path: Path
) -> None:
    """Which state the heads read is seen here: a block cache cuts paths short, and the next guesses must know it."""
    target = with_heads(toy, tmp_path, own_head=own_head)
    tree = [[0], [1], [2], [0, 0], [1, 0], [1, 1], [0, 1], [1, 0, 2], [0, 1, 0], [0, 1, 0, 0], [1, 1, 0], [2, 0]]
    asked = toy_requests(8)
    every = {block: {r.key: literal(target, r, tree, rule, block) for r in asked} for block in (1000, 5)}
    for cache, block, batch_size in (("cursor", 1000, 1), ("cursor", 1000, 5), ("none", 1000, 5), ("block", 5, 5)):
        expected = every[block]
        assert {len(step) for steps in expected.values() for step, _ in steps} >= {1, 2, 3}
        method = Medusa(tree=tree, acceptance=acceptance)
        got = lossless.decode(target, method, asked, batch_size=batch_size, cache=cache, cache_block=block)
        for key, steps in expected.items():
            completion = got[key]
            stats = completion.stats
            assert [s.token_ids for s in completion.trace] == [step for step, _ in steps]
            assert [s.draft_forwards for s in completion.trace] == [int(nodes > 0) for _, nodes in steps]
            assert stats.draft_forwards == stats.draft_positions == sum(nodes > 0 for _, nodes in steps)
            assert stats.drafted == sum(nodes for _, nodes in steps)
            assert stats.accepted == sum(len(step) - 1 for step, _ in steps)


def test_tokens_per_forward_do_not_depend_on_the_batch(toy: Target) -> None:
    totals = set()
    for batch_size in (1, 5, 16):
        stats = [c.stats for c in lossless.decode(toy, Medusa(), toy_requests(), batch_size=batch_size).values()]
        names = ("new_tokens", "target_forwards", "draft_forwards", "draft_positions", "positions", "drafted")
        totals.add(tuple(sum(getattr(s, name) for s in stats) for name in names))
    ((tokens, forwards, drafting, *_),) = totals
    assert tokens > 1.3 * forwards
    assert drafting < forwards


def test_fewer_heads_of_a_checkpoint_are_its_first(toy: Target, tmp_path: Path) -> None:
    """A chain of two heads of four commits what a chain of two heads alone does."""
    weights = load_file(toy.checkpoint_dir / OWN_WEIGHTS)  # type: ignore[operator]
    save_file({k: w for k, w in weights.items() if k.split(".")[1] in "01"}, tmp_path / OWN_WEIGHTS)
    manifest = replace(toy.manifest, objective=toy.manifest.objective | {"num_heads": 2})
    smaller = replace(toy, checkpoint_dir=tmp_path, manifest=manifest)
    two = lossless.decode(toy, Medusa(num_heads=2, tree="chain"), toy_requests())
    alone = lossless.decode(smaller, Medusa(tree="chain"), toy_requests())
    for key, completion in two.items():
        lossless.check_same_steps(completion, alone[key])


# ---- acceptance that is likely enough


def test_the_typical_rule() -> None:
    """Against a plain loop, where epsilon decides and where the entropy does."""
    torch.manual_seed(0)
    rows, nodes, vocab = 40, 6, 7
    logits = torch.randn(rows, nodes + 1, vocab, dtype=torch.float64) * torch.linspace(0.1, 6, rows)[:, None, None]
    parents = torch.tensor([-1, -1, 0, 0, 2, 1]).expand(rows, -1)
    ids = torch.randint(vocab, (rows, nodes))
    passed = typical(logits, ids, parents, 0.09, 0.3)
    expected = [[likely(logits[i, int(parents[i, n]) + 1], int(ids[i, n])) for n in range(nodes)] for i in range(rows)]
    assert passed.tolist() == expected
    assert 0.2 < passed.double().mean() < 0.8
    best = logits.argmax(-1).gather(1, parents + 1)
    assert typical(logits, best, parents, 0.09, 0.3).all(), "the most likely token is likely enough"


def test_typical_acceptance_is_lossy_and_commits_more(toy: Target) -> None:
    assert not Medusa(acceptance="typical").lossless
    greedy, lossy = (
        lossless.decode(toy, Medusa(acceptance=acceptance), toy_requests()) for acceptance in ("greedy", "typical")
    )
    assert any(greedy[k].token_ids != lossy[k].token_ids for k in greedy)

    def rate(got: dict[Any, Completion]) -> float:
        return sum(c.stats.new_tokens for c in got.values()) / sum(c.stats.target_forwards for c in got.values())

    assert rate(lossy) > rate(greedy) > 1


# ---- sampling


def test_samples_are_the_targets(toy: Target) -> None:
    """A tree at temperature 1 on one model, a chain at 0.7 on the other."""
    tree, temperature = ("sparse", 1.0) if toy.model.config.model_type == "qwen2" else ("chain", 0.7)
    sampling.check_sampler(
        lambda: Medusa(tree=tree, temperature=temperature), toy, temperature=temperature, runs=range(3)
    )


def test_a_biased_sampler_is_caught(toy: Target) -> None:
    """Typical acceptance prefers what the heads guess, and is refused for it; a temperature a little off shows too."""
    with pytest.raises(UserError, match=r"(?s)temperature=1\.0: medusa decodes greedily.*method\.acceptance=greedy"):
        Medusa(temperature=1.0, acceptance="typical")

    def likely() -> Medusa:
        method = Medusa(temperature=1.0)
        method.acceptance = "typical"
        return method

    for biased in (likely, lambda: Medusa(temperature=1.2)):
        with pytest.raises(AssertionError, match="not the target's distribution"):
            sampling.check_sampler(biased, toy, temperature=1.0, num_draws=3000)


# ---- trees


@pytest.mark.parametrize("num_nodes", [1, 2, 5, 12, 30])
def test_the_sparse_tree_is_the_most_probable_one(num_nodes: int) -> None:
    """Against all trees' nodes sorted by probability; each node's parent is there."""
    accuracy = [(0.6, 0.2, 0.1), (0.5, 0.31, 0.07), (0.43, 0.13, 0.11)]
    probability = {}
    for k in range(3):
        for path in itertools.product(range(3), repeat=k + 1):
            probability[path] = torch.tensor([accuracy[j][r] for j, r in enumerate(path)], dtype=torch.float64).prod()
    tree = sparse_tree(accuracy, num_nodes)
    expected = sorted(probability, key=lambda path: -float(probability[path]))[:num_nodes]
    assert sum(float(probability[p]) for p in tree) == pytest.approx(sum(float(probability[p]) for p in expected))
    assert len(set(tree)) == num_nodes
    for i, path in enumerate(tree):
        assert len(path) == 1 or path[:-1] in tree[:i]


def test_the_sparse_tree_ends_where_there_are_no_more_nodes() -> None:
    assert sorted(sparse_tree([(0.6, 0.3), (0.5, 0.2)], 100)) == [(0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1)]


def test_measured_accuracies_fall_in_rank() -> None:
    for row in RANK_ACCURACY:
        assert list(row) == sorted(row, reverse=True)
        assert 0 < sum(row) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, r"method\.num_heads=0: a whole number"),
        ({"num_heads": True}, r"method\.num_heads=True: a whole number"),
        ({"num_nodes": 0}, r"method\.num_nodes=0: a whole number"),
        ({"num_nodes": 2.5}, r"method\.num_nodes=2.5: a whole number"),
        ({"acceptance": "all"}, r"method\.acceptance='?all'?: one of greedy, typical"),
        ({"epsilon": 2}, r"method\.epsilon=2: a number from 0 to 1"),
        ({"delta": "x"}, r"method\.delta='?x'?: a number from 0 to 1"),
        ({"temperature": -1}, "temperature=-1: a number from 0"),
        ({"tree": "dense"}, r"method\.tree='?dense'?: one of sparse, chain"),
        ({"tree": []}, r"method\.tree=\[\]: one of sparse, chain, or a list"),
        ({"tree": [[]]}, r"method\.tree=\[\]: each path is a list of ranks"),
        ({"tree": [[0], [-1]]}, r"method\.tree=\[-1\]: each path is a list of ranks"),
        ({"tree": [0, 1]}, r"method\.tree=0: each path is a list of ranks"),
        ({"tree": [[0], [1, 0]]}, r"method\.tree=\[1, 0\]: every path's beginning is a path too.*add \[1\]"),
        ({"tree": [[0], [0]]}, r"method\.tree=\[0\]: each path stands once"),
        (
            {"tree": [[0], [0, 0]], "num_heads": 1},
            r"method\.tree=\[0, 0\]: a path has a rank per head, and there are 1 heads",
        ),
    ],
)
def test_bad_options_name_the_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"(?s)^{message}"):
        Medusa(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, r"method\.num_heads=5: the checkpoint has 4 heads.*fix: method\.num_heads=4"),
        (
            {"tree": [[0] * (k + 1) for k in range(5)]},
            r"method\.tree=\[0, 0, 0, 0, 0\]: a path has a rank per head.*4 heads",
        ),
        ({"tree": [[6]]}, r"method\.tree=6: the model has 6 tokens"),
    ],
)
def test_what_the_checkpoint_lacks_is_refused(toy: Target, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"(?s)^{message}"):
        lossless.decode(toy, Medusa(**options), toy_requests(1))


# ---- identity


def test_what_is_of_no_account_is_no_axis() -> None:
    """Titles stay those of the defaults, and wrong values are still refused."""
    assert Medusa(tree="chain", num_nodes=40) == Medusa(tree="chain")
    assert Medusa(tree=[[0]], num_nodes=40) == Medusa(tree=[[0]])
    assert Medusa(epsilon=0.5, delta=0.1) == Medusa()
    assert Medusa(tree="chain", num_nodes=40, epsilon=0.5).changed() == {"tree": "chain"}
    for option in ({"num_nodes": 40}, {"acceptance": "typical", "epsilon": 0.5}, {"acceptance": "typical", "delta": 1}):
        assert Medusa(**option).changed() == option
    for bad in ({"tree": "chain", "num_nodes": 0}, {"epsilon": 2}, {"delta": -1}):
        with pytest.raises(UserError, match=rf"^method\.{list(bad)[-1]}="):
            Medusa(**bad)


def test_heads_are_those_of_the_checkpoint() -> None:
    four, three = (Manifest("medusa", "micro", objective={"num_heads": n, "own_head": False}) for n in (4, 3))

    def fitted(manifest: Manifest | None, **options: Any) -> int | None:
        method = Medusa(**options)
        method.fit(manifest)
        method.fit(manifest)
        return method.num_heads

    assert fitted(None) is None
    assert fitted(four) is fitted(four, num_heads=4) is None, "all that there are"
    assert fitted(four, num_heads=2) == 2
    assert fitted(four, tree=[[0], [0, 0]], num_heads=2) is None, "its paths tell which heads it uses"
    method = Medusa(num_heads=3)
    for manifest, heads in ((four, 3), (three, None), (four, 3)):
        method.fit(manifest)
        assert method.num_heads == heads
    with pytest.raises(
        UserError, match=r"(?s)^method\.num_heads=4: the checkpoint has 3 heads.*objective\.num_heads=4$"
    ):
        fitted(three, num_heads=4)
    with pytest.raises(UserError, match=r"^method\.tree=\[0, 0, 0, 0\]: a path has a rank per head"):
        fitted(three, tree=[[0] * (k + 1) for k in range(4)])


def test_a_checkpoint_without_heads_is_refused(toy: Target, tmp_path: Path) -> None:
    plain = replace(toy, manifest=None, checkpoint_dir=None)
    other = replace(toy, checkpoint_dir=tmp_path)
    three = replace(toy, manifest=replace(toy.manifest, objective=toy.manifest.objective | {"num_heads": 3}))
    for target, message in ((plain, "medusa needs one with heads"), (other, OWN_WEIGHTS), (three, "does not fit")):
        with pytest.raises(UserError, match=message):
            lossless.decode(target, Medusa(), toy_requests(1))


# ---- training

RESPONSES = ("00001111", "000111001111", "001", "01", "11111", "0001", "0", "0000111111111")


def examples() -> list[Example]:
    generator = torch.Generator().manual_seed(3)
    return [
        Example(torch.randint(0, 60, (len(r),), generator=generator).tolist(), [c == "1" for c in r]) for r in RESPONSES
    ]


def objective(model: Any, **options: Any) -> MedusaObjective:
    """With heads that are not at their start."""
    made = MedusaObjective(**options)
    made.own = made.attach(model)
    torch.manual_seed(4)
    for parameter in made.own.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return made


@pytest.mark.parametrize("own_head", [False, True])
def test_the_loss_is_the_plain_loops(own_head: bool) -> None:
    model = micro_model().float()
    made = objective(model, num_heads=3, own_head=own_head, decay=0.7)
    assert made.own is not None
    weights = {name: w.detach() for name, w in made.own.state_dict().items()}
    losses: list[list[Tensor]] = [[], [], []]
    with torch.no_grad():
        for example in examples():
            states = model(input_ids=torch.tensor([example.ids]), output_hidden_states=True).hidden_states[-1][0]
            for t, k in itertools.product(range(len(example.ids)), range(3)):
                if t + 2 + k < len(example.ids) and all(example.response[t + 1 : t + 3 + k]):
                    logits = head_logits(weights, k, states[t], model)
                    losses[k].append(-torch.log_softmax(logits, -1)[example.ids[t + 2 + k]])
        means = [torch.stack(values).mean() for values in losses]
        loss, parts = made.loss(model, made.collate(examples()))
    assert [len(values) for values in losses] == [19, 14, 9]
    assert loss == pytest.approx(float(means[0] + 0.7 * means[1] + 0.49 * means[2]), rel=1e-5)
    assert {k: float(v) for k, v in parts.items()} == pytest.approx(
        {f"head_{k}": float(m) for k, m in enumerate(means)}
    )


def test_heads_start_as_the_lm_head() -> None:
    model = micro_model().float()
    hidden = torch.randn(3, 32)
    for own_head in (False, True):
        made = MedusaObjective(own_head=own_head)
        heads = made.attach(model)
        assert isinstance(heads, MedusaHeads)
        for k in range(4):
            assert torch.equal(heads.logits(k, hidden, model.lm_head), model.lm_head(hidden))
        assert not {p.data_ptr() for p in heads.parameters()} & {p.data_ptr() for p in model.parameters()}


def test_a_batch_without_targets_for_a_head_has_a_loss() -> None:
    made = objective(micro_model().float())
    loss, parts = made.loss(micro_model().float(), made.collate([Example([1, 2, 3], [False, True, True])]))
    assert torch.isfinite(loss)
    assert [float(parts[f"head_{k}"]) > 0 for k in range(4)] == [True, False, False, False]


def test_gradients_reach_the_heads_alone() -> None:
    model = micro_model().float()
    made = objective(model, own_head=True)
    model.requires_grad_(False)
    made.loss(model, made.collate(examples()))[0].backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in made.own.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{"num_heads": 0}, {"num_heads": 1.5}, {"decay": 0}, {"decay": 1.1}], ids=str)
def test_bad_objectives_name_the_key(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"^objective\.{next(iter(options))}="):
        MedusaObjective(**options)


@pytest.mark.parametrize("own_head", [False, True])
def test_a_training_saves_heads_that_decode(own_head: bool, tmp_path: Path) -> None:
    """Through the recipe: the base stays what it was, losses are logged per head, the heads learn and come back."""
    base = micro.save(tmp_path / "micro")
    before = load_file(base / "model.safetensors")
    path = tmp_path / "chats.jsonl"
    chats = [data.pair(f"{'x' * (i % 7)} {i}?", f"It is {i}{'!' * (i % 5)}") for i in range(70)]
    path.write_text("\n".join(json.dumps(chat) for chat in chats), "utf-8")
    args = [
        "method=medusa", "model=local", f"model.path={base}", "data=jsonl", f"data.path={path}", "data.held_out=6",
        "train.batch_size=8", "train.max_steps=12", "train.learning_rate=1e-2", "train.log_every=2",
        "train.save_every=0", "train.eval_every=4", "train.bf16=false", "init_from=base", "device=cpu",
        "objective.num_heads=3", f"objective.own_head={str(own_head).lower()}",
        f"checkpoints_dir={tmp_path / 'made'}", "train.optimizer=muon",
    ]  # fmt: skip
    made = recipe.train_checkpoint(compose(args), args, progress=False)
    assert all(torch.equal(w, before[k]) for k, w in load_file(base / "model.safetensors").items())
    assert sorted(p.name for p in made.iterdir()) == ["manifest.json", OWN_WEIGHTS, "train.jsonl"]
    manifest = Manifest.read(made)
    assert manifest.objective == {"num_heads": 3, "own_head": own_head, "decay": 0.8}
    weights = load_file(made / OWN_WEIGHTS)
    assert len(weights) == (9 if own_head else 6)
    assert all(w.dtype == torch.bfloat16 and w.abs().sum() > 0 for w in weights.values())
    log = [json.loads(line) for line in (made / "train.jsonl").read_text("utf-8").splitlines()]
    losses = [[line[f"loss_head_{k}"] for k in range(3)] for line in log if "loss_head_0" in line]
    assert all(last < first for first, last in zip(losses[0], losses[-1], strict=True))

    from harness import decode

    model = {"name": "micro", "source": "local", "path": str(base)}
    options: dict[str, Any] = {"checkpoints_dir": tmp_path / "made", "max_new_tokens": 12, "dtype": "float64"}
    prompts = [f"{'x' * i}?" for i in range(4)]
    got = decode(model, "medusa", prompts, checkpoint=made, **options)
    plain = decode(model, "ar_sft", prompts, checkpoint=base, **options)
    assert [c.token_ids for c in got] == [c.token_ids for c in plain]
    assert sum(c.stats.draft_forwards for c in got) > 0
    with pytest.raises(UserError, match=r"^method\.num_heads=4: the checkpoint has 3 heads"):
        decode(model, "medusa", prompts, checkpoint=made, num_heads=4, **options)


def test_fields_are_axes() -> None:
    names = {"num_heads", "tree", "num_nodes", "acceptance", "epsilon", "delta", "temperature"}
    assert set(Medusa.axes()) == names == {f.name for f in dataclasses.fields(Medusa)}
