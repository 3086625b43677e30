"""What a suite asks: the typed schema of ``conf/suite``, its checks, and its share of a run's identity.

Nothing here imports lm-eval (two seconds): a dry run or a status listing needs the identity of a suite and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from harness.errors import UserError

BY_NAME = "lm_eval"  # source of a task that is no entry of the protocol: lm-eval's own, found by its name
SANDBOX_POLICIES = ("strict", "weak")
SUITES = Path(__file__).parents[2] / "conf" / "suite"
MOST_NAMED = 3  # tasks in a title


@dataclass
class TaskSpec:
    """The protocol of one benchmark; one entry of ``conf/suite/protocol``.

    Attributes:
        source: ``lm_eval:<path below lm_eval/tasks>`` for a stock YAML, a module of ours (see ``documents``), or
            ``lm_eval`` alone for a task that lm-eval finds by its name and that runs as it defines itself.
        version: the task version this protocol was written for; another one found is refused, never run silently.
        num_fewshot: worked examples in the prompt.
        metric, filter: the headline metric and the filter whose extraction it judges.
        subtasks: values of ``{subtask}`` in ``source`` and ``data_files``; the headline then pools all documents.
        subtask_field: where one file has the rows of all subtasks, the field that names the subtask of a row.
        data_files: upstream's files below ``suite.data_dir``, the first that exists is read (``documents.read_rows``
            says which formats); the first is the one that a mirror writes.
        fields: keys that every row of the data file must have.
        revision: commit of the hub dataset, used where no ``suite.data_dir`` is given.
        gated: upstream asks that its rows are not published; records and wandb then hold answers obscured.
        nltk: nltk resources that scoring reads ("tokenizers/punkt_tab"), looked for before anything is generated.
        live_score: score each document as it finishes, for the progress bar; false where scoring is slow.
        options: settings of a task of ours.
    """

    source: str = MISSING
    version: str = MISSING
    num_fewshot: int = 0
    metric: str = MISSING
    filter: str = MISSING
    subtasks: list[str] = field(default_factory=list)
    subtask_field: str | None = None
    data_files: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    revision: str | None = None
    gated: bool = False
    nltk: list[str] = field(default_factory=list)
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
        tasks: what to run, in order: entries of ``protocol``, and any other task, group or tag of lm-eval's.
        limit: documents per task (and subtask) from the start; null for all.
        data_dir: folder with upstream's files, relative to the current directory; null for the hub.
        include_path: folder with further lm-eval tasks (YAML), which ``tasks`` may name.
        max_gen_toks: new tokens at most per answer; overrides what a task asks for.
        fewshot_as_multiturn: worked examples as turns of their own; the paper's protocol has one user turn.
        sandbox: strict | weak, how generated programs are contained (``sandbox``).
        reveal_gated: keep the answers to gated benchmarks, which may quote their questions, in plain text.
        protocol: every benchmark known, by name.
    """

    name: str = MISSING
    tasks: list[str] = field(default_factory=list)
    limit: int | None = None
    data_dir: str | None = None
    include_path: str | None = None
    max_gen_toks: int = 256
    fewshot_as_multiturn: bool = False
    sandbox: str = "strict"
    reveal_gated: bool = False
    protocol: dict[str, TaskSpec] = field(default_factory=dict)

    def selected(self) -> dict[str, TaskSpec]:
        """The tasks to run with their protocol; a name that the protocol lacks is looked up in lm-eval's index.

        Raises:
            UserError: no task, an unknown one, a subtask twice, or a number or choice out of range.
        """
        for key, value in (("suite.limit", self.limit), ("suite.max_gen_toks", self.max_gen_toks)):
            if value is not None and value < 1:
                raise UserError(key, value, "a whole number of at least 1")
        if self.sandbox not in SANDBOX_POLICIES:
            raise UserError("sandbox", self.sandbox, f"one of {', '.join(SANDBOX_POLICIES)}", "sandbox=strict")
        if not self.tasks:
            known = ", ".join(sorted(self.protocol))
            raise UserError("suite.tasks", self.tasks, f"at least one of: {known}; or another task of lm-eval's")
        found = {name: self.protocol.get(name) or self._by_name(name) for name in dict.fromkeys(self.tasks)}
        for name, spec in found.items():
            if spec.source == BY_NAME and name in self.protocol:
                allowed = f"{BY_NAME}:FILE, a YAML below lm_eval/tasks or with its whole path, or a module"
                fix = f"{BY_NAME}:/…/{name}.yaml; or leave the entry out, and the task runs as it defines itself"
                raise UserError(f"suite.protocol.{name}.source", spec.source, allowed, fix)
            if spec.num_fewshot < 0:
                raise UserError(f"suite.protocol.{name}.num_fewshot", spec.num_fewshot, "a whole number, 0 or more")
            subtasks = list(spec.subtasks)
            if len(set(subtasks)) < len(subtasks) or ("{subtask}" in spec.source and not subtasks):
                raise UserError(f"suite.protocol.{name}.subtasks", subtasks, "at least one subtask, each once")
        return found

    def _by_name(self, name: str) -> TaskSpec:
        from harness.evaluation import index  # lm-eval's index takes seconds, which the protocol's tasks do not need

        index.check(name, self.include_path, sorted(self.protocol))
        return TaskSpec(source=BY_NAME, version=f"lm-eval {metadata.version('lm_eval')}", metric="", filter="")


def title(name: str, tasks: Sequence[str]) -> str:
    """What to call a suite: its name, or its tasks where they are not those of the suite of this name."""
    path = SUITES / f"{name}.yaml"
    if not path.is_file() or list(OmegaConf.load(path).tasks) == list(tasks):
        return name
    return ", ".join(tasks) if len(tasks) <= MOST_NAMED else f"{len(tasks)} tasks"


def _definition(task: str, include_path: str | None) -> str:
    from harness.evaluation import index

    return f"{BY_NAME}:{index.definition_hash(task, include_path)}"


def identity(suite: SuiteConfig) -> dict[str, Any]:
    """What of a suite can change a result: tasks with version, data hash and protocol, and the generation limits.

    Raises:
        UserError: as ``SuiteConfig.selected`` and ``documents.load``: a missing data file shows before any work starts.
    """
    from harness.evaluation import documents  # it reads the schema above

    tasks = {}
    for task, spec in suite.selected().items():
        tasks[task] = {
            "source": spec.source if spec.source != BY_NAME else _definition(task, suite.include_path),
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
