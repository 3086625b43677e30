"""lm-eval's own index of its 14,000 task files, for tasks that the protocol lacks; it takes seconds."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager

from harness.errors import UserError


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
