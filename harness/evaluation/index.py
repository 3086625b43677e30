"""lm-eval's own index of its 14,000 task files, for tasks that the protocol lacks; it takes seconds."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Kind

from harness.errors import UserError
from harness.models.manifest import file_sha256


@lru_cache(maxsize=2)
def manager(include_path: str | None) -> TaskManager:
    """The index, with the user's own tasks before lm-eval's.

    Raises:
        UserError: the folder does not exist.
    """
    if include_path is not None and not Path(include_path).expanduser().is_dir():
        raise UserError("suite.include_path", include_path, "a folder with lm-eval task files (YAML)")
    return TaskManager(include_path=include_path and str(Path(include_path).expanduser()))


def check(name: str, include_path: str | None, also: Sequence[str]) -> None:
    """See that lm-eval has a task, group or tag of this name.

    Args:
        also: names known otherwise, among which the nearest is looked for too.

    Raises:
        UserError: it has none.
    """
    known = manager(include_path).all_tasks
    if name in known:
        return
    near = difflib.get_close_matches(name, [*also, *known], n=1)
    fix = f"did you mean {near[0]}?" if near else "lm-eval ls tasks lists all; suite.include_path=DIR adds your own"
    raise UserError("suite.tasks", name, f"{', '.join(also)}, or another task, group or tag of lm-eval's", fix)


def definition_hash(name: str, include_path: str | None) -> str:
    """SHA-256 of what a task, or every task of a group or tag, is made of, wherever it lies.

    That is its YAML with what it includes, and the content of each file that it names: Python code and local data.
    """
    index = manager(include_path).task_index
    parts: dict[str, Any] = {}

    def add(one: str) -> None:
        if one in parts or one not in index:
            return
        entry = index[one]
        parts[one] = _content(entry.cfg)
        for child in [*entry.tags] if entry.kind is Kind.TAG else (entry.cfg or {}).get("task") or []:
            if isinstance(child, str):
                add(child)
            elif isinstance(child, dict):  # a task of the list that is changed or defined there
                add(str(child.get("task") or child.get("group")))

    add(name)
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _content(value: Any) -> Any:
    """A part of a definition with the hash of a file where its path, or a function's in it, stands."""
    if isinstance(value, dict):
        return {str(key): _content(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_content(one) for one in value]
    if isinstance(value, str):
        module, _, function = value.rpartition(".")  # lm-eval's way to write a function: /folder/utils.name
        for path, rest in ((value, ""), (f"{module}.py", function)):
            with contextlib.suppress(OSError, ValueError):  # most texts are no path
                return [file_sha256(Path(path)), rest]
    return value


def load(name: str, include_path: str | None) -> dict[str, ConfigurableTask]:
    """Task objects behind a name, by their own names, as lm-eval builds them.

    Raises:
        UserError: a task that is no YAML task, so that nothing of a protocol can be read from it.
    """
    found: dict[str, Task] = manager(include_path).load([name])["tasks"]
    for task in found.values():
        if not isinstance(task, ConfigurableTask):
            allowed = f"tasks that lm-eval describes in YAML; {task.task_name} is Python code"
            raise UserError("suite.tasks", name, allowed, "python -m harness.lm_eval runs it too")
    return found
