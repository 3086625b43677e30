"""The one decode loop: batching, cache, positions, stopping and accounting for every method.

while rows are left:
    fill free slots                     (admit)
    read new prompts, or store blocks   (the engine's own forwards)
    ask the method what to feed         (propose)  -> Window
    run the target once                 (forward)  -> Output
    ask the method what to keep         (accept)   -> Commit
    commit, stop, count                 (apply)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch

from harness.engine.cache import CursorCache
from harness.engine.caching import ACCEPT_LIMITS, cache_mode
from harness.engine.commit import Commit
from harness.engine.contract import Context, Decoder, Target
from harness.engine.forward import run_window
from harness.engine.rows import Completion, Draft, Request, Row, Step
from harness.engine.stop import StopCheck
from harness.engine.window import Output, Window
from harness.errors import UserError


class Engine:
    """Decodes requests with one model and one method.

    Args:
        loaded: the target model with its tokenizer and special ids.
        method: says what to feed and what to keep.
        batch_size: rows decoded together.
        cache: ``cursor``, ``block`` or ``none``.
        cache_block: tokens per block of the ``block`` cache.
        accept_limit: under the ``block`` cache, tokens that a forward may commit: ``block_size`` (the paper's text) or
            ``cache_block`` (the authors' code).
        prefill_chunk: longest piece of a prompt read at once; whole prompts when None.

    Raises:
        UserError: a setting out of range.
    """

    def __init__(
        self,
        loaded: Target,
        method: Decoder,
        *,
        batch_size: int = 1,
        cache: str = "cursor",
        cache_block: int = 16,
        accept_limit: str = "block_size",
        prefill_chunk: int | None = None,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UserError("batch_size", batch_size, "a whole number of rows, at least 1")
        if accept_limit not in ACCEPT_LIMITS:
            raise UserError("accept_limit", accept_limit, f"one of {', '.join(ACCEPT_LIMITS)}")
        if prefill_chunk is not None and (isinstance(prefill_chunk, bool) or prefill_chunk < 1):
            raise UserError("prefill_chunk", prefill_chunk, "a whole number of tokens, at least 1, or null")
        method.fit(loaded.manifest)
        self.loaded, self.method, self.batch_size = loaded, method, batch_size
        self.mode = cache_mode(cache, cache_block, method.text_block, method.text_block_start)
        self.most_tokens = cache_block if cache == "block" and accept_limit == "cache_block" else None
        self.prefill_chunk = prefill_chunk
        self.stop = StopCheck(loaded.tokenizer, loaded.eos_token_ids)

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Decode all requests; completions come as they finish, not in order of request.

        Raises:
            UserError: a prompt that is empty or fills the context, before anything is decoded.
        """
        queue = deque(requests)
        for request in queue:
            self._check(request)
        if not queue:
            return
        num_slots = min(self.batch_size, len(queue))
        longest = max(len(r.prompt_ids) + self._token_limit(r) for r in queue)
        self.method.start(Context(self.loaded, num_slots, longest, self.most_tokens))
        # A window is as wide as its widest row, also for the longest row: leave room for both at their most.
        widest = self.method.window + max(self.method.window + 1, self.mode.most_pending) + (self.prefill_chunk or 0)
        num_layers = self.loaded.model.config.num_hidden_layers
        self.cache = CursorCache(num_layers, num_slots, longest + widest)
        rows: list[Row] = []
        while queue or rows:
            if self.mode.admits(rows):
                rows += self._admit(queue, len(rows), num_slots)
            unread = [row for row in rows if not row.stats.target_forwards]
            running, storing = self.mode.boundary([row for row in rows if row.stats.target_forwards])
            if unread:
                self._decode(unread)
            elif storing:
                self._store(storing, [len(row.pending) - self.mode.left_pending for row in storing])
            else:
                self._decode(running)
            done = [row for row in rows if row.stats.finish_reason]
            for row in done:
                self._release(row, rows)
                yield self._completion(row)

    def _check(self, request: Request) -> None:
        length, context = len(request.prompt_ids), self.loaded.context_length
        if not length:
            raise UserError("prompt", request.key, "at least one token")
        if length >= context:
            raise UserError(
                "prompt",
                request.key,
                f"{length} tokens do not fit the model's context of {context} with room for an answer",
                "shorten the prompt, or use a model with a longer context",
            )
        if request.max_new_tokens < 1:
            raise UserError("max_new_tokens", request.max_new_tokens, "a whole number of tokens, at least 1")

    def _token_limit(self, request: Request) -> int:
        return min(request.max_new_tokens, self.loaded.context_length - len(request.prompt_ids))

    def _admit(self, queue: deque[Request], num_rows: int, num_slots: int) -> list[Row]:
        """Rows sit in slots 0 … n−1 without gaps, so that their cache is a view; new ones enter at the end."""
        admitted: list[Row] = []
        while queue and num_rows + len(admitted) < num_slots:
            request = queue.popleft()
            generator = torch.Generator().manual_seed(request.seed)
            row = Row(
                request, list(request.prompt_ids), num_rows + len(admitted), generator, self._token_limit(request)
            )
            row.stats.prompt_tokens = row.prompt_length
            self.method.admit(row)
            admitted.append(row)
        return admitted

    def _release(self, row: Row, rows: list[Row]) -> None:
        """Take a row out; the row in the last slot moves into the gap."""
        self.method.evict(row)
        rows.remove(row)
        last = max(rows, key=lambda r: r.slot, default=None)
        if last is not None and last.slot > row.slot:
            self.cache.move(last.slot, row.slot, last.cached)
            for cache in self.method.caches:
                cache.move(last.slot, row.slot)  # whose length only the method knows
            last.slot = row.slot
            rows.sort(key=lambda r: r.slot)

    @torch.no_grad()
    def _decode(self, rows: list[Row]) -> None:
        """One forward that asks the method; long prompts are first read in pieces."""
        while long := [row for row in rows if not row.stats.target_forwards and len(row.pending) > self._chunk(row)]:
            self._store(long, [self._chunk(row) for row in long], counts=False)
        started = self._now()
        for row in rows:
            row.room = self.mode.room(row)
        window = self.method.propose(rows)
        proposed = self._now()
        output = self._forward(rows, window)
        answered = self._now()
        for row in rows:
            if row.stats.target_forwards:
                row.stats.draft_seconds += (proposed - started) / len(rows)
                row.stats.target_seconds += (answered - proposed) / len(rows)
        self._apply(rows, window, self.method.accept(rows, output), started)

    def _now(self) -> float:
        """Seconds on the clock once all that was asked of the device is done."""
        if self.loaded.model.device.type == "cuda":
            torch.cuda.synchronize(self.loaded.model.device)
        return time.perf_counter()

    def _chunk(self, row: Row) -> int:
        """Most prompt tokens to read at once; a piece ends where a block of block-causal text ends."""
        if self.prefill_chunk is None:
            return row.prompt_length
        size = self.method.text_block
        if size is None:
            return self.prefill_chunk
        start = row.prompt_length if self.method.text_block_start == "prompt" else 0
        chunk = self.prefill_chunk - (row.cached + self.prefill_chunk - start) % size
        return chunk if chunk > 0 else size - (row.cached - start) % size

    def _store(self, rows: list[Row], pending: Sequence[int], counts: bool = True) -> None:
        """A forward that only stores tokens: a piece of a prompt (not counted by itself), or a finished block."""
        started = self._now()
        method = self.method
        window = Window.build(
            rows, pending=pending, text_block=method.text_block, text_block_start=method.text_block_start,
            logits=torch.zeros(0, dtype=torch.long),
        )  # fmt: skip
        method.observe(rows, self._forward(rows, window))
        for row, fed in zip(rows, pending, strict=True):
            row.cached += fed
            if counts:
                row.stats.target_forwards += 1
                row.stats.positions += fed
                row.stats.acceptance_lengths.append(0)
        self._clock(rows, started)

    def _forward(self, rows: list[Row], window: Window) -> Output:
        return run_window(
            self.loaded.model, self.cache, window, [row.slot for row in rows], [row.cached for row in rows]
        )

    def _apply(self, rows: list[Row], window: Window, commit: Commit, started: float) -> None:
        """Commit per row up to its room, its stop and its cap; move kept keys and values; count."""
        fields, ids, confidences, draft_confidences = commit.to_host(window)
        if commit.path is not None:
            start = torch.tensor([row.cached for row in rows], device=commit.path.device) + window.pending.to(
                commit.path
            )
            self.cache.keep_path([row.slot for row in rows], start, commit.padded_path())
        for i, row in enumerate(rows):
            length, kept, drafted, accepted, draft_forwards, draft_positions, violated, pending, count = fields[i]
            if violated:
                raise RuntimeError(
                    f"{self.method.name}: a kept position does not stand at its place in the text, saw one that was "
                    "not kept, or holds another token than the one committed"
                )
            stats = row.stats
            reading = not stats.target_forwards
            fresh = ids[i][: min(length, row.room)]
            tokens = row.tokens[row.prompt_length :] + fresh
            end = self.stop.find(tokens, len(fresh), row.request.stop) if fresh else None
            if end is not None:
                fresh = fresh[: len(fresh) - (len(tokens) - end[0])]
                stats.finish_reason = end[1]
            elif row.new_tokens + len(fresh) >= row.token_limit:
                stats.finish_reason = "length" if row.token_limit == row.request.max_new_tokens else "context"
            row.cached = self.mode.stored(row, pending, min(kept, len(fresh)))
            row.tokens += fresh
            judged = [
                Draft(score, place < accepted)
                for place, score in enumerate(draft_confidences[i][: min(drafted, len(fresh))])
            ]
            row.trace.append(Step(fresh, confidences[i][: len(fresh)], draft_forwards, judged))
            stats.target_forwards += 1
            stats.positions += count + (1 if reading else pending)
            stats.acceptance_lengths.append(len(fresh))
            stats.new_tokens = row.new_tokens
            stats.drafted += drafted
            stats.accepted += min(accepted, max(len(fresh) - 1, 0))
            stats.draft_forwards += draft_forwards
            stats.draft_positions += draft_positions
        self._clock(rows, started)

    def _clock(self, rows: list[Row], started: float) -> None:
        """Every row of a forward is charged its whole wall-clock time: that is how long it waited for its tokens."""
        seconds = time.perf_counter() - started
        for row in rows:
            row.stats.share_seconds += seconds / len(rows)
            if row.stats.target_forwards <= 1:
                row.stats.prefill_seconds += seconds
            else:
                row.stats.decode_seconds += seconds

    def _completion(self, row: Row) -> Completion:
        tokens = row.tokens[row.prompt_length :]
        text = self.stop.text(tokens, row.request.stop)
        ends = self.stop.ends(tokens, text)
        return Completion(row.request.key, list(row.request.prompt_ids), tokens, text, row.stats, row.trace, ends)
