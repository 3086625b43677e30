"""What a checkpoint says about itself: ``manifest.json`` beside its weights, and the hash that identifies them.

A manifest is read strictly: a checkpoint whose training is unknown is not scored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import types
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from harness.errors import UserError

MANIFEST_NAME = "manifest.json"
WEIGHT_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Manifest:
    """How a checkpoint was made, complete enough to make it again.

    Attributes:
        kind: name of the method whose training made it ("ar_sft", "mars", …).
        model: registry name of the base.
        block_size: B of the training, None for methods without blocks.
        alignment: "paper" or "released" where the method knows the difference (docs/decisions/0002).
        variant: name that tells it from the default checkpoint of its kind and block size.
        mask_token_id: id that stood for a masked token, None where none did.
        objective: every option of the training objective.
        data: source, hash and number of examples.
        steps, tokens, epochs: optimiser steps, tokens seen (layout copies not counted), passes over the data.
        losses: final value of each part of the loss.
        adapter: "full"; "lora" when the directory holds an adapter for the base; "own" when it holds what a method adds
            to frozen weights (heads, a drafter).
        init_from: checkpoint the training started from, None for the base itself.
        base: fingerprint of the frozen weights that "own" ones were trained on.
        command: the shell command that makes this checkpoint again.
        seconds: wall-clock of the training.
        versions: package name to version.
        created: ISO 8601 date and time, UTC.
    """

    kind: str
    model: str
    block_size: int | None = None
    alignment: str | None = None
    variant: str | None = None
    mask_token_id: int | None = None
    objective: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    epochs: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    adapter: str = "full"
    init_from: str | None = None
    base: str | None = None
    command: str = ""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    created: str = ""

    def write(self, directory: Path) -> Path:
        """Write ``manifest.json`` in one step, so that a reader never sees half of it."""
        path = Path(directory) / MANIFEST_NAME
        temporary = path.with_name(f".{MANIFEST_NAME}.{os.getpid()}")
        temporary.write_text(json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n", "utf-8")
        os.replace(temporary, path)
        return path

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read ``manifest.json`` of a checkpoint directory.

        Raises:
            UserError: no such file, not JSON, or a field that is missing, unknown or of another type; names the file.
        """
        path = Path(directory) / MANIFEST_NAME
        remake = "train the checkpoint again with python -m harness.train, or point checkpoint= at another directory"
        try:
            found = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise UserError("checkpoint", str(directory), f"has no {MANIFEST_NAME}", remake) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError("checkpoint", str(path), f"is not JSON: {error}", remake) from None
        if not isinstance(found, dict):
            raise UserError("checkpoint", str(path), "must hold a JSON object", remake)
        known = {f.name: f for f in dataclasses.fields(cls)}
        found.setdefault("base", None)  # manifests of before there were heads lack it
        if missing := sorted(known.keys() - found.keys()):
            raise UserError("checkpoint", str(path), f"lacks the field(s) {', '.join(missing)}", remake)
        if unknown := sorted(found.keys() - known.keys()):
            fix = "it was written by another version of this harness; " + remake
            raise UserError("checkpoint", str(path), f"has the unknown field(s) {', '.join(unknown)}", fix)
        for name, hint in get_type_hints(cls).items():
            if not _is_a(found[name], hint):
                allowed = f"its field {name} must be {_spell(hint)}, found {found[name]!r}"
                raise UserError("checkpoint", str(path), allowed, remake)
        return cls(**found)


def weights_hash(directory: Path) -> str:
    """SHA-256 (first 16 hex digits) over the names and contents of a checkpoint's safetensors files.

    Weights only: a manifest may be rewritten without expiring the results measured with them.

    Raises:
        UserError: the directory holds no safetensors file.
    """
    files = sorted(p for p in Path(directory).glob(f"*{WEIGHT_SUFFIX}") if p.is_file())
    if not files:
        raise UserError("checkpoint", str(directory), f"holds no *{WEIGHT_SUFFIX} file", "point at a saved checkpoint")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}:{file_hash(path)};".encode())
    return digest.hexdigest()[:16]


# Files beside the weights that change what a model reads or computes: templates, special ids, positions, LoRA's scale.
SETTINGS_FILES = (
    "adapter_config.json", "chat_template.jinja", "config.json", "generation_config.json", "special_tokens_map.json",
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt",
)  # fmt: skip


def settings_hash(directory: Path) -> str:
    """SHA-256 (first 16 hex digits) over the names and contents of a model directory's ``SETTINGS_FILES``."""
    digest = hashlib.sha256()
    for name in SETTINGS_FILES:
        path = Path(directory) / name
        if path.is_file():
            digest.update(f"{name}:{file_hash(path)};".encode())
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """SHA-256 of one file, read once per process while its size and time of change stay the same."""
    stat = Path(path).stat()
    return _file_hash(str(Path(path).resolve()), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _file_hash(path: str, size: int, changed: int) -> str:
    return file_sha256(Path(path))


def file_sha256(path: Path) -> str:
    """SHA-256 of a file of any size, read anew at each call."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a JSON value fits an annotation; an int passes for a float, a bool for neither."""
    if get_origin(hint) is types.UnionType:
        return any(_is_a(value, option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_is_a(v, get_args(hint)[1]) for v in value.values())
    return hint is Any or isinstance(value, hint)


def _spell(hint: Any) -> str:
    """An annotation as JSON calls it."""
    names = {int: "a whole number", float: "a number", str: "a string", type(None): "null"}
    if get_origin(hint) is types.UnionType:
        return " or ".join(_spell(option) for option in get_args(hint))
    if get_origin(hint) is dict:
        inner = get_args(hint)[1]
        return "an object" + ("" if inner is Any else f" whose values are each {_spell(inner)}")
    return names.get(hint, str(hint))
