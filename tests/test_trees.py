"""Windows that branch: functions of methods/trees.py against plain loops, and a tree's forward against its paths."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from oracles import VOCAB, logits_of, micro_model
from torch import Tensor

from harness.engine.cache import CursorCache
from harness.engine.forward import run_window
from harness.engine.rows import Request, Row
from harness.engine.window import Window
from methods.trees import agreeing, ancestry, longest_path, walk

ROWS, NODES = 5, 9


def random_parents(rng: random.Random, num_nodes: int) -> list[int]:
    """A parent comes before its children; several nodes may continue the last committed token."""
    return [rng.randrange(-1, i) for i in range(num_nodes)]


def path_to(parents: list[int], node: int) -> list[int]:
    """Nodes from a root to ``node``."""
    return [*(path_to(parents, parents[node]) if parents[node] >= 0 else []), node]


def depths(parents: list[list[int]]) -> Tensor:
    """int64 [rows, n], 0 for a root."""
    return torch.tensor([[len(path_to(line, node)) - 1 for node in range(len(line))] for line in parents])


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 9, 24])
def test_ancestry(num_nodes: int) -> None:
    rng = random.Random(num_nodes)
    trees = [random_parents(rng, num_nodes) for _ in range(20)]
    trees += [list(range(-1, num_nodes - 1)), [-1] * num_nodes]  # a chain, and nothing but roots
    path = ancestry(torch.tensor(trees))
    for parents, lines in zip(trees, path.tolist(), strict=True):
        for node, line in enumerate(lines):
            assert [i for i, on_path in enumerate(line) if on_path] == path_to(parents, node)


def longest(parents: list[int], passed: list[bool]) -> list[int]:
    """The longest path of nodes that all passed; of several the one that ends first."""
    best: list[int] = []
    for node in range(len(parents)):
        path = path_to(parents, node)
        if all(passed[i] for i in path) and len(path) > len(best):
            best = path
    return best


def test_agreeing_nodes_the_longest_path_and_what_it_commits() -> None:
    """Of 400 random trees, some rows with fewer nodes than others; tokens of a vocabulary of 3 agree often."""
    lengths = set()
    for seed in range(400):
        rng = random.Random(seed)
        trees = [random_parents(rng, NODES) for _ in range(ROWS)]
        ids = [[rng.randrange(3) for _ in range(NODES)] for _ in range(ROWS)]
        targets = [[rng.randrange(3) for _ in range(NODES + 1)] for _ in range(ROWS)]
        count = [rng.randrange(NODES + 1) for _ in range(ROWS)]
        parents = torch.tensor(trees)
        passed = agreeing(torch.tensor(ids), parents, torch.tensor(targets), torch.tensor(count))
        length, nodes, last = longest_path(passed, ancestry(parents))
        tokens = walk(torch.tensor(targets), nodes, length, last, torch.tensor(ids))
        for i in range(ROWS):
            agree = [n < count[i] and ids[i][n] == targets[i][trees[i][n] + 1] for n in range(NODES)]
            assert passed[i].tolist() == agree
            best = longest(trees[i], agree)
            assert int(length[i]) == len(best)
            assert nodes[i, : len(best)].tolist() == best
            assert sorted(nodes[i].tolist()) == list(range(NODES))
            assert int(last[i]) == (best[-1] if best else -1)
            committed = [ids[i][n] for n in best] + [targets[i][best[-1] + 1 if best else 0]]
            assert tokens[i, : len(best) + 1].tolist() == committed
            lengths.add(len(best))
    assert lengths >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_a_node_sees_its_path_and_nothing_else(kind: str) -> None:
    """Logits at every node equal those of its path as a sequence of its own; rows differ in cached and pending."""
    model = micro_model(kind)
    rng = random.Random(7)
    texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (5, 9, 6)]
    cached, counts = [4, 3, 0], [NODES, 6, 0]
    trees = [random_parents(rng, NODES) for _ in texts]
    ids = [[rng.randrange(VOCAB) for _ in range(NODES)] for _ in texts]
    _, output = tree_forward(model, texts, cached, trees, ids, counts)
    for i, text in enumerate(texts):
        assert torch.allclose(output.logits[i, 0], logits_of(model, text)[-1], atol=1e-9)
        for node in range(counts[i]):
            path = [ids[i][n] for n in path_to(trees[i], node)]
            assert torch.allclose(output.logits[i, 1 + node], logits_of(model, text + path)[-1], atol=1e-9)
    assert max(len(path_to(tree, n)) for tree in trees for n in range(NODES)) > 3


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_a_kept_path_leaves_the_keys_and_values_of_its_text(kind: str) -> None:
    model = micro_model(kind)
    rng = random.Random(11)
    for _ in range(6):
        texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (5, 9, 6)]
        cached = [4, 3, 0]
        trees = [random_parents(rng, NODES) for _ in texts]
        ids = [[rng.randrange(VOCAB) for _ in range(NODES)] for _ in texts]
        paths = [path_to(tree, rng.randrange(NODES)) for tree in trees]
        cache, _ = tree_forward(model, texts, cached, trees, ids, [NODES] * 3)
        padded = torch.tensor([path + list(range(len(path), NODES)) for path in paths])
        cache.keep_path(range(3), torch.tensor([len(text) for text in texts]), padded)
        for slot, (text, path) in enumerate(zip(texts, paths, strict=True)):
            kept = text + [ids[slot][n] for n in path]
            for mine, fresh in zip(cache.layers, fresh_layers(model, kept), strict=True):
                for name in ("keys", "values"):
                    there = getattr(mine, name)[slot, :, : len(kept)]
                    assert torch.allclose(there, getattr(fresh, name)[0], atol=1e-9)


def tree_forward(
    model: Any,
    texts: list[list[int]],
    cached: list[int],
    trees: list[list[int]],
    ids: list[list[int]],
    counts: list[int],
) -> tuple[CursorCache, Any]:
    """Cache what is said to be cached, then feed the rest with the trees."""
    cache = CursorCache(2, len(texts), 32)
    rows = [
        Row(Request(text), text, slot, torch.Generator(), 32, cached=n)
        for slot, (text, n) in enumerate(zip(texts, cached, strict=True))
    ]
    for row in rows:
        if row.cached:
            whole = Row(row.request, row.tokens[: row.cached], row.slot, row.generator, 32)
            run_window(model, cache, Window.build([whole]), [row.slot], [0])
    path = ancestry(torch.tensor(trees))
    window = Window.build(rows, torch.tensor(ids), counts, depth=depths(trees), visible=path)
    return cache, run_window(model, cache, window, range(len(rows)), cached)


def fresh_layers(model: Any, tokens: list[int]) -> Any:
    """Layers of the model's own cache after a plain causal forward."""
    with torch.no_grad():
        output = model(input_ids=torch.tensor([tokens]), use_cache=True)
    return (output.cache if hasattr(output, "cache") else output.past_key_values).layers  # the name moved
