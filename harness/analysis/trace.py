"""A document's answer, token by token, and which of its tokens one forward committed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

OBSCURED = "base64:"  # what the answers of gated benchmarks begin with on disk


@dataclass(frozen=True)
class Step:
    """What one forward of the target committed.

    Attributes:
        pieces: the text that each of its tokens adds to the answer; empty for a token that adds none (EOS, a part of a
            character, what stands behind a stop string). No pieces: the forward committed nothing.
    """

    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        """What the forward added to the answer."""
        return "".join(self.pieces)

    @property
    def num_tokens(self) -> int:
        """Tokens that it committed."""
        return len(self.pieces)


def read_steps(document: Mapping[str, Any]) -> list[Step] | None:
    """The forwards of one answer in their order; their texts together are the answer.

    Args:
        document: a row of the frame ``documents`` with its texts and the lists ``acceptance_lengths`` and
            ``token_ends``.

    Returns:
        None where this is not known: no answer was generated, the record is older than ``token_ends``, the answer is
        of a gated benchmark and stored obscured, or its lists do not belong together.
    """
    text = document.get("text")
    lengths, ends = _whole(document.get("acceptance_lengths")), _whole(document.get("token_ends"))
    if not isinstance(text, str) or text.startswith(OBSCURED) or not lengths or not ends:
        return None
    bounds = [0, *ends]
    if sum(lengths) != len(ends) or bounds[-1] != len(text) or any(a > b for a, b in pairwise(bounds)):
        return None
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    starts = [0, *accumulate(lengths)]
    return [Step(tuple(pieces[a:b])) for a, b in pairwise(starts)]


def _whole(values: Any) -> Sequence[int]:
    """A list of a frame, which is missing where the record does not have it."""
    return [] if values is None or not hasattr(values, "__len__") else [int(value) for value in values]
