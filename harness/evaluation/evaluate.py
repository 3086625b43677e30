"""Runs a suite through lm-eval and hands back one row per document, with the suite's headline scores."""

from __future__ import annotations

import base64
import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from numbers import Real
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate as lm_eval_evaluate

from harness.engine.rows import Request
from harness.evaluation import tasks
from harness.evaluation.lm import EngineLM, Generates, Row
from harness.evaluation.quiet import quiet
from harness.evaluation.suites import SuiteConfig


@dataclass(frozen=True)
class Headline:
    """A benchmark's score, 0 to 1.

    Attributes:
        metric: lm-eval's name of it, "metric,filter".
        stderr: standard error of the mean over documents; None for fewer than two.
        subtasks: score of each subtask, where the benchmark has them; ``value`` then pools their documents.
        metrics: every metric as lm-eval aggregates it, "metric,filter"; over subtasks weighted by their documents.
    """

    metric: str
    value: float
    stderr: float | None
    n: int
    subtasks: dict[str, float]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """What a cell measured.

    Attributes:
        rows: one per document, in task and document order: what generation gave, plus ``group`` (the benchmark),
            ``score`` (headline, 0 to 1), ``metrics`` (every metric and filter), ``extracted`` and ``target``. Of gated
            benchmarks the texts are obscured (``obscure``).
        headline: per benchmark.
        average: plain mean of the benchmarks' headline values, as the paper averages.
        versions: task version per lm-eval task.
        data: content hash of the documents (or hub revision) per lm-eval task.
        protocol: shots, chat template, seeds, filters and limits, as run.
    """

    rows: list[Row]
    headline: dict[str, Headline]
    average: float
    versions: dict[str, str]
    data: dict[str, str]
    protocol: dict[str, Any]


def evaluate(
    engine: Generates,
    loaded: Any,
    suite: SuiteConfig,
    *,
    seed: int = 0,
    resume: Iterable[Mapping[str, Any]] = (),
    on_row: Callable[[Row], None] | None = None,
    progress: bool = False,
    label: str = "",
    batch_size: int = 1,
) -> Evaluation:
    """Score a loaded model on a suite.

    Args:
        engine: decodes; rows come back in its order of completion.
        loaded: the engine's model (tokenizer, name, context length).
        suite: what to ask; ``suite.limit`` documents per task.
        seed: from which each document's own seed is derived.
        resume: rows that an earlier attempt at the same cell handed to ``on_row``.
        on_row: told each generated document at once (counts and text, no score yet), to be kept for ``resume``.
        progress: show one bar with running tokens per forward and accuracy.
        label: the bar's text.
        batch_size: prompts read together where a task asks for log-likelihoods.

    Raises:
        UserError: a mistake in the suite, its data, or a prompt longer than the context; before anything is generated.
    """
    with quiet():
        built = tasks.build(suite)

        def live_score(instance: Instance, text: str) -> float | None:
            one = built[str(instance.task_name)]
            return one.score(instance, text) if one.spec.live_score else None

        gated = {name for name, one in built.items() if one.spec.gated}
        hidden = set() if suite.reveal_gated else gated

        def keep(row: Row) -> None:
            if on_row is not None:
                on_row(_obscured(row) if row["task"] in hidden else row)

        model = EngineLM(
            engine,
            loaded,
            seed=seed,
            done=[_revealed(row) if row["task"] in gated else row for row in resume],
            on_row=keep,
            score=live_score,
            progress=progress,
            label=label,
            batch_size=batch_size,
        )
        template = model.chat_template()
        # Neither cache of lm-eval is used: one is keyed on the prompt alone, the other on less.
        results = lm_eval_evaluate(
            lm=model,
            task_dict={"tasks": {name: one.task for name, one in built.items()}},
            limit=suite.limit,
            apply_chat_template=True,
            fewshot_as_multiturn=suite.fewshot_as_multiturn,
            bootstrap_iters=0,  # intervals are ours, from the documents
        )
    rows = [_obscured(row) if row["task"] in hidden else row for row in _merge(model.rows, built, results["samples"])]
    headline = _headlines(rows, built, results["results"])
    return Evaluation(
        rows=rows,
        headline=headline,
        average=statistics.fmean(one.value for one in headline.values()),
        versions={name: one.spec.version for name, one in built.items()},
        data={name: one.data_hash for name, one in built.items()},
        protocol=_protocol(suite, built, template, seed),
    )


def requests(engine: Generates, loaded: Any, suite: SuiteConfig, *, seed: int = 0) -> list[Request]:
    """What ``evaluate`` asks of the engine, in its order, without asking it: for a look at single documents.

    Raises:
        UserError: as ``evaluate``.
    """
    with quiet():
        built = tasks.build(suite, is_scored=False)
        model = EngineLM(engine, loaded, seed=seed)
        model.chat_template()
        for one in built.values():
            one.task.build_all_requests(
                limit=suite.limit,
                apply_chat_template=True,
                fewshot_as_multiturn=suite.fewshot_as_multiturn,
                chat_template=model.apply_chat_template,
            )
        return model.requests([instance for one in built.values() for instance in one.task.instances])


_OBSCURED = "base64:"


def _obscured(row: Mapping[str, Any]) -> Row:
    """The row of a gated benchmark without text that may quote its question; letters and token ids stay."""
    texts = {name: row[name] for name in ("text", "extracted") if len(row.get(name, "")) > len("(A)")}
    return dict(row) | {name: _OBSCURED + base64.b64encode(text.encode()).decode() for name, text in texts.items()}


def _revealed(row: Mapping[str, Any]) -> Row:
    """Inverse of ``_obscured`` for what a resumed cell reads; rows kept in plain text as they are."""
    text = str(row["text"])
    if not text.startswith(_OBSCURED):
        return dict(row)
    return dict(row) | {"text": base64.b64decode(text.removeprefix(_OBSCURED)).decode()}


def _merge(generated: Mapping[tuple[str, int], Row], built: Mapping[str, tasks.SuiteTask], samples: Any) -> list[Row]:
    """Join lm-eval's samples, one per (document, filter), to one row per document."""
    rows = []
    for name, one in built.items():
        by_document: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for sample in samples[name]:
            by_document[sample["doc_id"]].append(sample)
        for doc_id, found in sorted(by_document.items()):
            numbers = {f"{m},{s['filter']}": _number(s[m]) for s in found for m in s["metrics"]}
            metrics = {name: number for name, number in numbers.items() if number is not None}
            headline = next(sample for sample in found if sample["filter"] == one.spec.filter)
            rows.append(
                dict(generated[name, doc_id])
                | {
                    "group": one.group,
                    "score": metrics[one.spec.headline],
                    "metrics": metrics,
                    "extracted": str(headline["filtered_resps"][0]),
                    "target": str(headline["target"]),
                }
            )
    return rows


def _number(value: Any) -> float | None:
    """A document's metric as a number; several (IFEval judges each instruction) become their mean.

    None for what only the aggregate makes a number of (a pair of label and prediction).
    """
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list) and value and all(isinstance(part, Real) for part in value):
        return statistics.fmean(float(part) for part in value)
    return None


def _headlines(
    rows: Sequence[Row], built: Mapping[str, tasks.SuiteTask], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Headline]:
    """Means over documents, which is what lm-eval's ``mean`` and its size-weighted groups are."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        scores[row["group"]][row["task"]].append(row["score"])
    headline = {}
    for one in built.values():
        found = scores[one.group]
        every = [score for part in found.values() for score in part]
        headline[one.group] = Headline(
            metric=one.spec.headline,
            value=statistics.fmean(every),
            stderr=statistics.stdev(every) / math.sqrt(len(every)) if len(every) > 1 else None,
            n=len(every),
            subtasks={task: statistics.fmean(part) for task, part in found.items()} if one.spec.subtasks else {},
            metrics=_pooled({task: results[task] for task in found}, {task: len(part) for task, part in found.items()}),
        )
    return headline


def _pooled(results: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> dict[str, float]:
    """lm-eval's aggregates of a benchmark's tasks, weighted by documents; metrics that all of its tasks have."""
    shared = [
        name
        for name in next(iter(results.values()))
        if "," in name and "_stderr," not in name and all(isinstance(one.get(name), Real) for one in results.values())
    ]
    total = sum(sizes.values())
    return {name: sum(float(results[task][name]) * n for task, n in sizes.items()) / total for name in shared}


def _protocol(suite: SuiteConfig, built: Mapping[str, tasks.SuiteTask], template: str, seed: int) -> dict[str, Any]:
    return {
        "lm_eval": metadata.version("lm_eval"),
        "limit": suite.limit,
        "max_gen_toks": suite.max_gen_toks,
        "fewshot_as_multiturn": suite.fewshot_as_multiturn,
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
        "seeds": {"run": seed, "fewshot": tasks.FEWSHOT_SEED, "langdetect": 0, "shuffle and scoring": "by document"},
        "tasks": {
            name: {
                "group": one.group,
                "source": one.spec.source,
                "version": one.spec.version,
                "data": one.data_hash,
                "num_fewshot": one.spec.num_fewshot,
                "headline": one.spec.headline,
                "filters": [ensemble.name for ensemble in one.task._filters],
                "output": one.task.OUTPUT_TYPE,
                "stop": _stops(one.task.config.generation_kwargs),
                **({"options": dict(one.spec.options)} if one.spec.options else {}),
                **({"environment": one.environment} if one.environment else {}),
            }
            for name, one in built.items()
        },
    }


def _stops(options: Mapping[str, Any] | None) -> list[str]:
    until = (options or {}).get("until") or []
    return [until] if isinstance(until, str) else list(until)
