"""Logs of trainings (``train.jsonl`` beside a checkpoint's ``manifest.json``) as one tidy frame.

They lie in a folder of checkpoints, ``<model>/<name>/`` and ``local/<model>/<name>/``, and as copies without weights in
a results folder, ``training/<model>/<name>/``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

LOG, MANIFEST = "train.jsonl", "manifest.json"
PLACES = ("", "local", "training")  # below a root
LOSS, HELD_OUT = "loss", "held_out"
_PREFIX = "loss_"  # of a part of the loss
TYPES = {
    "model": "string", "name": "string", "kind": "string", "block_size": "Int64", "alignment": "string",
    "variant": "string", "init_from": "string", "created": "string", "step": "Int64", "tokens": "Int64",
    "seconds": "Float64", "part": "string", "value": "Float64", "path": "string",
}  # fmt: skip

Report = Callable[[str, str], None]


def read_training(*roots: str | Path, report: Report | None = None) -> pd.DataFrame:
    """Every logged loss below some folders, one row each, in the order of training.

    Of trainings with the same model and name the one that finished last counts.

    Args:
        roots: folders of checkpoints or of results; those without logs add nothing.
        report: told (path, reason) of what is damaged and skipped; by default one line on stderr.

    Returns:
        model; name of the checkpoint; kind, the method trained; block_size, alignment and variant (none where it has
        none); init_from, the checkpoint that training began with (none: the base itself); when it was made; step of the
        optimiser; tokens seen, copies of the layout not counted; seconds; part (``loss``, the whole; its parts:
        ``masked``, ``clean``, ``ar``, ``head_0``, …; ``held_out``); value in nats, the mean since the line before; path
        of the log.
    """
    tell = report or _tell
    newest: dict[tuple[str, str], tuple[str, list[dict[str, Any]]]] = {}
    for path in _logs(roots):
        about = _about(path, tell)
        rows = [] if about is None else [about | row for row in _rows(path, tell)]
        if rows:
            place, created = (rows[0]["model"], rows[0]["name"]), rows[0]["created"] or ""
            if place not in newest or created > newest[place][0]:
                newest[place] = created, rows
    found = [row for place in sorted(newest) for row in newest[place][1]]
    return pd.DataFrame({name: pd.Series([row[name] for row in found], dtype=one) for name, one in TYPES.items()})


def _tell(path: str, reason: str) -> None:
    print(f"skipped: {path}: {reason}", file=sys.stderr, flush=True)


def _logs(roots: tuple[str | Path, ...]) -> Iterator[Path]:
    """Logs below the roots, each once."""
    paths = [path for root in roots for place in PLACES for path in (Path(root) / place).glob(f"*/*/{LOG}")]
    yield from sorted({path.resolve(): path for path in paths}.values())


def _about(path: Path, tell: Report) -> dict[str, Any] | None:
    """What the manifest beside a log says of its training; None, and told, where there is none that can be read.

    Only these few fields are asked for, so that copies of older manifests serve as well.
    """
    place = path.parent / MANIFEST
    try:
        found = json.loads(place.read_text("utf-8"))
        texts = {name: found.get(name) for name in ("alignment", "variant", "init_from", "created")}
        about = {"model": found["model"], "kind": found["kind"], "block_size": found.get("block_size")} | texts
    except FileNotFoundError:
        tell(str(path), f"no {MANIFEST} beside it")
        return None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        tell(str(place), f"is no manifest: {type(error).__name__} {error}")
        return None
    is_text = all(one is None or isinstance(one, str) for one in texts.values())
    try:
        json.dumps([about, str(path)], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        tell(str(place), "is no manifest that can be shown: its texts or its path are not UTF-8")
        return None
    block_size = about["block_size"]
    if not (is_text and isinstance(about["model"], str) and isinstance(about["kind"], str)):
        tell(str(place), "is no manifest: its model, kind, alignment, variant, beginning and time are not all texts")
    elif not (block_size is None or (isinstance(block_size, int) and block_size > 0)):
        tell(str(place), f"is no manifest: a block_size of {block_size!r}")
    else:
        return about | {"name": path.parent.name, "path": str(path)}
    return None


def _rows(path: Path, tell: Report) -> Iterator[dict[str, Any]]:
    """The losses of a log, damaged lines told and left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        tell(str(path), f"cannot be read: {error.strerror}")
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            losses = dict(_losses(entry))
            steps = {"step": int(entry["step"]), "tokens": int(entry["tokens"]), "seconds": float(entry["seconds"])}
            if not all(math.isfinite(one) for one in steps.values()):
                raise ValueError("a time that is no number")
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
            tell(f"{path}:{number}", f"is no line of a training log: {type(error).__name__} {error}")
            continue
        for part, value in losses.items():
            yield steps | {"part": part, "value": value}


def _losses(entry: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Losses of a line by part; the line that ends a training has only its mean, which is none of a step."""
    for name, value in entry.items():
        part = name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else {LOSS: LOSS, "eval_loss": HELD_OUT}.get(name)
        if part and math.isfinite(float(value)):  # a training that diverged has no loss there
            yield part, float(value)
