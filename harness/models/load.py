"""One loader for every model and checkpoint: stock class, sdpa, eval mode, with the ids that decoding needs."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harness.errors import UserError
from harness.models import registry
from harness.models.checkpoints import Resolved, companions, identity, resolve
from harness.models.manifest import Manifest
from harness.models.registry import ModelSpec
from harness.models.weights import ATTENTION, hub_snapshot, open_base, open_directory, open_tokenizer, quiet

if TYPE_CHECKING:
    from methods.contract import Method

MASK_TOKEN = "<|mask|>"
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")  # ChatML, Llama 3, Gemma
MODELS_KEPT = 2
LARGEST_KEPT = 1_000_000_000  # parameters of a model beside which another may stay in memory


@dataclass
class LoadedModel:
    """A model ready to decode with.

    Attributes:
        name: registry name of the base.
        model: stock class, eval mode, sdpa attention.
        mask_token_id: id that stands for "not yet known", None where the checkpoint has none.
        eos_token_ids: every id that ends an answer: tokenizer's, generation config's and the chat template's.
        context_length: positions, prompt and answer together.
        identity: what of the weights can change an output (part of a run's key).
        manifest: of the checkpoint; None for untuned weights or a checkpoint without one.
        checkpoint_dir: directory the checkpoint was read from.
        companions: further models that the method asked for, by its names for them.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    mask_token_id: int | None
    eos_token_ids: tuple[int, ...]
    context_length: int
    identity: dict[str, Any]
    manifest: Manifest | None = None
    checkpoint_dir: Path | None = None
    companions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device


_kept: OrderedDict[str, LoadedModel] = OrderedDict()


def load(
    model: str | Mapping[str, Any] | ModelSpec,
    *,
    method: Method | type[Method],
    block_size: int | None = None,
    variant: str | None = None,
    checkpoint: str | Path | None = None,
    dtype: str | None = None,
    device: str = "auto",
    checkpoints_dir: str | Path | None = None,
    alignment: str | None = None,
) -> LoadedModel:
    """Load what a method needs of a model; the last ones loaded stay in memory for the next cell of a sweep.

    Args:
        model: registry name, or the composed ``model`` config.
        method: its ``checkpoint_kind`` says which checkpoint, its ``needs_mask_token`` whether to provide a mask; an
            instance's companions are loaded too.
        block_size: B that the checkpoint must have been trained for; None for kinds without blocks.
        variant: which checkpoint of the kind; "base" is the untuned model.
        checkpoint: explicit directory, before any other.
        dtype: float64 | float32 | bfloat16 | float16; None takes the model's default.
        device: "auto" (a GPU where there is one) or a torch device.
        checkpoints_dir: where checkpoints lie; None is ``$HARNESS_CHECKPOINTS`` or the repository's.
        alignment: training alignment that the checkpoint must have.

    Raises:
        MissingCheckpoint: none is known, and the model is small enough to train one on demand.
        UserError: anything else that is missing or does not fit.
    """
    spec = registry.spec(model)
    trained = method if isinstance(method, type) else method.trained_as
    resolved = resolve(
        spec,
        kind=trained.checkpoint_kind,
        adds=trained.adds_weights(),
        block_size=block_size,
        variant=variant,
        alignment=alignment,
        checkpoint=checkpoint,
        checkpoints_dir=checkpoints_dir,
    )
    needs_mask = trained.needs_mask_token
    wanted = identity(spec, resolved, dtype)
    key = json.dumps([wanted, dataclasses.asdict(spec), str(resolved.directory), str(pick_device(device)), needs_mask])
    if key not in _kept:
        _make_room()
        _kept[key] = open_model(spec, resolved, dtype=dtype, device=device, needs_mask=needs_mask)
    _kept.move_to_end(key)
    loaded = _kept[key]
    if isinstance(method, type) or not method.companions:
        return loaded
    others: dict[str, LoadedModel] = {}
    for name, (other, companion) in companions(spec, method).items():
        others[name] = load(
            other,
            method=companion.method,
            block_size=companion.method.trained_block_size,
            checkpoint=companion.checkpoint,
            dtype=dtype,
            device=device,
            checkpoints_dir=checkpoints_dir,
        )
        if text_vocabulary(others[name].tokenizer) != text_vocabulary(loaded.tokenizer):
            allowed = f"a model with the tokenizer of {spec.name}: its tokens stand for other text"
            raise UserError(f"method.{name}_model", other.name, allowed)
    identities = {name: other.identity for name, other in others.items()}
    return dataclasses.replace(loaded, companions=others, identity=loaded.identity | {"companions": identities})


def text_vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Token to id, without the mask, which one of two models may have been given and the other not."""
    return {token: i for token, i in tokenizer.get_vocab().items() if token != tokenizer.mask_token}


def open_model(
    spec: ModelSpec,
    resolved: Resolved = Resolved(),  # noqa: B008 (immutable)
    *,
    dtype: str | None = None,
    device: str = "auto",
    needs_mask: bool = False,
) -> LoadedModel:
    """Load exactly these weights, freshly: the base, or a resolved checkpoint. Training starts from here.

    Args:
        needs_mask: provide a mask token where model and tokenizer have none (embeddings grow only if its id is out of
            range).
    """
    if resolved.under is not None:  # heads or a drafter, which their method reads from checkpoint_dir
        loaded = open_model(spec, resolved.under, dtype=dtype, device=device, needs_mask=needs_mask)
        found = identity(spec, resolved, dtype)
        directory = resolved.directory
        return dataclasses.replace(loaded, identity=found, manifest=resolved.manifest, checkpoint_dir=directory)
    name = dtype or spec.dtype
    registry.check_dtype("dtype", name)
    place, torch_dtype, manifest = pick_device(device), getattr(torch, name), resolved.manifest
    directory = resolved.directory
    if resolved.released:
        directory = hub_snapshot(resolved.released.id, resolved.released.revision)
    if directory is None or resolved.is_adapter:
        # An adapter is added in float32 and rounded once.
        model, tokenizer = open_base(spec, torch.float32 if resolved.is_adapter else torch_dtype)
    else:
        model = open_directory(directory, torch_dtype, spec.model_type)
        tokenizer = open_tokenizer(directory) or open_base(spec, torch_dtype)[1]
    if directory is not None and resolved.is_adapter:
        model, tokenizer = _with_adapter(model, tokenizer, directory, spec, manifest)
        model = model.to(torch_dtype)
    mask_token_id = _mask_token(model, tokenizer, spec, manifest, needs_mask)
    if model.config._attn_implementation != ATTENTION:
        raise RuntimeError(f"{spec.name}: attention is {model.config._attn_implementation}, the masks need {ATTENTION}")
    return LoadedModel(
        name=spec.name,
        model=model.to(place).eval(),  # type: ignore[arg-type]
        tokenizer=tokenizer,
        mask_token_id=mask_token_id,
        eos_token_ids=eos_token_ids(model, tokenizer),
        context_length=spec.context_length or model.config.max_position_embeddings,
        identity=identity(spec, resolved, dtype),
        manifest=manifest,
        checkpoint_dir=directory,
    )


def pick_device(device: str) -> torch.device:
    """The torch device of a ``device`` setting; "auto" is a GPU where there is one.

    Raises:
        UserError: not a device, or not on this machine.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UserError("device", device, "auto, cpu, cuda or cuda:<number>") from None
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise UserError("device", device, f"this machine has {torch.cuda.device_count()} CUDA devices", "device=auto")
    return place


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Union of what tokenizer, configs and the usual chat templates call the end, in order of id."""
    found: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for ids in (tokenizer.eos_token_id, model.config.eos_token_id, getattr(generation, "eos_token_id", None)):
        found.update(ids if isinstance(ids, Iterable) else [] if ids is None else [ids])
    vocabulary = tokenizer.get_vocab()
    return tuple(sorted(found | {vocabulary[t] for t in END_OF_TURN if t in vocabulary}))


def _mask_token(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spec: ModelSpec,
    manifest: Manifest | None,
    needed: bool,
) -> int | None:
    """The mask's id: the manifest's, the model config's, the one the registry names, the tokenizer's, or an added one.

    Raises:
        UserError: the manifest's id lies outside the embeddings, or the registry's token is in use.
    """
    rows = num_embeddings(model)
    for origin in (manifest, model.config):
        found = getattr(origin, "mask_token_id", None)
        if isinstance(found, int):
            if found >= rows:
                fix = "the checkpoint is incomplete: save it with its resized embeddings"
                raise UserError("mask_token_id", found, f"the model has embeddings for ids below {rows}", fix)
            return found
    vocabulary = tokenizer.get_vocab()
    if spec.mask_token in vocabulary:
        return _unused(spec.mask_token, vocabulary[spec.mask_token], tokenizer)
    token = spec.mask_token or tokenizer.mask_token or MASK_TOKEN
    if not needed and token not in vocabulary:
        return None
    tokenizer.add_special_tokens({"mask_token": token})
    mask_token_id = int(tokenizer.convert_tokens_to_ids(token))  # type: ignore[arg-type]
    grow_embeddings(model, mask_token_id + 1)
    return mask_token_id


def _unused(token: str, token_id: int, tokenizer: PreTrainedTokenizerBase) -> int:
    """``token_id`` if it is a special token (no tokenizer splits ordinary text into it) with no other use."""
    used = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    if token_id in used or token in str(tokenizer.chat_template):
        raise UserError("model.mask_token", token, "a token with no other use, and this one has one")
    added = tokenizer.added_tokens_decoder.get(token_id)
    if added is None or not added.special:
        raise UserError("model.mask_token", token, "a special token: this one can arise from ordinary text")
    return token_id


def num_embeddings(model: PreTrainedModel) -> int:
    """Rows of the input embedding, padding included."""
    weight: Any = model.get_input_embeddings().weight
    return int(weight.shape[0])


def grow_embeddings(model: PreTrainedModel, rows: int) -> None:
    """Enlarge the embeddings to ``rows`` where they are smaller; new rows are the mean of the old, without chance."""
    old = num_embeddings(model)
    if rows <= old:
        return
    with quiet():
        model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            assert isinstance(module, nn.Module)
            weight: torch.Tensor = module.weight  # type: ignore[assignment]
            weight[old:] = weight[:old].float().mean(0).to(weight.dtype)


def _with_adapter(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    spec: ModelSpec,
    manifest: Manifest | None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Merge a LoRA adapter into its base, so that decoding sees one plain model."""
    from peft import PeftModel

    tokenizer = open_tokenizer(directory) or tokenizer
    if manifest is not None and manifest.mask_token_id is not None:
        grow_embeddings(model, manifest.mask_token_id + 1)
    try:
        with quiet():
            merged = PeftModel.from_pretrained(model, directory).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError("checkpoint", str(directory), f"its adapter does not fit {spec.name}: {reason}") from error
    return merged, tokenizer


def _make_room() -> None:
    """Forget the models used longest ago, all but one small one."""
    while len(_kept) >= MODELS_KEPT or any(m.model.num_parameters() > LARGEST_KEPT for m in _kept.values()):
        _kept.popitem(last=False)
