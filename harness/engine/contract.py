"""What the loop needs of a model and of a method, as types; ``methods/contract.py`` has the base class to subclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.engine.cache import CursorCache
from harness.engine.commit import Commit
from harness.engine.rows import Row
from harness.engine.window import Output, Window


class Target(Protocol):
    """A loaded model with its tokenizer and special ids."""

    model: Any
    tokenizer: Any
    mask_token_id: int | None
    eos_token_ids: tuple[int, ...]
    context_length: int
    checkpoint_dir: Path | None  # where a method finds weights of its own (heads, a drafter)
    manifest: Any  # how the checkpoint was trained, None where nobody knows
    companions: Mapping[str, Any]  # further models that the method asked for


@dataclass
class Context:
    """What the engine hands to a method before the first forward.

    Attributes:
        target: the loaded target; a method calls its model only through windows.
        num_slots: rows that can be alive at once.
        max_length: tokens that a row can reach, prompt included.
        most_tokens: tokens that one forward may commit where the cache mode says so, instead of the method's own block.
    """

    target: Target
    num_slots: int
    max_length: int
    most_tokens: int | None = None


class Decoder(Protocol):
    """The decoding half of a method (see ``methods.contract.Method`` for what each part means)."""

    @property
    def name(self) -> str: ...
    @property
    def window(self) -> int: ...
    @property
    def text_block(self) -> int | None: ...
    @property
    def text_block_start(self) -> str: ...
    @property
    def caches(self) -> Sequence[CursorCache]: ...
    def fit(self, manifest: Any) -> None: ...
    def start(self, context: Context) -> None: ...
    def admit(self, row: Row) -> None: ...
    def evict(self, row: Row) -> None: ...
    def observe(self, rows: list[Row], output: Output) -> None: ...
    def propose(self, rows: list[Row]) -> Window: ...
    def accept(self, rows: list[Row], output: Output) -> Commit: ...
