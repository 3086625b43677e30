"""What enters the loop (requests), what lives in it (rows) and what leaves it (completions)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from harness.engine.stats import SequenceStats


@dataclass(frozen=True)
class Request:
    """One prompt to continue, already tokenised.

    ``key`` comes back on the completion unchanged; ``seed`` starts the row's own random generator, so that a document
    draws the same numbers in whatever batch it lands.
    """

    prompt_ids: list[int]
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    key: Hashable = None
    seed: int = 0


class Draft(NamedTuple):
    """A draft that the target judged: the confidence that it was proposed with (NaN: not known), and the verdict."""

    confidence: float
    is_right: bool


@dataclass(frozen=True)
class Step:
    """What one target forward did.

    Attributes:
        token_ids: tokens that it committed.
        confidences: what the method saw for each (empty if it saw none).
        draft_forwards: forwards of a draft model that went before it.
        drafts: of a method that proposes a chain with confidences: its drafts in order, up to the first wrong one.
    """

    token_ids: list[int]
    confidences: list[float] = field(default_factory=list)
    draft_forwards: int = 0
    drafts: list[Draft] = field(default_factory=list)


@dataclass
class Completion:
    """One finished generation: ids include the token that ended it, the text excludes EOS and the stop string.

    ``token_ends`` says where in the text each token ends, in characters.
    """

    key: Hashable
    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    stats: SequenceStats
    trace: list[Step]
    token_ends: list[int] = field(default_factory=list)


@dataclass(eq=False)  # a row is itself; comparing fields would read whole texts
class Row:
    """A sequence being decoded: ``tokens[:cached]`` have keys and values in the cache, ``tokens[cached:]`` are pending.

    ``slot`` is its line in every cache; ``room`` is the most tokens that the next forward may commit; ``state`` belongs
    to the method.
    """

    request: Request
    tokens: list[int]
    slot: int
    generator: torch.Generator
    token_limit: int  # new tokens at most: the request's cap, or what the context leaves
    cached: int = 0
    room: int = 0
    state: Any = None
    stats: SequenceStats = field(default_factory=SequenceStats)
    trace: list[Step] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def new_tokens(self) -> int:
        """Tokens committed so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> list[int]:
        """Committed tokens (the whole prompt at first) whose keys and values are not in the cache."""
        return self.tokens[self.cached :]
