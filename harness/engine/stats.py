"""What one generation cost: raw counts per sequence, from which every reported ratio is derived."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class SequenceStats:
    """Counts of one sequence. A forward is one call of the target model, counted per sequence.

    Reading the prompt is one forward however it is chunked, and a row that waits in a batch counts none. Committed
    tokens include EOS or the token that completes a stop string, and nothing later.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    target_forwards: int = 0  # the forward that reads the prompt included
    draft_forwards: int = 0
    positions: int = 0  # window positions the target processed; reading the prompt counts as one, so greedy AR is 1.00
    draft_positions: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance_lengths: list[int] = field(default_factory=list)  # tokens committed by each target forward, 0 allowed
    prefill_seconds: float = 0.0  # whole time of the forwards that the row took part in: how long it waited
    decode_seconds: float = 0.0
    share_seconds: float = 0.0  # each forward's time divided among its rows: adds up over rows to the run's time
    # Shares as well, of the forwards after the prompt's: in the target model, and in what a method runs to draft.
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    finish_reason: str = ""  # eos | stop | length | context

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens per target forward; exactly 1.0 for greedy AR."""
        return self.new_tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def positions_per_token(self) -> float:
        """Window positions processed per committed token: the price of a wide window."""
        return self.positions / self.new_tokens if self.new_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Raw counts as plain values, for a record."""
        return asdict(self)
