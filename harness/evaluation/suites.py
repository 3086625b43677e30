"""What a suite asks: the typed schema of ``conf/suite``, its checks, and its share of a run's identity.

Nothing here imports lm-eval (two seconds): a dry run or a status listing needs the identity of a suite and no more.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from harness.errors import UserError


@dataclass
class TaskSpec:
    """The protocol of one benchmark; one entry of ``conf/suite/protocol``.

    Attributes:
        source: ``lm_eval:<path below lm_eval/tasks>`` for a stock YAML, or a module of ours (see ``documents``).
        version: the task version this protocol was written for; another one found is refused, never run silently.
        num_fewshot: worked examples in the prompt.
        metric, filter: the headline metric and the filter whose extraction it judges.
        subtasks: values of ``{subtask}`` in ``source`` and ``data_file``; the headline then pools all documents.
        data_file: upstream's file below ``suite.data_dir`` (``.jsonl``, or ``.json`` with a list or its "examples").
        fields: keys that every row of the data file must have.
        revision: commit of the hub dataset, used where no ``suite.data_dir`` is given.
        live_score: score each document as it finishes, for the progress bar; false where scoring is slow.
        options: settings of a task of ours.
    """

    source: str = MISSING
    version: str = MISSING
    num_fewshot: int = 0
    metric: str = MISSING
    filter: str = MISSING
    subtasks: list[str] = field(default_factory=list)
    data_file: str | None = None
    fields: list[str] = field(default_factory=list)
    revision: str | None = None
    live_score: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """lm-eval's name of the headline metric."""
        return f"{self.metric},{self.filter}"


@dataclass
class SuiteConfig:
    """One suite: which tasks, how much of them, from where.

    Attributes:
        tasks: entries of ``protocol`` to run, in order.
        limit: documents per task (and subtask) from the start; null for all.
        data_dir: folder with upstream's files, relative to the current directory; null for the hub.
        max_gen_toks: new tokens at most per answer; overrides what a task asks for.
        fewshot_as_multiturn: worked examples as turns of their own; the paper's protocol has one user turn.
        protocol: every benchmark known, by name.
    """

    name: str = MISSING
    tasks: list[str] = field(default_factory=list)
    limit: int | None = None
    data_dir: str | None = None
    max_gen_toks: int = 256
    fewshot_as_multiturn: bool = False
    protocol: dict[str, TaskSpec] = field(default_factory=dict)

    def selected(self) -> dict[str, TaskSpec]:
        """The tasks to run with their protocol.

        Raises:
            UserError: no task, an unknown one, or a number out of range.
        """
        for key, value in (("suite.limit", self.limit), ("suite.max_gen_toks", self.max_gen_toks)):
            if value is not None and value < 1:
                raise UserError(key, value, "a whole number of at least 1")
        known = sorted(self.protocol)
        if not self.tasks:
            raise UserError("suite.tasks", self.tasks, f"at least one of: {', '.join(known)}")
        for task in self.tasks:
            if task not in self.protocol:
                near = difflib.get_close_matches(task, known, n=1)
                fix = f"did you mean {near[0]}?" if near else "describe it below conf/suite/protocol"
                raise UserError("suite.tasks", task, f"known tasks are {', '.join(known)}", fix)
        return {task: self.protocol[task] for task in dict.fromkeys(self.tasks)}


def identity(suite: SuiteConfig) -> dict[str, Any]:
    """What of a suite can change a result: tasks with version, data hash and protocol, and the generation limits.

    Raises:
        UserError: as ``SuiteConfig.selected`` and ``documents.load``: a missing data file shows before any work starts.
    """
    from harness.evaluation import documents  # it reads the schema above

    tasks = {}
    for task, spec in suite.selected().items():
        tasks[task] = {
            "version": spec.version,
            "num_fewshot": spec.num_fewshot,
            "headline": spec.headline,
            "options": dict(spec.options),
            "data": {leaf: documents.data_hash(spec, suite, leaf) for leaf in spec.subtasks or [task]},
        }
    return {
        "tasks": tasks,
        "limit": suite.limit,
        "max_gen_toks": suite.max_gen_toks,
        "fewshot_as_multiturn": suite.fewshot_as_multiturn,
    }
