"""Log-likelihoods of given texts: the loaded model read as a plain causal LM, whatever method decodes with it.

A document's continuations of one context (the choices of a question) are branches of one window: they see the context
and themselves, so the context is read once and one forward scores them all. A long context is read in pieces, and
logits exist for the scored positions alone, some at a time.

Probabilities are over all the model's logits, the mask token's included, as in lm-eval's ``hf`` on the same weights. A
mask that takes a share of them that could change a score is told (``Scorer.mask_share``), never passed over.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.engine.cache import CursorCache
from harness.engine.forward import lm_head, run_window
from harness.engine.rows import Request, Row
from harness.engine.window import Window

log = logging.getLogger(__name__)

PIECE = 1024  # tokens of a context, and tokens of its continuations, that one window may hold of a row
LOGITS = 1 << 25  # logits in memory at a time
MASK_SHARE = 1e-3  # probability of the mask token from which it is worth a word: a score may be off by as many nats

Pair = tuple[list[int], list[int]]  # ids of a context and of its continuation, both with at least one


@dataclass(frozen=True)
class Document:
    """What is asked about one document: for each request its pairs, whose log-likelihoods add up."""

    key: Hashable
    requests: list[list[Pair]]

    @property
    def longest(self) -> int:
        """Tokens that the model reads for its longest pair: the last one is only predicted."""
        return max((len(a) + len(b) - 1 for pairs in self.requests for a, b in pairs), default=0)


@dataclass
class Scores:
    """A document's answers, in the order of its requests.

    Attributes:
        loglikelihoods: natural logarithm of each request's probability.
        is_greedy: whether every token of it is the model's first choice.
        prompt_tokens: tokens of its contexts, one that several continuations share counted once.
        seconds: its share of the forwards' wall-clock time.
    """

    key: Hashable
    loglikelihoods: list[float]
    is_greedy: list[bool]
    prompt_tokens: int = 0
    seconds: float = 0.0
    left: int = 0  # contexts that are still to be read


@dataclass(eq=False)
class _Line:
    """One context on its way through the model; ``row`` holds the trunk, which is read causally.

    Attributes:
        targets: (trunk position, token that follows there, request).
        branches: (request, continuation) beside each other after the trunk; their first tokens are among the targets.
    """

    scores: Scores
    trunk: list[int]
    targets: list[tuple[int, int, int]]
    branches: list[tuple[int, list[int]]] = field(default_factory=list)
    row: Row = field(init=False)

    def __post_init__(self) -> None:
        self.row = Row(Request(self.trunk), self.trunk, slot=0, generator=torch.Generator(), token_limit=0)

    @property
    def length(self) -> int:
        """Tokens fed in all; the last token of a continuation is only predicted."""
        return len(self.trunk) + sum(len(tokens) - 1 for _, tokens in self.branches)

    def take(self) -> list[tuple[int, list[int]]]:
        """Branches for the window that ends the trunk, or follows it: as many as a piece holds."""
        taken, room = 0, PIECE
        while taken < len(self.branches) and (room := room - len(self.branches[taken][1]) + 1) >= 0:
            taken += 1
        found, self.branches = self.branches[:taken], self.branches[taken:]
        return found


class Scorer:
    """Scores documents with a loaded model.

    Args:
        loaded: its model and ``mask_token_id`` are used.
        batch_size: contexts read together.

    ``mask_share`` is the largest probability that the mask token had at any scored position so far.
    """

    def __init__(self, loaded: Any, batch_size: int = 1) -> None:
        self.model, self.name, self.mask_token_id = loaded.model, loaded.name, loaded.mask_token_id
        self.batch_size = batch_size
        self.mask_share = 0.0

    def run(self, documents: Sequence[Document]) -> Iterator[Scores]:
        """Score documents; they come as they finish, the longest contexts first."""
        lines: list[_Line] = []
        for document in documents:
            scores = Scores(document.key, [0.0] * len(document.requests), [True] * len(document.requests))
            own = _lines(document, scores)
            scores.left = len(own)
            lines += own
            if not own:
                yield scores
        lines.sort(key=lambda line: -line.length)
        for start in range(0, len(lines), self.batch_size):
            batch = lines[start : start + self.batch_size]
            self._read(batch)
            for line in batch:
                line.scores.left -= 1
                if not line.scores.left:
                    yield line.scores
        if self.mask_share > MASK_SHARE:
            log.warning(
                "%s: its mask token has up to %.1f%% of the probability where answers are scored; it counts like any "
                "other token, as in lm-eval's hf on these weights",
                self.name,
                100 * self.mask_share,
            )

    def _read(self, lines: list[_Line]) -> None:
        """Take a batch of contexts through the model, one piece of each per forward."""
        widest = max(min(len(line.trunk), PIECE) + min(line.length - len(line.trunk), PIECE) for line in lines)
        longest = max(line.length for line in lines)
        cache = CursorCache(self.model.config.num_hidden_layers, len(lines), longest + widest)
        for slot, line in enumerate(lines):
            line.row.slot = slot
        while lines:
            self._step(lines, cache)
            lines = [line for line in lines if line.row.pending or line.branches]

    def _step(self, lines: list[_Line], cache: CursorCache) -> None:
        started = time.perf_counter()
        rows = [line.row for line in lines]
        fed = [min(len(row.pending), PIECE) for row in rows]
        branches = [line.take() if n == len(line.row.pending) else [] for line, n in zip(lines, fed, strict=True)]
        added, count, depth, visible = _layout(branches)
        window = Window.build(
            rows, added, count, depth=depth, visible=visible, pending=fed, logits=torch.zeros(0, dtype=torch.long)
        )
        output = run_window(self.model, cache, window, [row.slot for row in rows], [row.cached for row in rows])
        wanted = _Wanted()
        for i, (line, n) in enumerate(zip(lines, fed, strict=True)):
            for position, token, request in line.targets:
                if line.row.cached <= position < line.row.cached + n:
                    wanted.add(i, position - line.row.cached, token, request)
            column = n
            for request, tokens in branches[i]:
                for token in tokens[1:]:
                    wanted.add(i, column, token, request)
                    column += 1
            line.row.cached += n
        self._score(lines, output.hidden, wanted)
        share = (time.perf_counter() - started) / len(lines)
        for line in lines:
            line.scores.seconds += share

    @torch.no_grad()
    def _score(self, lines: list[_Line], hidden: Tensor, wanted: _Wanted) -> None:
        """Add the wanted tokens' log-probabilities to their requests; logits of some positions at a time."""
        if not wanted.positions:  # pieces of contexts
            return
        at = torch.tensor(list(wanted.positions), device=hidden.device)
        states = hidden[at[:, 0], at[:, 1]]  # [positions, hidden]
        step = max(1, LOGITS // self.model.config.vocab_size)
        for start in range(0, len(states), step):
            logits = lm_head(self.model)(states[start : start + step])
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            total = logits.logsumexp(-1)
            asked = [entry for k in range(start, min(start + step, len(states))) for entry in wanted.entries[k]]
            index = torch.tensor([(entry.place - start, entry.token) for entry in asked], device=logits.device)
            found = logits[index[:, 0], index[:, 1]] - total[index[:, 0]]
            is_top = logits.argmax(-1)[index[:, 0]] == index[:, 1]
            for entry, logprob, top in zip(asked, found.tolist(), is_top.tolist(), strict=True):
                scores = lines[entry.line].scores
                scores.loglikelihoods[entry.request] += logprob
                scores.is_greedy[entry.request] &= top
            if self.mask_token_id is not None:
                self.mask_share = max(self.mask_share, float((logits[:, self.mask_token_id] - total).max().exp()))


@dataclass(frozen=True)
class _Entry:
    place: int  # among the positions
    line: int
    token: int
    request: int


class _Wanted:
    """Positions of a window that are scored, each once, with what is asked there."""

    def __init__(self) -> None:
        self.positions: dict[tuple[int, int], int] = {}  # (line, column): place in this order
        self.entries: dict[int, list[_Entry]] = defaultdict(list)

    def add(self, line: int, column: int, token: int, request: int) -> None:
        place = self.positions.setdefault((line, column), len(self.positions))
        self.entries[place].append(_Entry(place, line, token, request))


def _lines(document: Document, scores: Scores) -> list[_Line]:
    """A line per context; a single continuation, and one longer than a piece, is read as part of the trunk."""
    contexts: dict[tuple[int, ...], list[tuple[int, list[int]]]] = defaultdict(list)
    for request, pairs in enumerate(document.requests):
        for ids, continuation in pairs:
            contexts[tuple(ids)].append((request, continuation))
    scores.prompt_tokens = sum(map(len, contexts))
    lines = []
    for context, found in contexts.items():
        last = len(context) - 1
        together = [one for one in found if len(one[1]) <= PIECE] if len(found) > 1 else []
        if together:
            targets = [(last, tokens[0], request) for request, tokens in together]
            branches = [one for one in together if len(one[1]) > 1]
            lines.append(_Line(scores, list(context), targets, branches))
        for request, tokens in found:
            if not together or len(tokens) > PIECE:
                targets = [(last + k, token, request) for k, token in enumerate(tokens)]
                lines.append(_Line(scores, [*context, *tokens[:-1]], targets))
    return lines


def _layout(branches: Sequence[list[tuple[int, list[int]]]]) -> tuple[Tensor, list[int], Tensor, Tensor]:
    """Branches as added positions: ids [rows, most], count per row, depth [rows, most], visible [rows, most, most]."""
    texts = [[tokens[:-1] for _, tokens in row] for row in branches]
    count = [sum(map(len, row)) for row in texts]
    most = max(count)
    added, depth = torch.zeros(len(texts), most, dtype=torch.long), torch.zeros(len(texts), most, dtype=torch.long)
    visible = torch.zeros(len(texts), most, most, dtype=torch.bool)
    for i, row in enumerate(texts):
        start = 0
        for text in row:
            end = start + len(text)
            added[i, start:end] = torch.tensor(text)
            depth[i, start:end] = torch.arange(len(text))
            visible[i, start:end, start:end] = torch.ones(len(text), len(text), dtype=torch.bool).tril()
            start = end
    return added, count, depth, visible
