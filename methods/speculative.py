"""Speculative decoding: a draft model proposes, the target verifies; composed with MARS on either side (MARS §4.6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from harness.engine.cache import CursorCache
from harness.engine.commit import Commit
from harness.engine.contract import Context
from harness.engine.forward import run_window
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from harness.errors import UserError
from methods.accept import (
    accepted_length,
    check_tau,
    check_temperature,
    confidence,
    confirmed,
    probabilities,
    rejection_sample,
    uniforms,
)
from methods.ar_sft import ArSft
from methods.contract import Companion, Method, refuse_sampling
from methods.mars import Mars
from methods.outcomes import outcome_window, outcomes

ROLES = ("ar_sft", "mars")


@dataclass
class Speculative(Method):
    """Draft K tokens with a small model, verify them in one forward of the target.

    Draft and target are each a (model, method) pair. With an AR target the text is greedy AR's; a MARS target goes on
    under ``tau`` from the last accepted draft, B tokens at most, for which K+1 groups of B−1 masks ride along: one for
    every number of drafts that may be accepted (Table 6). A MARS draft writes several tokens per draft forward.

    Attributes:
        target, draft: ``ar_sft`` or ``mars``, the method and checkpoint of each.
        draft_model: registry name of the draft model; None takes the one that the target's entry names.
        draft_checkpoint: explicit directory of its weights.
        num_drafts: K.
        tau, confidence, block_size: of MARS, in the target and in the draft; None where neither is MARS.
        draft_tau: tau of a MARS draft where it differs.
        temperature: above 0 samples exactly, AR drafting for AR.
    """

    name: ClassVar[str] = "speculative"
    checkpoint_kind: ClassVar[str] = "ar_sft"

    target: str = "ar_sft"
    draft: str = "ar_sft"
    draft_model: str | None = None
    draft_checkpoint: str | None = None
    num_drafts: int = 4
    tau: float | None = 0.95
    block_size: int | None = 4
    confidence: str | None = "probability"
    draft_tau: float | None = None
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for key in ("target", "draft"):
            if getattr(self, key) not in ROLES:
                raise UserError(f"method.{key}", getattr(self, key), f"one of {', '.join(ROLES)}")
        k = self.num_drafts
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UserError("method.num_drafts", k, "a whole number of tokens, at least 1", "method.num_drafts=4")
        check_temperature(self.temperature)
        if self.temperature and "mars" in (self.target, self.draft):
            role = "target" if self.target == "mars" else "draft"
            reason = f"what a MARS {role} commits under tau are argmaxes, no samples of a known distribution"
            raise refuse_sampling(self.name, self.temperature, reason)
        if "mars" not in (self.target, self.draft):
            self.tau = self.block_size = self.confidence = None  # two settings of them are one cell
        if self.draft != "mars" or self.draft_tau == self.tau:
            self.draft_tau = None
        if self.draft_tau is not None:
            try:
                check_tau(self.draft_tau, self.confidence or "probability")
            except UserError as error:
                raise UserError(
                    "method.draft_tau", self.draft_tau, error.allowed, f"method.draft_{error.fix}"
                ) from None
        self._target, self._draft = self._method(self.target, self.tau), self._method(self.draft, self.draft_tau)

    def _method(self, role: str, tau: float | None) -> ArSft | Mars:
        if role == "ar_sft":
            return ArSft(temperature=self.temperature)
        assert self.block_size is not None
        return Mars(self.tau if tau is None else tau, self.block_size, self.confidence or "probability")

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        return self.target == "ar_sft"

    @property
    def trained_as(self) -> Method:
        return self._target

    @property
    def companions(self) -> Mapping[str, Companion]:
        return {"draft": Companion(self._draft, self.draft_model, self.draft_checkpoint)}

    @property
    def group(self) -> int:
        """Predictions of the target per outcome: B of a MARS target, else 1."""
        return self._target.block_size if isinstance(self._target, Mars) else 1

    @property
    def window(self) -> int:
        return (self.num_drafts + 1) * self.group - 1

    @property
    def caches(self) -> Sequence[CursorCache]:
        return (self.cache,)

    def start(self, context: Context) -> None:
        super().start(context)
        drafter = context.target.companions.get("draft")
        if drafter is None:
            allowed = "a model that was loaded together with its draft model"
            raise UserError("model", None, allowed, "pass the method's instance to load(), or name the model instead")
        self.model = drafter.model
        if context.max_length > drafter.context_length:
            allowed = f"{drafter.context_length} tokens, the context of the draft model"
            raise UserError("max_new_tokens", context.max_length, f"with the prompt at most {allowed}")
        self.vocab_size = int(context.target.model.get_output_embeddings().weight.shape[0])
        self._target.start(context)
        self._draft.start(Context(drafter, context.num_slots, context.max_length))
        # A draft window is at most what a forward of the target committed and K more; rows of a batch are as ragged.
        slack = 2 * (self.window + self.num_drafts + self._draft.window + 2)
        layers = self.model.config.num_hidden_layers
        self.cache = CursorCache(layers, context.num_slots, context.max_length + slack)

    def admit(self, row: Row) -> None:
        """``row.state`` is the row as the draft model has it: its text with drafts, its cached length."""
        row.state = dataclasses.replace(row, tokens=list(row.tokens), cached=0)

    def propose(self, rows: list[Row]) -> Window:
        device = self.context.target.model.device
        wanted = [min(self.num_drafts, row.room - 1) for row in rows]
        self._forwards, self._positions = [0] * len(rows), [0] * len(rows)
        self._logits: list[list[Tensor]] = [[] for _ in rows]
        for row in rows:
            self._rewind(row)
        while behind := [i for i, row in enumerate(rows) if len(row.state.tokens) < len(row.tokens) + wanted[i]]:
            self._draft_forward(behind, rows, wanted)
        drafts = torch.zeros(len(rows), self.num_drafts, dtype=torch.long)
        for i, row in enumerate(rows):
            drafts[i, : wanted[i]] = torch.tensor(row.state.tokens[len(row.tokens) :], dtype=torch.long)
        mask_token_id = self.context.target.mask_token_id or 0  # of no account without masks
        return outcome_window(rows, drafts.to(device), wanted, self.group, mask_token_id)

    def _rewind(self, row: Row) -> None:
        """Forget the drafts that were refused; at least one token stays pending, for the next forward to start from."""
        ours: Row = row.state
        ours.slot = row.slot
        same = next((i for i in range(ours.cached) if i >= len(row.tokens) or row.tokens[i] != ours.tokens[i]), None)
        ours.cached = min(ours.cached if same is None else same, len(row.tokens) - 1)
        ours.tokens = list(row.tokens)

    def _draft_forward(self, behind: list[int], rows: list[Row], wanted: list[int]) -> None:
        """One forward of the draft model, by its own method, for the rows that lack drafts."""
        ours: list[Row] = [rows[i].state for i in behind]
        for i, row in zip(behind, ours, strict=True):
            row.room = len(rows[i].tokens) + wanted[i] - len(row.tokens)
        window = self._draft.propose(ours)
        output = run_window(self.model, self.cache, window, [r.slot for r in ours], [r.cached for r in ours])
        output.logits = output.logits[..., : self.vocab_size]  # embeddings are padded to sizes of their own
        commit = self._draft.accept(ours, output)
        fields, ids, *_ = commit.to_host(window)
        for n, (i, row) in enumerate(zip(behind, ours, strict=True)):
            length, kept = fields[n][:2]
            pending, added = fields[n][-2:]
            row.cached += pending + kept
            row.tokens += ids[n][: min(length, row.room)]
            self._forwards[i] += 1
            self._positions[i] += pending + added
            if self.temperature:
                self._logits[i].append(output.logits[n, 0])

    def accept(self, rows: list[Row], output: Output) -> Commit:
        drafts, logits, fed = outcomes(output, self.group)
        if self.temperature:
            ids, accepted = self._sample(rows, drafts, logits[:, :, 0], fed)
            length = most = accepted + 1
        else:
            targets = logits[:, :, 0].argmax(-1)
            accepted = confirmed(drafts, targets, fed)
            most = accepted + (output.count - accepted * self.group).clamp(max=self.group)
            ids, length = self._go_on(targets, logits, accepted, most)
        lines = torch.arange(1, drafts.shape[1] + 1, device=drafts.device)
        return Commit(
            ids,
            length,
            kept=accepted,
            path=(lines * self.group - 1).expand(len(rows), -1),
            drafted=fed + (most - accepted - 1),
            accepted=length - 1,
            draft_forwards=torch.tensor(self._forwards, device=drafts.device),
            draft_positions=torch.tensor(self._positions, device=drafts.device),
        )

    def _go_on(self, targets: Tensor, logits: Tensor, accepted: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        """Accepted drafts, then what the target predicts after the last of them: one token, of MARS a run under tau.

        Args:
            targets: int64 [rows, K+1]; logits [rows, K+1, B, vocab]; accepted int64 [rows]; most int64 [rows],
                tokens that can be committed, given the masks that the row had room for.
        """
        if not isinstance(self._target, Mars):
            return targets, accepted + 1
        assert self._target.tau is not None
        lines = torch.arange(len(targets), device=targets.device)
        ids, _, passed = confidence(logits[lines, accepted], self._target.confidence, self._target.tau)
        run = accepted_length(passed, most - accepted)
        places = torch.arange(targets.shape[1] + self.group - 1, device=targets.device)
        before = torch.nn.functional.pad(targets, (0, self.group - 1))
        after = ids.gather(1, (places - accepted[:, None]).clamp(0, self.group - 1))
        return torch.where(places < accepted[:, None], before, after), accepted + run

    def _sample(self, rows: list[Row], drafts: Tensor, logits: Tensor, fed: Tensor) -> tuple[Tensor, Tensor]:
        """Speculative sampling: ids int64 [rows, K+1]; of them ``accepted`` int64 [rows] drafts and one token count."""
        target = probabilities(logits, self.temperature)
        vocab = target.shape[-1]
        draft = torch.zeros(len(rows), self.num_drafts, vocab, dtype=torch.float64, device=target.device)
        for i, steps in enumerate(self._logits):
            if steps:
                q = probabilities(torch.stack(steps), self.temperature)
                draft[i, : len(steps), : q.shape[1]] = q
        numbers = uniforms(rows, self.num_drafts + 1, target.device)
        accepted, after = rejection_sample(target, draft, drafts, fed, numbers)
        places = torch.arange(self.num_drafts + 1, device=target.device)
        ids = torch.where(places < accepted[:, None], torch.nn.functional.pad(drafts, (0, 1)), after[:, None])
        return ids, accepted
