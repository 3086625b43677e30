"""Where a generation ends inside a newly committed span: EOS ids and stop strings, whichever completes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopCheck:
    """Searches each newly committed span; nothing after the token that completes a stop is kept."""

    def __init__(self, tokenizer: Any, eos_token_ids: Sequence[int]) -> None:
        self.tokenizer, self.eos = tokenizer, frozenset(eos_token_ids)

    def find(self, tokens: Sequence[int], fresh: int, stop: Sequence[str]) -> tuple[int, str] | None:
        """First end within the last ``fresh`` of the generated ``tokens`` (prompt excluded).

        Returns:
            Number of tokens to keep and the reason (``eos`` or ``stop``), or None.
        """
        start = len(tokens) - fresh
        end = next((i + 1 for i in range(start, len(tokens)) if tokens[i] in self.eos), None)
        found = self._string(tokens if end is None else tokens[:end], start, stop) if stop else None
        if found is not None and (end is None or found < end):
            return found, "stop"
        return None if end is None else (end, "eos")

    def _string(self, tokens: Sequence[int], start: int, stop: Sequence[str]) -> int | None:
        # A token is at least one byte, so a stop string that ends in the fresh span began at most this far before it.
        overlap = max(len(s.encode()) for s in stop)
        begin = max(0, start - overlap)

        def completes(end: int) -> bool:
            text = self.tokenizer.decode(tokens[begin:end], skip_special_tokens=False)
            return any(s in text for s in stop)

        if not completes(len(tokens)):
            return None
        return next(end for end in range(start + 1, len(tokens) + 1) if completes(end))

    def text(self, tokens: Sequence[int], stop: Sequence[str]) -> str:
        """Generated text without special tokens, cut before the first stop string."""
        text = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        cuts = [at for s in stop if (at := text.find(s)) >= 0]
        return text[: min(cuts)] if cuts else text

    def ends(self, tokens: Sequence[int], text: str) -> list[int]:
        """Where in ``text`` (as ``text`` gives it) each token ends, in characters; the last ends with it.

        A token that completes no character ends where the one before it does. Only the tokens since the last whole
        character but one are decoded together, because tokens may be spelt differently at the start of a text.
        """
        found, end, start, read = [], 0, 0, 0
        for i in range(1, len(tokens) + 1):
            before = self.tokenizer.decode(tokens[start:read], skip_special_tokens=True)
            now = self.tokenizer.decode(tokens[start:i], skip_special_tokens=True)
            if len(now) > len(before) and not now.endswith("\N{REPLACEMENT CHARACTER}"):
                end, start, read = end + len(now) - len(before), read, i
            found.append(min(end, len(text)))
        return [*found[:-1], len(text)] if found else []
