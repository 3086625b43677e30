"""What a method is: the questions the engine asks at each forward, and the objective that trains its checkpoint.

A method is a dataclass. Its fields are its axes: everything that can change its output, and nothing else, so that the
identity of a run follows from the declaration. An objective is a dataclass in the same file; its fields are what a
checkpoint's manifest records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from safetensors.torch import load_file
from torch import Tensor, nn

from harness.engine.commit import Commit
from harness.engine.contract import Context, Target
from harness.engine.rows import Row
from harness.engine.window import Output, Window
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.engine.cache import CursorCache


OWN_WEIGHTS = "own.safetensors"  # of a checkpoint that adds to a model: heads, a drafter


@dataclass(frozen=True)
class Companion:
    """A further model that a method decodes with; it comes loaded as ``Context.target.companions[name]``.

    Attributes:
        method: says which checkpoint of the model is needed, as for the target.
        model: registry name; None is the one that the target's entry names as its ``draft_model``.
        checkpoint: explicit directory.
    """

    method: Method
    model: str | None = None
    checkpoint: str | None = None


@dataclass
class Method:
    """Base of all decoding methods (docs/decisions/0005, 0006): say what to feed, then say what to keep.

    Subclasses are dataclasses; a field is an axis of the run's identity. ``validate`` in ``__post_init__``.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1  # raised by hand when the output can change
    lossless: ClassVar[bool] = False  # equal to greedy AR on the same weights
    checkpoint_kind: ClassVar[str]  # the method whose training makes the checkpoint; "ar_sft" for any AR model
    objective: ClassVar[type[Objective] | None] = None
    # Committed text sees itself causally, or block-causally in blocks of this many tokens counted from
    # ``text_block_start`` ("prompt": the response starts a block; "sequence": position 0 does).
    text_block: ClassVar[int | None] = None
    text_block_start: ClassVar[str] = "prompt"
    needs_mask_token: ClassVar[bool] = False
    # Why temperature above 0 is refused; a method that samples has a field ``temperature`` instead.
    greedy_only: ClassVar[str] = "sampling is not written for it"

    @classmethod
    def axes(cls) -> tuple[str, ...]:
        """Names of the settings that change this method's output."""
        return tuple(f.name for f in dataclasses.fields(cls))

    def changed(self) -> dict[str, Any]:
        """Settings that tell this method from its defaults; tau and block_size, where they count, in any case."""
        found = {}
        for f in dataclasses.fields(self):
            value, always = getattr(self, f.name), f.name in ("tau", "block_size")
            of_no_account = value is None and (always or f.name == "confidence")
            if not of_no_account and (always or value != f.default):
                found[f.name] = value
        return found

    @classmethod
    def from_settings(cls, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Method:
        """Build from a run's shared settings (tau, block_size, …: those among its fields) and its own options.

        Raises:
            UserError: an own option that the method does not have, or a temperature above 0 where it cannot sample.
        """
        known = cls.axes()
        temperature = own.get("temperature", shared.get("temperature"))
        if temperature and "temperature" not in known:
            raise refuse_sampling(cls.name, temperature, cls.greedy_only)
        for key in own:
            if key not in known:
                raise UserError(f"method.{key}", own[key], f"{cls.name} has the options {', '.join(known) or 'none'}")
        return cls(**{k: v for k, v in shared.items() if k in known} | dict(own))

    @property
    def window(self) -> int:
        """The most positions that this method adds to a window after the pending tokens."""
        return 0

    @property
    def trained_block_size(self) -> int | None:
        """Block size that the checkpoint must have been trained for, or None where it has no block size."""
        return None

    @property
    def trained_as(self) -> Method:
        """The method whose training made the target's checkpoint: this one, unless it is composed of others."""
        return self

    @property
    def companions(self) -> Mapping[str, Companion]:
        """Further models that the method decodes with, by a name of its own."""
        return {}

    @classmethod
    def adds_weights(cls) -> bool:
        """Whether its checkpoint is added to a model's (heads, a drafter) instead of replacing it."""
        return cls.objective is not None and cls.objective.attach is not Objective.attach

    def fit(self, manifest: Any) -> None:
        """Take from a checkpoint's manifest (None: there is none) what is left open, before the engine is made.

        Raises:
            UserError: a setting that contradicts the training.
        """

    def start(self, context: Context) -> None:
        """Prepare for a stream of rows; further models and caches of the method's own are made here."""
        self.context = context

    @property
    def caches(self) -> Sequence[CursorCache]:
        """Caches of the method's own: the engine moves their rows with the target's; their lengths are the method's."""
        return ()

    def admit(self, row: Row) -> None:
        """A row enters its slot (its ``cached`` may be above 0 when a prefix is reused); set ``row.state`` here."""

    def evict(self, row: Row) -> None:
        """A row leaves its slot."""

    def observe(self, rows: list[Row], output: Output) -> None:
        """A forward only stored pending tokens (a prompt chunk, a cache boundary) and asked nothing."""

    def propose(self, rows: list[Row]) -> Window:
        """Window of the next forward: each row's pending tokens, then what the method adds."""
        raise NotImplementedError

    def accept(self, rows: list[Row], output: Output) -> Commit:
        """Tokens to commit, and added positions to keep, given what the forward returned."""
        raise NotImplementedError


def refuse_sampling(name: str, temperature: object, reason: str, fix: str = "temperature=0") -> UserError:
    """The error of a method that cannot sample."""
    return UserError("temperature", temperature, f"{name} decodes greedily: {reason}", fix)


Module = TypeVar("Module", bound=nn.Module)


def load_own_weights(module: Module, target: Target) -> Module:
    """Fill ``module`` from the checkpoint's ``OWN_WEIGHTS``, on the target's device and in its dtype, for inference.

    Raises:
        UserError: no such file, or weights of another shape.
    """
    path = None if target.checkpoint_dir is None else target.checkpoint_dir / OWN_WEIGHTS
    if path is None or not path.is_file():
        raise UserError("checkpoint", str(target.checkpoint_dir), f"a directory with {OWN_WEIGHTS}")
    try:
        module.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise UserError("checkpoint", str(path), f"does not fit: {str(error).splitlines()[-1].strip()}") from None
    return module.to(device=target.model.device, dtype=target.model.dtype).eval().requires_grad_(False)


@dataclass(frozen=True)
class Example:
    """One training sequence: token ids, and which of them are targets (a response with its end of turn)."""

    ids: list[int]
    response: list[bool]


@dataclass
class Objective:
    """Base of all training objectives: a layout (``collate``) and a loss over it.

    Subclasses are dataclasses whose fields are the options that a manifest records.
    """

    mask_token_id: int | None = field(default=None, init=False, repr=False)
    pad_token_id: int = field(default=0, init=False, repr=False)
    # Parameters of the objective's own (``attach``), which ``loss`` may use.
    own: nn.Module | None = field(default=None, init=False, repr=False, compare=False)

    def bind(self, mask_token_id: int | None, pad_token_id: int) -> None:
        """Learn the ids that the layout writes. Padding is told by masks, never by comparing ids."""
        self.mask_token_id, self.pad_token_id = mask_token_id, pad_token_id

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Fields a user may set."""
        return tuple(f.name for f in dataclasses.fields(cls) if f.init)

    def options(self) -> dict[str, Any]:
        """Options with their values, for the manifest."""
        return {name: getattr(self, name) for name in self.option_names()}

    def attach(self, model: nn.Module) -> nn.Module | None:
        """Make what is trained beside the model (heads, a drafter), while the model itself stays frozen.

        Returns:
            Its module, in float32 on the model's device, without any of the model's own parameters; None trains the
            model.
        """
        return None

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Lay a batch out as padded tensors; everything ``loss`` needs is in the dict."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Scalar to minimise, and its named parts (detached scalars) for the log."""
        raise NotImplementedError
