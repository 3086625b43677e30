"""The ``word_problems`` task: generated arithmetic stories, so that a fresh machine has a benchmark without a download.

The question is the whole user turn, the answer ends with ``#### <number>``, and that number is what is compared.
"""

from __future__ import annotations

from typing import Any

from harness import problems
from harness.evaluation.suites import TaskSpec

DEFAULT_COUNT = 1000
OPTIONS = {"count": (int, 1), "seed": (int, 0)}


def documents(spec: TaskSpec, limit: int | None) -> list[dict[str, Any]]:
    """The first ``limit`` problems of the test split; a longer list extends a shorter one."""
    count = limit or spec.options.get("count", DEFAULT_COUNT)
    found = problems.generate("test", count, seed=spec.options.get("seed", 0))
    return [{"question": problem.question, "answer": problem.answer} for problem in found]


def config(_policy: str = "strict") -> dict[str, Any]:
    """The task in lm-eval's terms: exact match of the number after ``####`` (strict) or of the last number."""
    first = {"function": "take_first"}
    match = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    return {
        "task": "word_problems",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer.split('####')[-1].strip()}}",
        "generation_kwargs": {"until": [], "do_sample": False},
        "metric_list": [match | {"regexes_to_ignore": [",", r"\.$"]}],
        "filter_list": [
            {"name": "strict-match", "filter": [{"function": "regex", "regex_pattern": r"#### (-?[0-9.,]+)"}, first]},
            {
                "name": "flexible-extract",
                "filter": [{"function": "regex", "group_select": -1, "regex_pattern": r"-?[0-9][0-9.,]*"}, first],
            },
        ],
        "metadata": {"version": 1.0},
    }
