"""How many tokens can a language model commit per forward pass, and at what cost in quality?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.decoding import decode

__all__ = ["decode"]


def __getattr__(name: str) -> Any:
    """``harness.decode``, imported when first asked for: torch takes seconds, and a dry run needs none of it."""
    if name == "decode":
        from harness.decoding import decode

        return decode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
