"""From a source (hub, directory, GGUF file, package) to a stock model and a tokenizer. Nothing remote is ever executed.

Every source ends as a local directory of safetensors: the hub is snapshotted, a GGUF file is dequantised once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from harness.errors import UserError
from harness.models.manifest import file_hash
from harness.models.registry import ModelSpec, gguf_path, local_path

ATTENTION = "sdpa"  # the engine's boolean masks are right under no other
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]  # no pickles, no code
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
LARGEST_GGUF_KEPT = 500_000_000  # bytes of a file whose dequantised copy (float32, 5 to 8 times as large) is kept


def open_base(spec: ModelSpec, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The untuned model and its tokenizer, on the CPU; seeded random weights where the source is ``scratch``.

    Raises:
        UserError: files that are not there, cannot be read, or do not fit a stock class.
    """
    if spec.source == "scratch":
        from harness.models import tiny  # builds on this package's assets, not needed for any other source

        return tiny.untrained(spec.name).to(dtype), tiny.load_tokenizer()  # type: ignore[arg-type]
    if spec.source in ("gguf", "packaged"):
        return open_gguf(gguf_path(spec), dtype)
    directory = hub_snapshot(str(spec.id), spec.revision) if spec.source == "hub" else local_path(spec)
    tokenizer = open_tokenizer(directory)
    if tokenizer is None:
        raise UserError(
            "model", str(directory), "holds no tokenizer", "copy the model's tokenizer files beside its config.json"
        )
    return open_directory(directory, dtype, spec.model_type), tokenizer


def open_directory(directory: Path, dtype: torch.dtype, model_type: str | None = None) -> PreTrainedModel:
    """Load safetensors weights into the stock class that the config names.

    A custom ``model_type`` (with its ``auto_map``) is replaced by ``model_type``; weights that do not fill the stock
    class exactly are refused, so that a wrong replacement cannot pass.

    Raises:
        UserError: no readable config.json, a custom type without replacement, no safetensors, weights that do not fit.
    """
    config = stock_config(directory, model_type)
    if not any(directory.glob("*.safetensors")):
        fix = "convert the weights: model.save_pretrained(…, safe_serialization=True)"
        raise UserError("model", str(directory), "holds no *.safetensors (pickled weights are not read)", fix)
    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=dtype,
                attn_implementation=ATTENTION,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError("model", str(directory), f"cannot be loaded as {config.model_type}: {_first(error)}") from error
    model, report = loaded
    odd = [
        f"{kind} {', '.join(sorted(map(str, report[kind]))[:3])}"
        for kind in report
        if report[kind] and kind.endswith("_keys")
    ]
    if odd:
        raise UserError("model", str(directory), f"its weights do not fit {type(model).__name__}: {'; '.join(odd)}")
    return model


def stock_config(directory: Path, model_type: str | None = None) -> PretrainedConfig:
    """``config.json`` as the stock configuration class, without its ``auto_map``."""
    path = directory / "config.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        found = values.pop("model_type")
    except (OSError, json.JSONDecodeError, KeyError, AttributeError) as error:
        raise UserError("model", str(path), f"must be a readable config.json with a model_type: {error!r}") from error
    if found not in CONFIG_MAPPING:
        if model_type is None:
            allowed = f"names the custom type {found!r}, whose code is not run"
            raise UserError("model", str(path), allowed, "model.model_type=<the stock type its weights fit, as qwen2>")
        found = model_type
    if found not in CONFIG_MAPPING:
        raise UserError("model.model_type", found, "a model type that transformers knows")
    for key in ("auto_map", "architectures", "quantization_config"):
        values.pop(key, None)
    return CONFIG_MAPPING[found](**values)


def open_tokenizer(directory: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a directory, or None where it holds none."""
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        with quiet():
            # A stock config stands in for one with a custom model_type, which AutoTokenizer would look up.
            return AutoTokenizer.from_pretrained(
                directory, config=PretrainedConfig(), trust_remote_code=False, local_files_only=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise UserError("model", str(directory), f"its tokenizer cannot be loaded: {_first(error)}") from error


def hub_snapshot(repository: str, revision: str) -> Path:
    """Download what is needed of a hub repository (or find it in the local cache) and return its directory.

    Raises:
        UserError: unknown repository or revision, or no network and nothing cached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        fix = "check the name, revision and network; or download it elsewhere and name the directory: "
        fix += "model=local model.path=/dir for a base, checkpoint=/dir for a checkpoint"
        if os.environ.get("HF_HUB_OFFLINE"):
            fix += " (HF_HUB_OFFLINE is set)"
        raise UserError(
            "model", f"{repository}@{revision}", f"not to be had from the hub: {_first(error)}", fix
        ) from error


def open_gguf(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Dequantise a GGUF file into the stock class; a small file's result is kept, for that takes its time every time.

    Raises:
        UserError: not a GGUF file, or of an architecture that transformers cannot convert.
    """
    kept = cache_dir() / "gguf" / f"{file_hash(path)[:16]}-transformers-{transformers.__version__}"
    if kept.is_dir():
        tokenizer = open_tokenizer(kept)
        assert tokenizer is not None
        return open_directory(kept, dtype), tokenizer
    arguments: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # older releases always dequantise
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        with quiet(), _no_tqdm():
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float32,
                attn_implementation=ATTENTION,
                local_files_only=True,
                **arguments,
            )
            if path.stat().st_size <= LARGEST_GGUF_KEPT:
                _keep(kept, model, tokenizer)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise UserError("model.path", str(path), f"cannot be read as GGUF: {_first(error)}") from error
    return model.to(dtype), tokenizer


def cache_dir() -> Path:
    """Where converted weights are kept: ``$HARNESS_CACHE``, or ``multi-token-harness`` in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HARNESS_CACHE") or home / "multi-token-harness")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' bars and notices while loading; errors still raise."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # between peft and transformers, not the user's business
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def _no_tqdm() -> Iterator[None]:
    """The GGUF reader's bar obeys no switch but tqdm's own."""
    import tqdm

    original = tqdm.tqdm.__init__
    with mock.patch.object(tqdm.tqdm, "__init__", lambda *a, **kw: original(*a, **kw | {"disable": True})):
        yield


def _keep(target: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Save in one step; a cache that cannot be written costs time at the next start and nothing else."""
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            os.replace(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _first(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
