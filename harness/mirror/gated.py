"""Gated benchmarks: their rows must not land where git would take them into a repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def is_private(file: Path) -> bool:
    """Whether a file (that need not exist) lies outside every git working tree, or git ignores it."""
    folder = next(parent for parent in file.parents if parent.is_dir())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def git(*arguments: str) -> int:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, env=environment, stdin=subprocess.DEVNULL).returncode

    try:
        if git("rev-parse", "--is-inside-work-tree") == 0:
            return git("check-ignore", "--quiet", str(file)) == 0
    except FileNotFoundError:
        pass  # no git here, but perhaps a working tree
    return not any((parent / ".git").exists() for parent in file.parents)
