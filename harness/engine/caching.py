"""The three cache modes (MARS §4.5, Table 5). A mode decides which committed tokens are stored and when; nothing else.

``cursor``  every forward stores the tokens that were pending in it; rows never wait.
``block``   the paper's: the current block is fed again at each forward, one extra forward per block stores it, and rows
            wait for each other at block boundaries.
``none``    nothing is ever stored: each forward feeds the whole sequence.
"""

from __future__ import annotations

from harness.engine.rows import Row
from harness.errors import UserError

MODES = ("cursor", "block", "none")
ACCEPT_LIMITS = ("block_size", "cache_block")


class CursorMode:
    """Store what was pending, and the added positions that a method keeps."""

    most_pending = 1  # tokens that can be pending after the prompt besides those of one commit
    left_pending = 1  # tokens of a finished block that are not stored with it

    def room(self, row: Row) -> int:
        """Most tokens that the next forward may commit."""
        return row.token_limit - row.new_tokens

    def stored(self, row: Row, pending: int, kept: int) -> int:
        """Cached length after a forward that fed ``pending`` tokens and kept ``kept`` added positions."""
        return row.cached + pending + kept

    def boundary(self, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """Rows that decode now, and rows that must first store a finished block."""
        return rows, []

    def admits(self, rows: list[Row]) -> bool:
        """Whether new rows may join the running ones now."""
        return True


class NoneMode(CursorMode):
    """Store nothing."""

    def stored(self, row: Row, pending: int, kept: int) -> int:
        return 0


class BlockMode(CursorMode):
    """Store the prompt when it is read, and a block of generated tokens when all rows have finished theirs.

    Under causal text a block's last token stays pending and opens the next block's windows. Block-causal text is stored
    in whole blocks, or a block's tokens would be cached without having seen its last one.
    """

    def __init__(self, block: int, text_block: int | None = None) -> None:
        self.block = self.most_pending = block
        self.left_pending = 1 if text_block is None else 0

    def _waits(self, row: Row) -> bool:
        is_full = row.new_tokens > 0 and row.new_tokens % self.block == 0
        return is_full and row.cached < len(row.tokens) - self.left_pending

    def room(self, row: Row) -> int:
        return min(super().room(row), self.block - row.new_tokens % self.block)

    def stored(self, row: Row, pending: int, kept: int) -> int:
        return max(row.cached, row.prompt_length)

    def boundary(self, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        running = [row for row in rows if not self._waits(row)]
        return (running, []) if running else ([], rows)

    def admits(self, rows: list[Row]) -> bool:
        return all(self._waits(row) for row in rows)


def cache_mode(name: str, block: int, text_block: int | None = None, text_block_start: str = "prompt") -> CursorMode:
    """The mode called ``name``.

    Args:
        block: tokens per block of the ``block`` cache.
        text_block, text_block_start: how committed text sees itself (``methods.contract.Method``).

    Raises:
        UserError: unknown name, a block below 1, or one that would cut a block of block-causal text.
    """
    if name == "cursor":
        return CursorMode()
    if name == "none":
        return NoneMode()
    if name != "block":
        raise UserError("cache", name, f"one of {', '.join(MODES)}")
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise UserError("cache_block", block, "a whole number of tokens, at least 1", "cache_block=16")
    if text_block is not None and (block % text_block or text_block_start != "prompt"):
        allowed = f"whole blocks of the method, which are {text_block} tokens counted from the {text_block_start}"
        raise UserError("cache_block", block, allowed, f"cache_block={4 * text_block}, or cache=cursor")
    return BlockMode(block, text_block)
