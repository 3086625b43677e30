"""Turns a suite into lm-eval task objects, without lm-eval's index of all tasks (14,000 files, nine seconds)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import pyarrow
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from harness.errors import UserError
from harness.evaluation import documents
from harness.evaluation.suites import SuiteConfig, TaskSpec

FEWSHOT_SEED = 1234  # lm-eval's own default


@dataclass
class SuiteTask:
    """One lm-eval task of a suite.

    Attributes:
        group: the name in ``suite.tasks`` that it came from (itself, or the benchmark it is a subtask of).
        data_hash: hash of its documents, or the hub revision.
    """

    group: str
    spec: TaskSpec
    task: ConfigurableTask
    data_hash: str

    @property
    def name(self) -> str:
        """lm-eval's name."""
        return self.task.task_name

    def score(self, instance: Instance, text: str) -> float:
        """Headline metric of one answer, by the task's own filter and scorer."""
        probe = Instance("generate_until", instance.doc, instance.arguments, 0, instance.metadata, resps=[text])
        ensemble = next(e for e in self.task._filters if e.name == self.spec.filter)
        ensemble.apply([probe])
        return float(self.task.process_results(probe.doc, [probe.filtered_resps[self.spec.filter]])[self.spec.metric])


def build(suite: SuiteConfig) -> dict[str, SuiteTask]:
    """lm-eval task objects of a suite, by lm-eval's name, with the suite's protocol applied.

    Raises:
        UserError: as ``SuiteConfig.selected`` and ``documents.load``; a task of another version than the protocol's; a
            hub dataset that cannot be reached.
    """
    built = {}
    for group, spec in suite.selected().items():
        for leaf in spec.subtasks or [group]:
            one = _build_one(group, spec, suite, leaf)
            built[one.name] = one
    return built


def _build_one(group: str, spec: TaskSpec, suite: SuiteConfig, leaf: str) -> SuiteTask:
    config = _config(spec, leaf)
    version = str((config.get("metadata") or {}).get("version"))
    if version != spec.version:
        raise UserError(
            f"suite.protocol.{group}.version",
            spec.version,
            f"the installed task {config['task']} has version {version}",
            f"install the lm-eval this protocol was written for, or set suite.protocol.{group}.version={version}",
        )
    rows = documents.load(spec, suite, leaf)
    if rows is not None:
        split, loaded = config["test_split"], _dataset(rows, group)
        config["custom_dataset"] = lambda **_: {split: loaded}
    elif spec.revision:
        config["dataset_kwargs"] = (config.get("dataset_kwargs") or {}) | {"revision": spec.revision}
    config["num_fewshot"] = spec.num_fewshot
    # The one name that wins over a task's own limit; max_new_tokens and its like do not.
    config["generation_kwargs"] = (config.get("generation_kwargs") or {}) | {"max_gen_toks": suite.max_gen_toks}
    try:
        task = ConfigurableTask(config=config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        if rows is not None:
            raise
        raise _hub_error(config, spec, error) from error
    _check_headline(group, spec, task)
    task.set_fewshot_seed(FEWSHOT_SEED)
    data_hash = documents.data_hash(spec, suite, leaf) if rows is None else documents.hash_rows(rows)
    return SuiteTask(group, spec, task, data_hash)


def _dataset(rows: list[dict[str, Any]], group: str) -> datasets.Dataset:
    """Raises UserError where rows do not share a type per field, or hold what is no text."""
    try:
        return datasets.Dataset.from_list(rows)
    except (ValueError, TypeError, pyarrow.ArrowException) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        allowed = f"the rows of {group} must have one type per field ({reason})"
        raise UserError("suite.data_dir", group, allowed, "restore the file as upstream has it") from error


def _config(spec: TaskSpec, leaf: str) -> dict[str, Any]:
    if module := documents.own_module(spec):
        return module.config()
    path = Path(lm_eval.tasks.__file__).parent / spec.source.removeprefix(documents.STOCK).format(subtask=leaf)
    if not path.is_file():
        raise UserError("source", spec.source, f"a YAML file below {Path(lm_eval.tasks.__file__).parent}")
    config = copy.deepcopy(load_yaml(path, resolve_func=True))
    return {key: value for key, value in config.items() if key not in ("tag", "group", "task_list")}


def _check_headline(group: str, spec: TaskSpec, task: ConfigurableTask) -> None:
    filters = [ensemble.name for ensemble in task._filters]
    metrics = list(task._metric_fn_list)
    for part, value, known in (("filter", spec.filter, filters), ("metric", spec.metric, metrics)):
        if value not in known:
            raise UserError(f"suite.protocol.{group}.{part}", value, f"the task has {', '.join(known)}")


def _hub_error(config: dict[str, Any], spec: TaskSpec, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    file = Path(spec.data_file).name if spec.data_file else "upstream's files"
    return UserError(
        "suite.data_dir",
        None,
        f"{config.get('dataset_path')} could not be loaded from the hub ({type(error).__name__}: {reason})",
        f"go online, or give suite.data_dir=DIR, a folder with {file}",
    )
