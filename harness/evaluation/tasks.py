"""Turns a suite into lm-eval task objects, without lm-eval's index of all tasks (14,000 files, nine seconds)."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import pyarrow
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from harness.errors import UserError
from harness.evaluation import determinism, documents, resources
from harness.evaluation.suites import BY_NAME, SuiteConfig, TaskSpec

FEWSHOT_SEED = 1234  # lm-eval's own default
GATED = ("Idavidrein/gpqa",)  # hub datasets whose rows upstream asks not to publish, under whatever task


@dataclass
class SuiteTask:
    """One lm-eval task of a suite.

    Attributes:
        group: the name in ``suite.tasks`` that it came from (itself, or the benchmark it is a subtask of).
        data_hash: hash of its documents, or the hub revision.
        environment: what scoring needs of the surroundings, as found.
    """

    group: str
    spec: TaskSpec
    task: ConfigurableTask
    data_hash: str
    environment: dict[str, Any] = field(default_factory=dict)

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


def build(suite: SuiteConfig, *, is_scored: bool = True) -> dict[str, SuiteTask]:
    """lm-eval task objects of a suite, by lm-eval's name, with the suite's protocol applied.

    Args:
        is_scored: false for a look at prompts alone, which needs no place to run generated programs in.

    Raises:
        UserError: as ``SuiteConfig.selected`` and ``documents.load``; a task of another version than the protocol's; a
            hub dataset that cannot be reached; something that scoring will need and that is not there.
    """
    built: dict[str, SuiteTask] = {}
    for group, spec in suite.selected().items():
        environment = _environment(spec, suite, is_scored)
        if spec.source == BY_NAME:
            found = _build_by_name(group, spec, suite)
        else:
            found = [_build_one(group, spec, suite, leaf) for leaf in spec.subtasks or [group]]
        for one in found:
            if one.name in built:
                allowed = f"tasks without a common part; {built[one.name].group} and {group} both have {one.name}"
                raise UserError("suite.tasks", suite.tasks, allowed)
            built[one.name] = dataclasses.replace(one, environment=environment)
            determinism.fix(one.task.config)
            one.task.set_fewshot_seed(FEWSHOT_SEED)
            if suite.data_dir is not None and spec.data_files:
                _check_answerable(one, suite, is_scored)
            if one.task.OUTPUT_TYPE == "generate_until":
                # The one name that wins over a task's own limit; max_new_tokens and its like do not.
                options = dict(one.task.config.generation_kwargs or {}) | {"max_gen_toks": suite.max_gen_toks}
                one.task.config.generation_kwargs = options
    return built


def _environment(spec: TaskSpec, suite: SuiteConfig, is_scored: bool) -> dict[str, Any]:
    found = {name: resources.nltk_resource(name, suite.data_dir) for name in spec.nltk}  # the task's import wants them
    module = documents.own_module(spec) if is_scored else None
    return found | (module.environment(suite) if module is not None and hasattr(module, "environment") else {})


def _build_one(group: str, spec: TaskSpec, suite: SuiteConfig, leaf: str) -> SuiteTask:
    config = (
        stock_config(spec, leaf) if (module := documents.own_module(spec)) is None else module.config(suite.sandbox)
    )
    version = str((config.get("metadata") or {}).get("version"))
    if version != spec.version:
        raise UserError(
            f"suite.protocol.{group}.version",
            spec.version,
            f"the installed task {config['task']} has version {version}",
            f"install the lm-eval this protocol was written for, or set suite.protocol.{group}.version={version}",
        )
    _check_fewshot(config, group, spec)
    rows = documents.load(spec, suite, leaf)
    if suite.data_dir is not None and spec.data_files and rows is not None:
        _check_rows(rows, leaf, spec)
        _check_categories(group, spec, suite)
    if rows is not None:
        split, loaded = evaluation_split(config), _dataset(rows, group, spec)
        config["custom_dataset"] = lambda **_: {split: loaded}
        _drop_fewshot_split(config, group, spec, split)
    elif spec.revision:
        config["dataset_kwargs"] = (config.get("dataset_kwargs") or {}) | {"revision": spec.revision}
    config["num_fewshot"] = spec.num_fewshot
    try:
        task = ConfigurableTask(config=config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        if rows is not None:
            raise
        raise _hub_error(group, str(config["dataset_path"]), spec, suite, error) from error
    _check_headline(group, spec, task)
    data_hash = documents.data_hash(spec, suite, leaf) if rows is None else documents.hash_rows(rows)
    return SuiteTask(group, spec, task, data_hash)


# Fields of a row that are not one text. Stock GPQA takes an answer that is nothing for a blank one.
TEXTS = ("options", "instruction_id_list")
ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
NO_TEXT = ("key", "kwargs")


def _check_rows(rows: documents.Rows, leaf: str, spec: TaskSpec) -> None:
    """Refuse rows that lm-eval would ask as the text "None" or "7", or fail on in the middle. No value is told."""
    for i, row in enumerate(rows, 1):
        for name in (name for name in spec.fields if name not in NO_TEXT):
            value = row[name]
            if name in TEXTS:
                fits = isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
            else:
                fits = isinstance(value, str) or (value is None and name in ANSWERS)
            if not fits:
                wanted = "a list of texts" if name in TEXTS else "a text"
                allowed = f"{name} is {wanted}, and here it is not ({type(value).__name__})"
                raise UserError("suite.data_dir", f"{leaf}, row {i}", allowed, documents.FIX)


def _check_categories(group: str, spec: TaskSpec, suite: SuiteConfig) -> None:
    """Refuse rows that belong to no subtask of the stock task: they would be left out without a word."""
    if spec.subtask_field is None:
        return
    every = documents.load(dataclasses.replace(spec, subtask_field=None), suite, group) or []
    for category in dict.fromkeys(str(row[spec.subtask_field]) for row in every):
        if not _stock_path(spec, category.replace(" ", "_")).is_file():
            allowed = f"a subject that the task has as {spec.subtask_field} of each row"
            raise UserError("suite.data_dir", category, allowed, documents.FIX)


def _check_answerable(one: SuiteTask, suite: SuiteConfig, is_scored: bool) -> None:
    """Ask and score each document once, before anything is generated: no malformed row is to show after hours.

    Raises:
        UserError: the task's own functions fail on a document. Of a gated one nothing but its number is told.
    """
    for i, doc in enumerate(itertools.islice(one.task.eval_docs, suite.limit)):
        try:
            one.task.doc_to_text(doc)
            one.task.doc_to_target(doc)
            if is_scored and one.spec.live_score:
                one.score(Instance("generate_until", doc, ("", {}), 0, (one.name, i, 1)), "")
        except Exception as error:
            reason = type(error).__name__ + ("" if one.spec.gated else f": {error}")
            allowed = f"documents that the task can ask and score; this one it cannot ({reason})"
            raise UserError("suite.data_dir", f"{one.name}, document {i}", allowed, documents.FIX) from (
                None if one.spec.gated else error
            )


def _check_fewshot(config: dict[str, Any], group: str, spec: TaskSpec) -> None:
    """Worked examples come from the task's file or a split of their own, never from the documents that are asked."""
    samples = (config.get("fewshot_config") or {}).get("samples")
    if callable(samples) or (samples is None and config.get("fewshot_split") not in (None, evaluation_split(config))):
        return
    if spec.num_fewshot > (most := len(samples or ())):
        allowed = f"at most {most}; the task has no more worked examples beside the questions that are asked"
        raise UserError(f"suite.protocol.{group}.num_fewshot", spec.num_fewshot, allowed)


def _drop_fewshot_split(config: dict[str, Any], group: str, spec: TaskSpec, split: str) -> None:
    """The files have the questions alone; worked examples that stand in the task itself need no split."""
    if config.get("fewshot_split") in (None, split):
        return
    if spec.num_fewshot:
        allowed = (
            f"0 with suite.data_dir: its worked examples are in {config['dataset_path']}'s {config['fewshot_split']}"
        )
        raise UserError(f"suite.protocol.{group}.num_fewshot", spec.num_fewshot, allowed, "leave suite.data_dir out")
    del config["fewshot_split"]


def _build_by_name(name: str, spec: TaskSpec, suite: SuiteConfig) -> list[SuiteTask]:
    """A task, group or tag of lm-eval's as it defines itself; its first metric that is a mean is the headline."""
    from harness.evaluation import index

    try:
        found = index.load(name, suite.include_path)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise _hub_error(name, f"a dataset of {name}", spec, suite, error) from error
    built = []
    for task in found.values():
        means = [metric for metric, aggregation in task._aggregation_list.items() if aggregation is mean]
        if not means:
            allowed = f"tasks with a metric that is a mean over documents; {task.task_name} has none"
            fix = "python -m harness.lm_eval shows lm-eval's own metrics of any task"
            raise UserError("suite.tasks", name, allowed, fix)
        config = task.config
        own = dataclasses.replace(
            spec,
            num_fewshot=config.num_fewshot or 0,
            metric=means[0],
            filter=task._filters[0].name if hasattr(task, "_filters") else "none",
            subtasks=[] if len(found) == 1 else list(found),
            version=str((config.metadata or {}).get("version")),
            gated=config.dataset_path in GATED,
            live_score=False,
        )
        built.append(SuiteTask(name, own, task, "hub:main"))
    return built


def evaluation_split(config: dict[str, Any]) -> str:
    """The split whose documents are asked, as lm-eval chooses it."""
    return config.get("test_split") or config["validation_split"]


def _dataset(rows: documents.Rows, group: str, spec: TaskSpec) -> datasets.Dataset:
    """Raises UserError where rows do not share a type per field, or hold what is no text."""
    try:
        return datasets.Dataset.from_list(rows)
    except (ValueError, TypeError, pyarrow.ArrowException) as error:
        # Such a message may quote a value, which stays untold where upstream asks for it.
        reason = type(error).__name__ if spec.gated else (str(error) or type(error).__name__).splitlines()[0]
        allowed = f"the rows of {group} must have one type per field ({reason})"
        raise UserError("suite.data_dir", group, allowed, documents.FIX) from (None if spec.gated else error)


def stock_config(spec: TaskSpec, leaf: str) -> dict[str, Any]:
    """lm-eval's own definition of a protocol's task (the keys of its YAML files).

    Raises:
        UserError: no such file.
    """
    path = _stock_path(spec, leaf)
    if not path.is_file():
        raise UserError("source", spec.source, f"a YAML file below {Path(lm_eval.tasks.__file__).parent}")
    config = copy.deepcopy(load_yaml(path, resolve_func=True))
    return {key: value for key, value in config.items() if key not in ("tag", "group", "task_list")}


def _stock_path(spec: TaskSpec, leaf: str) -> Path:
    return Path(lm_eval.tasks.__file__).parent / spec.source.removeprefix(documents.STOCK).format(subtask=leaf)


def _check_headline(group: str, spec: TaskSpec, task: ConfigurableTask) -> None:
    filters = [ensemble.name for ensemble in task._filters]
    metrics = list(task._metric_fn_list)
    for part, value, known in (("filter", spec.filter, filters), ("metric", spec.metric, metrics)):
        if value not in known:
            raise UserError(f"suite.protocol.{group}.{part}", value, f"the task has {', '.join(known)}")


def _hub_error(task: str, dataset: str, spec: TaskSpec, suite: SuiteConfig, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    file = Path(spec.data_files[0]).name if spec.data_files else "upstream's files"
    ask = f"ask for access on the hub's page of {dataset} and run hf auth login, " if spec.gated else ""
    local = f"or give suite.data_dir=DIR, a folder with {file}" if spec.source != BY_NAME else "or fill the hub's cache"
    return UserError(
        "suite.tasks" if spec.source == BY_NAME else "suite.data_dir",
        task if spec.source == BY_NAME else suite.data_dir,
        f"{dataset} could not be loaded from the hub ({type(error).__name__}: {reason})",
        f"{ask}go online, {local}",
    )
