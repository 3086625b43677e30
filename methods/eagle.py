"""EAGLE: a one-layer drafter that predicts the base's next hidden state (arXiv 2401.15077); EAGLE-2's dynamic tree."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from harness.engine.cache import CursorCache, cache_argument
from harness.engine.commit import Commit
from harness.engine.contract import Context
from harness.engine.forward import backbone, lm_head, run_window
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from harness.errors import UserError
from methods.accept import check_temperature, choose
from methods.contract import Example, Method, Objective, load_own_weights
from methods.trees import agreeing, ancestry, longest_path, walk


class Drafter(nn.Module):
    """One decoder layer of the base's own architecture over ``fc([embedding(x_{t+1}); h_t])``; it predicts h_{t+1}.

    The layer reads its input as it is (no input norm), and what it says is a final-norm state already (no final norm),
    so that the base's LM head reads it. Embedding and LM head are the base's and are not part of it.

    Args:
        model: the base; only its configuration and class are used.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        config = copy.deepcopy(model.config)
        # An embedding of one row stands in until it is removed: the base's own would be copied for nothing.
        config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, 1, None
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:1]
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.stack = type(backbone(model))._from_config(  # type: ignore[attr-defined]
            config, attn_implementation="sdpa", dtype=torch.float32
        )
        self.stack.embed_tokens = self.stack.norm = self.stack.layers[0].input_layernorm = nn.Identity()

    def forward(self, embeddings: Tensor, features: Tensor, **inputs: Any) -> Tensor:
        """Predicted states.

        Args:
            embeddings: [rows, n, hidden] of the tokens x_{t+1}.
            features: [rows, n, hidden], the states h_t.
            inputs: what the base's stack takes besides (positions, mask, cache).

        Returns:
            [rows, n, hidden], in the place of h_{t+1}.
        """
        pairs = self.fc(torch.cat([embeddings, features], -1))
        states: Tensor = self.stack(inputs_embeds=pairs, **inputs).last_hidden_state
        return states


@dataclass
class EagleObjective(Objective):
    """Regression to the base's next state, and agreement of what the LM head reads from it (EAGLE §4.2).

    Pair t is (x_{t+1}, h_t), stands at position t and predicts h_{t+1}, from which the LM head drafts x_{t+2}. A
    response is drafted from its second token on, the first being the base's own: those pairs have a loss.

    Attributes:
        noise: half-width of the uniform noise on the states that the drafter reads in training: at decoding it reads
            its own predictions, which err.
        regression_weight: of SmoothL1 between predicted and true states.
        soft_weight: of the cross-entropy between the LM head's distributions of either.
    """

    noise: float = 0.1
    regression_weight: float = 1.0
    soft_weight: float = 0.1

    def __post_init__(self) -> None:
        for key in self.option_names():
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise UserError(f"objective.{key}", value, "a number from 0")

    def attach(self, model: nn.Module) -> nn.Module:
        return Drafter(model).to(next(model.parameters()).device)

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """``ids`` int64 [batch, length], and ``drafts`` bool [batch, length − 1]: the pairs that have a loss."""
        length = max(len(e.ids) for e in examples)
        ids = torch.full((len(examples), length), self.pad_token_id)
        drafts = torch.zeros(len(examples), length - 1, dtype=torch.bool)
        for i, example in enumerate(examples):
            response = torch.tensor(example.response, dtype=torch.bool)
            ids[i, : len(response)] = torch.tensor(example.ids)
            drafts[i, : len(response) - 2] = response[1:-1] & response[2:]
        return {"ids": ids, "drafts": drafts}

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum, each part the mean over pairs; right padding needs no mask under causal attention."""
        assert self.own is not None
        ids, at, head = batch["ids"], batch["drafts"], lm_head(model)
        with torch.no_grad():
            states = backbone(model)(input_ids=ids, use_cache=False).last_hidden_state
            true = states[:, 1:][at]
            target = torch.softmax(head(true).float(), -1)
            embeddings = model.get_input_embeddings()(ids[:, 1:])  # type: ignore[operator]
        features = states[:, :-1]
        if self.own.training and self.noise:
            features = features + self.noise * (2 * torch.rand_like(features) - 1)
        predicted = self.own(embeddings, features, use_cache=False)[at]
        count = at.sum().clamp(min=1)  # a batch may have answers of one token only
        regression = nn.functional.smooth_l1_loss(predicted.float(), true.float(), reduction="sum")
        regression = regression / (count * true.shape[1])
        soft = nn.functional.cross_entropy(head(predicted).float(), target, reduction="sum") / count
        parts = {"regression": regression.detach(), "soft": soft.detach()}
        return self.regression_weight * regression + self.soft_weight * soft, parts


class DraftModel:
    """A drafter with its base's embedding and LM head, in the shape of a causal LM, for ``run_window``."""

    def __init__(self, drafter: Drafter, base: Any) -> None:
        self.drafter, self.base = drafter, base
        self.config, self.device = base.config, base.device

    def get_decoder(self) -> DraftModel:
        """The stack is this object itself."""
        return self

    def get_output_embeddings(self) -> nn.Module:
        """The base's LM head."""
        return lm_head(self.base)

    def forward(self, input_ids: Tensor, features: Tensor, cache: CursorCache, **inputs: Any) -> SimpleNamespace:
        """Predicted states of pairs: tokens x_{t+1} int64 [rows, n] and ``features`` h_t [rows, n, hidden]."""
        embeddings = self.base.get_input_embeddings()(input_ids)
        inputs |= {cache_argument(self.drafter.stack): cache}
        return SimpleNamespace(last_hidden_state=self.drafter(embeddings, features, **inputs))

    __call__ = forward


@dataclass
class _Reading:
    """How far a row's drafter has read, and what it can read next.

    Attributes:
        stored: pairs in the drafter's cache, all of committed tokens and the base's own states.
        features: [n, hidden], the base's states from position ``stored`` on; the last ones may be of tokens that were
            drafted and not committed.
    """

    features: Tensor
    stored: int = 0

    def trim(self, num_tokens: int) -> None:
        """Keep states that a committed token follows: a pair needs both."""
        self.features = self.features[: num_tokens - 1 - self.stored]


@dataclass
class _Tree:
    """Drafts of all rows, level by level, so that a parent comes before its children.

    Attributes:
        ids, parents, level: int64 [rows, n]; parent −1 is the last committed token, whose children have level 1.
        score: fp32 [rows, n], log-probability of a node's path under the drafter; −inf where a row has no such node.
    """

    ids: Tensor
    parents: Tensor
    level: Tensor
    score: Tensor

    def grown(self, parents: Tensor, logits: Tensor, width: int, deepest: Tensor) -> _Tree:
        """With the ``width`` most probable children of each of ``parents``.

        Args:
            parents: int64 [rows, m].
            logits: [rows, m, vocab], the drafter's after each of them.
            deepest: int64 [rows, 1], the last level that a row has.
        """
        best = torch.log_softmax(logits.float(), -1).topk(width, -1)
        above = parents.repeat_interleave(width, 1)
        level = pad(self.level, (1, 0)).gather(1, above + 1) + 1  # of the last committed token: 0, as its score
        score = pad(self.score, (1, 0)).gather(1, above + 1) + best.values.flatten(1)
        new = (best.indices.flatten(1), above, level, score.masked_fill(level > deepest, -torch.inf))
        old = (self.ids, self.parents, self.level, self.score)
        return _Tree(*(torch.cat(pair, 1) for pair in zip(old, new, strict=True)))

    def take(self, numbers: Tensor) -> _Tree:
        """The nodes with these numbers, int64 [rows, n] in ascending order, with the parents of each among them."""
        parents = self.parents.gather(1, numbers)
        places = torch.where(parents < 0, -1, torch.searchsorted(numbers, parents.clamp(min=0)))
        return _Tree(self.ids.gather(1, numbers), places, self.level.gather(1, numbers), self.score.gather(1, numbers))

    def best(self, num_nodes: int) -> _Tree:
        """The nodes with the highest scores, still level by level (EAGLE-2 §4.2, reranking).

        A parent's score is at least its child's and it comes first, so that a stable sort keeps whole paths.
        """
        return self.take(_best(self.score, num_nodes))


def _best(score: Tensor, count: int) -> Tensor:
    """Columns of the highest scores of each row, in ascending order; of equal ones the first."""
    return score.argsort(dim=1, descending=True, stable=True)[:, :count].sort(1).values


@dataclass
class Eagle(Method):
    """Draft a tree of likely continuations with the one-layer drafter; verify it in one forward of the base.

    Before it drafts, the drafter re-reads the base's true states of what was committed. A path of drafts is accepted as
    far as the base says the same, so that answers are the base's, greedy or sampled at ``temperature`` above 0.

    Attributes:
        depth: levels of the tree: most tokens drafted ahead, and forwards of the drafter per forward of the base.
        top_k: children of a node, and nodes of a level that get children: those of the most probable paths (EAGLE-2
            §4.1). 1 drafts a chain.
        num_nodes: nodes of the most probable paths, of all drafted, that the base verifies; at most all of them.
    """

    name: ClassVar[str] = "eagle"
    checkpoint_kind: ClassVar[str] = "eagle"
    lossless: ClassVar[bool] = True
    objective: ClassVar[type[Objective] | None] = EagleObjective

    depth: int = 5
    top_k: int = 4
    num_nodes: int = 16
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for key in ("depth", "top_k", "num_nodes"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                fix = f"method.{key}={getattr(Eagle, key)}"
                raise UserError(f"method.{key}", value, "a whole number, at least 1", fix)
        check_temperature(self.temperature)
        drafted = self.top_k + (self.depth - 1) * self.top_k**2
        self.num_nodes = min(self.num_nodes, drafted)  # two settings that verify all of them are one cell

    @property
    def window(self) -> int:
        return self.num_nodes

    @property
    def caches(self) -> Sequence[CursorCache]:
        return (self.cache,)

    def start(self, context: Context) -> None:
        super().start(context)
        base = context.target.model
        drafter = load_own_weights(Drafter(base), context.target)
        drafter.stack.rotary_emb = backbone(base).rotary_emb  # whose frequencies stay precise in 16 bit
        self.model = DraftModel(drafter, base)
        self.nothing = drafter.fc.weight.new_zeros(0, base.config.hidden_size)
        # A long row may be beside one that has much to read: room for both.
        self.cache = CursorCache(1, context.num_slots, 2 * context.max_length + self.depth * self.top_k)

    def admit(self, row: Row) -> None:
        row.state = _Reading(self.nothing)

    def observe(self, rows: list[Row], output: Output) -> None:
        for i, (row, fed) in enumerate(zip(rows, output.window.pending.tolist(), strict=True)):
            self._learn(row, output.hidden[i, :fed])

    def _learn(self, row: Row, states: Tensor) -> None:
        """Remember the base's states from position ``row.cached`` on; a cache mode may feed known ones again."""
        reading = row.state
        reading.trim(len(row.tokens))
        known = reading.stored + len(reading.features)
        reading.features = torch.cat([reading.features, states[known - row.cached :]])

    def propose(self, rows: list[Row]) -> Window:
        for row in rows:
            row.state.trim(len(row.tokens))
        # The first forward has no states to draft from; a draft needs room for itself and the base's token after it.
        levels = [min(self.depth, row.room - 1) if row.new_tokens else 0 for row in rows]
        self.draft_forwards, self.draft_positions = [0] * len(rows), [0] * len(rows)
        self.parents = None
        if not any(levels):
            return Window.build(rows)
        tree = self._expand(rows, levels).best(self.num_nodes)
        self.parents = tree.parents
        count = (tree.score > -torch.inf).sum(1)
        return Window.build(rows, tree.ids, count, depth=tree.level - 1, visible=ancestry(tree.parents))

    def _expand(self, rows: list[Row], levels: list[int]) -> _Tree:
        """All drafts: ``top_k`` after the last token, then ``top_k`` after each of a level's ``top_k`` best."""
        if at_start := [i for i, row in enumerate(rows) if levels[i] and not row.state.stored and len(row.tokens) > 2]:
            # Prompts are read apart, or all rows would be padded to them.
            self._read(rows, at_start, [len(rows[i].state.features) - 1 for i in at_start])
        pairs = [len(row.state.features) if most else 0 for row, most in zip(rows, levels, strict=True)]
        output = self._read(rows, list(range(len(rows))), pairs)
        logits, device = output.logits, output.logits.device  # [rows, parents, vocab]
        last = (output.window.pending - 1).clamp(min=0)
        states = output.hidden[torch.arange(len(rows), device=device), last][:, None]  # [rows, parents, hidden]
        width = min(self.top_k, logits.shape[-1])
        deepest = torch.tensor(levels, device=device)[:, None]
        parents = torch.full_like(deepest, -1)  # of the drafts to come
        fed, features = parents[:, :0], states[:, :0]  # drafts that have children, and what the drafter reads with them
        tree = _Tree(fed, fed, fed, fed.float())
        for level in range(1, max(levels) + 1):
            before = tree.ids.shape[1]
            tree = tree.grown(parents, logits, width, deepest)
            if level == max(levels):
                break
            chosen = _best(tree.score[:, before:], width)
            source = (chosen // width)[:, :, None].expand(-1, -1, states.shape[2])
            features = torch.cat([features, states.gather(1, source)], 1)
            parents = before + chosen
            fed = torch.cat([fed, parents], 1)
            count = [fed.shape[1] if level < most else 0 for most in levels]
            states, logits = self._feed(rows, tree.take(fed), count, features, width)
        return tree

    def _read(self, rows: list[Row], which: list[int], pairs: list[int]) -> Output:
        """Store true pairs of the rows numbered ``which``; the prediction after each row's last one comes back."""
        chosen = [rows[i] for i in which]
        texts = [replace(row, tokens=row.tokens[1:], cached=row.state.stored) for row in chosen]
        window = Window.build(texts, pending=pairs, logits=torch.zeros(1, dtype=torch.long))
        features = [row.state.features[:n] for row, n in zip(chosen, pairs, strict=True)]
        output = self._run(chosen, window, pad_sequence(features, batch_first=True))
        for i, row, n in zip(which, chosen, pairs, strict=True):
            row.state = _Reading(row.state.features[n:], row.state.stored + n)
            self._count(i, n)
        return output

    def _feed(
        self, rows: list[Row], fed: _Tree, count: list[int], features: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        """Feed drafts after the true pairs; states and logits of the last ``width``, [rows, width, …].

        The whole tree is fed again at each level: its keys and values are no prefix that every branch may see.
        """
        num_fed = fed.ids.shape[1]
        window = Window.build(
            rows, fed.ids, count, pending=[0] * len(rows), depth=fed.level - 1, visible=ancestry(fed.parents),
            logits=torch.arange(num_fed - width, num_fed) + 1,
        )  # fmt: skip
        output = self._run(rows, window, features)
        for i, n in enumerate(count):
            self._count(i, n)
        return output.hidden[:, -width:], output.logits

    def _run(self, rows: list[Row], window: Window, features: Tensor) -> Output:
        slots, stored = [row.slot for row in rows], [row.state.stored for row in rows]
        return run_window(self.model, self.cache, window, slots, stored, features=features)

    def _count(self, row: int, positions: int) -> None:
        self.draft_forwards[row] += positions > 0
        self.draft_positions[row] += positions

    def accept(self, rows: list[Row], output: Output) -> Commit:
        window = output.window
        targets = choose(output.logits, rows, self.temperature, 1 + self.window)
        num_nodes = targets.shape[1] - 1
        nodes, length, ids = targets[:, :0], torch.zeros_like(targets[:, 0]), targets
        if self.parents is not None:
            parents = self.parents[:, :num_nodes]
            drafts = window.added(num_nodes)
            passed = agreeing(drafts, parents, targets, window.count)
            length, nodes, last = longest_path(passed, ancestry(parents))
            ids = walk(targets, nodes, length, last, drafts)
        for i, row in enumerate(rows):
            pending = len(row.pending)
            path = output.hidden[i, (pending + nodes[i]).clamp(max=window.width - 1)]
            self._learn(row, torch.cat([output.hidden[i, :pending], path]))
        cost = [torch.tensor(n, device=targets.device) for n in (self.draft_forwards, self.draft_positions)]
        return Commit(
            ids, length + 1, kept=length, path=nodes, drafted=window.count, accepted=length,
            draft_forwards=cost[0], draft_positions=cost[1],
        )  # fmt: skip
