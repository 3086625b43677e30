"""Medusa: heads on a frozen model's last hidden state guess the tokens after the next one (arXiv 2401.10774)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from harness.engine.commit import Commit
from harness.engine.contract import Context
from harness.engine.forward import backbone, lm_head
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from harness.errors import UserError
from methods.accept import check_temperature, choose, probabilities
from methods.contract import Example, Method, Objective, load_own_weights, refuse_sampling
from methods.trees import agreeing, ancestry, longest_path, walk

TREES = ("sparse", "chain")
ACCEPTANCES = ("greedy", "typical")

Path = tuple[int, ...]  # a node of a tree: the rank that each head's guess has on the way to it


def check_num_heads(key: str, num_heads: object) -> None:
    """Raises UserError that names ``key`` unless ``num_heads`` is a whole number from 1."""
    if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1:
        raise UserError(key, num_heads, "a whole number of heads, at least 1", f"{key}=4")


class MedusaHeads(nn.Module):
    """Head k (from 0) predicts token t+2+k from ``h_t``: x + SiLU(Wx + b), then the model's LM head or one of its own.

    W and b start at zero, so that every head starts as the LM head on ``h_t`` itself.
    """

    def __init__(self, num_heads: int, hidden_size: int, own_vocab_size: int | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_heads))
        sizes = [] if own_vocab_size is None else [own_vocab_size] * num_heads
        self.lm_heads = nn.ModuleList(nn.Linear(hidden_size, size, bias=False) for size in sizes)
        for parameter in self.blocks.parameters():
            nn.init.zeros_(parameter)

    def logits(self, head: int, hidden: Tensor, shared: nn.Module) -> Tensor:
        """Of one head: [..., vocab] from hidden states [..., hidden]; ``shared`` is the model's LM head."""
        hidden = hidden + nn.functional.silu(self.blocks[head](hidden))
        logits: Tensor = (self.lm_heads[head] if len(self.lm_heads) else shared)(hidden)
        return logits


@dataclass
class MedusaObjective(Objective):
    """Σ decayᵏ · cross-entropy of head k, on a frozen model (Medusa-1, §2.2.1 and Eq. 1 there).

    Attributes:
        num_heads: heads, each one token further ahead.
        own_head: each head has an LM head of its own, which starts as a copy of the model's; else they share the
            model's.
        decay: weight of a head relative to the one before it.
    """

    num_heads: int = 4
    own_head: bool = False
    decay: float = 0.8

    def __post_init__(self) -> None:
        check_num_heads("objective.num_heads", self.num_heads)
        if isinstance(self.decay, bool) or not isinstance(self.decay, (int, float)) or not 0 < self.decay <= 1:
            raise UserError("objective.decay", self.decay, "a number above 0, at most 1", "objective.decay=0.8")

    def attach(self, model: Any) -> nn.Module:
        weight: Any = lm_head(model).weight
        heads = MedusaHeads(self.num_heads, weight.shape[1], weight.shape[0] if self.own_head else None)
        for own in heads.lm_heads:
            own.load_state_dict({"weight": weight})
        return heads.to(device=weight.device, dtype=torch.float32)

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """``ids`` int64 [batch, length]; ``labels`` int64 [batch, num_heads, length], -100 where a head has no target.

        Head k has one at t where the tokens t+1 … t+2+k belong to one response: decoding knows all of the text up to
        the token that ``h_t`` predicts, so no head is asked to guess across a prompt that it has not seen.
        """
        length = max(len(e.ids) for e in examples)
        ids = torch.full((len(examples), length), self.pad_token_id)
        labels = torch.full((len(examples), self.num_heads, length), -100)
        for i, example in enumerate(examples):
            n = len(example.ids)
            ids[i, :n] = tokens = torch.tensor(example.ids)
            response = torch.tensor(example.response, dtype=torch.bool)
            inside = response[1:]  # at t: the tokens from t+1 on that were looked at are response
            for k in range(min(self.num_heads, n - 2)):
                inside = inside[:-1] & response[2 + k :]
                labels[i, k, : n - 2 - k] = tokens[2 + k :].masked_fill(~inside, -100)
        return {"ids": ids, "labels": labels}

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The model runs without gradient; each head's logits are computed where it has a target."""
        heads = self.own
        assert isinstance(heads, MedusaHeads)
        with torch.no_grad():
            hidden = backbone(model)(input_ids=batch["ids"], use_cache=False).last_hidden_state
        total, parts = hidden.new_zeros(()), {}
        for k, labels in enumerate(batch["labels"].unbind(1)):
            at = labels != -100
            logits = heads.logits(k, hidden[at], lm_head(model)).float()
            # A sum over no target is 0 where a mean would be NaN: a batch of very short answers.
            loss = nn.functional.cross_entropy(logits, labels[at], reduction="sum") / at.sum().clamp(min=1)
            total, parts[f"head_{k}"] = total + self.decay**k * loss, loss.detach()
        return total, parts


# How often each head's guess of rank 0, 1, … is the true token: heads of checkpoints/tiny/medusa, on the responses of
# 600 generated problems of the validation split (35,007 positions for the first head). Nearly the same where the heads
# before were right, so errors are taken as independent: trees chosen by the frequency of whole paths were no better.
RANK_ACCURACY = (
    (0.833, 0.066, 0.034, 0.021, 0.013, 0.008, 0.006, 0.005, 0.003, 0.002),
    (0.739, 0.092, 0.044, 0.030, 0.022, 0.016, 0.013, 0.011, 0.008, 0.006),
    (0.696, 0.102, 0.053, 0.036, 0.028, 0.019, 0.017, 0.012, 0.010, 0.008),
    (0.679, 0.120, 0.054, 0.035, 0.024, 0.019, 0.016, 0.011, 0.009, 0.008),
)


def sparse_tree(accuracy: Sequence[Sequence[float]], num_nodes: int) -> list[Path]:
    """The ``num_nodes`` most probable nodes (fewer where there are no more), if heads err independently (§2.3.3).

    Args:
        accuracy: per head, the probability that its guess of each rank is right; falling in rank.

    Returns:
        Paths, the most probable first; a node comes after its parent.
    """
    tree: list[Path] = []
    heap: list[tuple[float, Path]] = [(-accuracy[0][0], (0,))]
    while heap and len(tree) < num_nodes:
        negative, path = heapq.heappop(heap)
        tree.append(path)
        level, rank = len(path) - 1, path[-1]
        if rank + 1 < len(accuracy[level]):
            sibling = negative / accuracy[level][rank] * accuracy[level][rank + 1]
            heapq.heappush(heap, (sibling, (*path[:-1], rank + 1)))
        if len(path) < len(accuracy):
            heapq.heappush(heap, (negative * accuracy[level + 1][0], (*path, 0)))
    return tree


def check_tree(tree: Any) -> None:
    """Raises UserError unless ``tree`` is a name, or paths of ranks that hold each node once and its parent."""
    key = "method.tree"
    if isinstance(tree, str):
        if tree not in TREES:
            raise UserError(key, tree, f"one of {', '.join(TREES)}, or a list of paths", f"{key}=sparse")
        return
    example = f"{key}=[[0],[1],[0,0]]"
    if not isinstance(tree, (list, tuple)) or not tree:
        raise UserError(key, tree, f"one of {', '.join(TREES)}, or a list of paths", example)
    for path in tree:
        if not isinstance(path, (list, tuple)) or not path or any(type(rank) is not int or rank < 0 for rank in path):
            raise UserError(key, path, "each path is a list of ranks, whole numbers from 0", example)
    paths = [tuple(path) for path in tree]
    for path in paths:
        if len(path) > 1 and path[:-1] not in paths:
            raise UserError(key, list(path), "every path's beginning is a path too", f"add {list(path[:-1])}")
        if paths.count(path) > 1:
            raise UserError(key, list(path), "each path stands once", "remove one")


def check_depth(tree: Any, num_heads: int) -> None:
    """Raises UserError where a path of an explicit ``tree`` is longer than there are heads."""
    deepest = [] if isinstance(tree, str) else max(tree, key=len)
    if len(deepest) > num_heads:
        allowed = f"a path has a rank per head, and there are {num_heads} heads"
        raise UserError(
            "method.tree",
            list(deepest),
            allowed,
            f"cut paths to {num_heads} ranks, or train with objective.num_heads={len(deepest)}",
        )


def typical(logits: Tensor, ids: Tensor, parents: Tensor, epsilon: float, delta: float) -> Tensor:
    """Which nodes are likely enough: p(node | its parent) > min(ε, δ · exp(−entropy)) (§2.3.1).

    Args:
        logits: [rows, 1 + n, vocab], after the last committed token and after each node.
        ids, parents: int64 [rows, n].

    Returns:
        bool [rows, n].
    """
    probability = probabilities(logits, 1.0)
    entropy = torch.special.entr(probability).sum(-1)
    threshold = (delta * torch.exp(-entropy)).clamp(max=epsilon)
    lines = torch.arange(len(ids), device=ids.device)[:, None]
    return probability[lines, parents + 1, ids] > threshold.gather(1, parents + 1)


@dataclass
class _Hidden:
    """What a row's last forward leaves: h of its last pending token and of the path that it kept, in order.

    ``base`` tokens were committed before; the one committed as number c after them was predicted from ``states[c−1]``.
    """

    base: int
    states: Tensor  # [1 + path, hidden]


@dataclass
class Medusa(Method):
    """Heads guess the next tokens several times over; a tree of guesses is verified in one forward.

    The state that predicted the last committed token feeds the heads. Their ranked guesses fill a static tree: a node
    is a path of ranks, its level tells the head. The window is ``[pending | nodes]``, where a node sees its ancestors.
    The longest path that the model agrees with is committed, and the model's own token after it: answers equal greedy
    AR's, or at ``temperature`` above 0 are exact samples.

    Attributes:
        num_heads: heads in use; None is all that the checkpoint has. A list of paths tells itself which ones it uses.
        tree: ``sparse`` (the ``num_nodes`` most probable nodes), ``chain`` (the first guess of each head), or a list of
            paths, e.g. ``[[0], [1], [0, 0]]``.
        num_nodes: size of the sparse tree.
        acceptance: ``greedy`` (lossless) or ``typical`` (lossy: accepts what is likely enough, ``epsilon``, ``delta``).
        temperature: 0 is greedy.

    What is of no account (``num_nodes`` of another tree, ``epsilon`` and ``delta`` of greedy acceptance) is set to its
    default.
    """

    name: ClassVar[str] = "medusa"
    checkpoint_kind: ClassVar[str] = "medusa"
    objective: ClassVar[type[Objective] | None] = MedusaObjective

    num_heads: int | None = None
    tree: Any = "sparse"
    num_nodes: int = 16
    acceptance: str = "greedy"
    epsilon: float = 0.09
    delta: float = 0.3
    temperature: float = 0.0

    def __post_init__(self) -> None:
        check_tree(self.tree)
        if self.num_heads is not None:
            check_num_heads("method.num_heads", self.num_heads)
            check_depth(self.tree, self.num_heads)
        if isinstance(self.num_nodes, bool) or not isinstance(self.num_nodes, int) or self.num_nodes < 1:
            allowed = "a whole number of nodes, at least 1"
            raise UserError("method.num_nodes", self.num_nodes, allowed, f"method.num_nodes={Medusa.num_nodes}")
        if self.acceptance not in ACCEPTANCES:
            raise UserError("method.acceptance", self.acceptance, f"one of {', '.join(ACCEPTANCES)}")
        for key, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise UserError(f"method.{key}", value, "a number from 0 to 1")
        check_temperature(self.temperature)
        if self.tree != "sparse":
            self.num_nodes = Medusa.num_nodes
        if self.acceptance == "greedy":
            self.epsilon, self.delta = Medusa.epsilon, Medusa.delta
        if self.temperature and self.acceptance == "typical":
            reason = "typical acceptance takes what is likely enough, which is no sample"
            raise refuse_sampling(self.name, self.temperature, reason, "method.acceptance=greedy, or temperature=0")
        self._asked_heads = self.num_heads  # what ``fit`` starts from, also when it is called again

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        """Typical acceptance takes tokens that the model would not have written."""
        return self.acceptance == "greedy"

    @property
    def window(self) -> int:
        return len(self.parents)

    def fit(self, manifest: Any) -> None:
        """Use the heads that there are, where ``num_heads`` is None or the tree is a list of paths.

        Raises:
            UserError: more heads than were trained, or a path of more ranks than there are heads.
        """
        trained = None if manifest is None else manifest.objective.get("num_heads")
        if trained is None:
            return
        asked = self._asked_heads
        if asked is not None and asked > trained:
            fix = f"method.num_heads={trained}, or train with objective.num_heads={asked}"
            raise UserError("method.num_heads", asked, f"the checkpoint has {trained} heads", fix)
        used = asked if asked is not None and isinstance(self.tree, str) else trained
        check_depth(self.tree, used)
        self.num_heads = None if used == trained else used  # one spelling of all that there are

    def start(self, context: Context) -> None:
        super().start(context)
        target = context.target
        if target.manifest is None or "num_heads" not in target.manifest.objective:
            fix = "python -m harness.train method=medusa makes one"
            raise UserError("checkpoint", str(target.checkpoint_dir), "medusa needs one with heads", fix)
        self.fit(target.manifest)
        trained, own_head = (target.manifest.objective[key] for key in ("num_heads", "own_head"))
        self.lm_head = lm_head(target.model)
        weight: Any = self.lm_head.weight
        vocab_size, hidden_size = weight.shape
        heads = MedusaHeads(trained, hidden_size, vocab_size if own_head else None)
        self.heads = load_own_weights(heads, target)
        self._lay_out(self._paths(self.num_heads or trained, vocab_size), target.model.device)

    def _paths(self, num_heads: int, vocab_size: int) -> list[Path]:
        """Nodes of the tree in order of depth, so that a row near its end takes the first ones."""
        if self.tree == "chain":
            paths = [(0,) * (k + 1) for k in range(num_heads)]
        elif self.tree == "sparse":
            last = len(RANK_ACCURACY) - 1  # stands for heads that were not measured
            accuracy = [RANK_ACCURACY[min(k, last)][:vocab_size] for k in range(num_heads)]
            paths = sparse_tree(accuracy, self.num_nodes)
        else:
            paths = [tuple(path) for path in self.tree]
            highest = max(max(path) for path in paths)
            if highest >= vocab_size:
                raise UserError(
                    "method.tree", highest, f"the model has {vocab_size} tokens, so the last rank is one less"
                )
        return sorted(paths, key=len)

    def _lay_out(self, paths: list[Path], device: torch.device) -> None:
        """The static tree as tensors."""
        number = {path: i for i, path in enumerate(paths)} | {(): -1}
        self.parents = torch.tensor([number[path[:-1]] for path in paths], device=device)
        self.level = torch.tensor([len(path) - 1 for path in paths], device=device)
        self.rank = torch.tensor([path[-1] for path in paths], device=device)
        self.path = ancestry(self.parents[None])[0]
        self.num_levels = len(paths[-1])
        self.num_ranks = 1 + max(path[-1] for path in paths)
        self.nodes_to_depth = [sum(len(path) <= depth for path in paths) for depth in range(self.num_levels + 1)]

    def guesses(self, rows: list[Row]) -> Tensor:
        """Ranked guesses of the heads: int64 [rows, levels, ranks]."""
        # The engine may have committed less than was offered: what counts is how far the row really went.
        hidden = torch.stack([row.state.states[len(row.tokens) - row.state.base - 1] for row in rows])
        logits = [self.heads.logits(k, hidden, self.lm_head) for k in range(self.num_levels)]
        return torch.stack(logits, 1).topk(self.num_ranks).indices

    def propose(self, rows: list[Row]) -> Window:
        """Nodes deeper than a row has room for are left out. The forward that reads a prompt has no drafts."""
        count = [0 if row.state is None else self.nodes_to_depth[min(row.room - 1, self.num_levels)] for row in rows]
        most = max(count)
        if not most:
            return Window.build(rows)
        drafting = [i for i, n in enumerate(count) if n]
        guesses = self.guesses([rows[i] for i in drafting])
        nodes = guesses.new_zeros(len(rows), most)
        nodes[drafting] = guesses[:, self.level[:most], self.rank[:most]]
        return Window.build(rows, nodes, count, depth=self.level[:most], visible=self.path[:most, :most])

    def accept(self, rows: list[Row], output: Output) -> Commit:
        window = output.window
        most = output.logits.shape[1] - 1
        targets = choose(output.logits, rows, self.temperature, 1 + self.window)
        if not most:
            self._remember(rows, output, targets[:, :0])
            return Commit.one(targets)
        parents, path = self.parents[:most].expand(len(rows), -1), self.path[:most, :most].expand(len(rows), -1, -1)
        ids = window.added(most)
        if self.acceptance == "greedy":
            passed = agreeing(ids, parents, targets, window.count)
        else:
            likely = typical(output.logits, ids, parents, self.epsilon, self.delta)
            passed = likely & (torch.arange(most, device=targets.device) < window.count[:, None])
        length, nodes, last = longest_path(passed, path)
        nodes = nodes[:, : self.num_levels]
        self._remember(rows, output, nodes)
        return Commit(
            walk(targets, nodes, length, last, ids),
            length + 1,
            kept=length,
            path=nodes,
            drafted=window.count,
            accepted=length,
            draft_forwards=(window.count > 0).long(),
            draft_positions=(window.count > 0).long(),
        )

    def _remember(self, rows: list[Row], output: Output, nodes: Tensor) -> None:
        """Hidden states of the last pending token and of a path (int64 [rows, path]), for the heads to start from."""
        window = output.window
        columns = (window.pending[:, None] + torch.nn.functional.pad(nodes, (1, 0), value=-1)).clamp(
            max=window.width - 1
        )
        states = output.hidden.gather(1, columns[:, :, None].expand(-1, -1, output.hidden.shape[-1]))
        for row, state in zip(rows, states, strict=True):
            row.state = _Hidden(len(row.tokens), state)
