"""Runs a generated program where it can do little harm, and says whether it reached its end.

The program gets a process, a process group and a temporary folder of its own, an environment without the caller's
variables, no standard input or output, limits on time, memory and files, and, where the kernel offers it, no network
and no writing outside its folder. See ``sandbox_child`` for what happens on the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("sandbox_child.py")
PASSED = "passed"
MAX_REPLY_BYTES = 65_536


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
        isolation: what the kernel enforced beyond limits: "network", "writes".
    """

    outcome: str
    isolation: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the program ran to its end."""
        return self.outcome == PASSED


def run(program: str, limits: Limits | None = None) -> Verdict:
    """Run Python source to its end or to a limit; everything it started in its process group dies with it.

    Raises:
        RuntimeError: the sandbox itself could not start.
    """
    limits = limits or Limits()
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder:
        task = json.dumps({"program": program, "token": token, "folder": folder, "limits": asdict(limits)})
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        with os.fdopen(readable, "rb", buffering=0) as reply:
            process = subprocess.Popen(
                [sys.executable, "-s", "-P", str(CHILD), str(writable)],
                cwd=folder,
                env=_environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writable,),
                start_new_session=True,
            )
            os.close(writable)
            out_of_time = False
            try:
                process.communicate(task.encode(), timeout=limits.wall_seconds)
            except subprocess.TimeoutExpired:
                out_of_time = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            answer = reply.read(MAX_REPLY_BYTES) or b""
    return _verdict(answer, token, process.returncode, out_of_time)


def _environment(folder: str) -> dict[str, str]:
    # A fixed hash seed: a program that prints a set must not pass on one day and fail on the next.
    # One thread: a pool as large as the machine would eat the memory limit, and not on every machine.
    return {
        "PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip


def _verdict(answer: bytes, token: str, returncode: int, out_of_time: bool) -> Verdict:
    """Only a reply with our token counts: leaving early, by whatever exit, is not passing."""
    reports: dict[str, Any] = {}
    for line in answer.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("token") == token:
                reports |= found
    if "isolation" not in reports and not out_of_time:
        # A sandbox that cannot start must not read as a model that cannot program.
        raise RuntimeError(f"the sandbox ended with status {returncode} before it ran the program ({CHILD})")
    isolation = tuple(reports.get("isolation", ()))
    if out_of_time:
        return Verdict("timed out", isolation)
    if "outcome" in reports:
        return Verdict(reports["outcome"], isolation)
    if returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict("timed out", isolation)
    return Verdict(f"failed: ended early (status {returncode})", isolation)
