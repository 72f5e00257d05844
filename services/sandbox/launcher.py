"""The guard of one run: a process of its own between the service and the code.

Started by path, in isolated mode, with an empty environment::

    python -I -S launcher.py CONTROL_FD PACKAGES      0, 1, 2: the code's standard streams

On the control socket it reads one line of JSON, the order (see :class:`Order`), and writes one line of JSON, the
report, after nothing of the run is left. **The end of the control socket is the command to stop**: closing it says
so, and a service that dies closes it too.

It makes itself the reaper of all its descendants, so that whoever forks twice and calls setsid still comes back to
it as a child, and it ends only when the kernel says that it has no child left.

Every run pays for what is imported here. So nothing of ours is, dataclasses are not (they alone took a fifth of the
start), and PACKAGES, the folder of psutil, is looked into only by runs that leave something behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_MAX_CAPABILITY = 63
_MAX_OPEN_FILES = 1024
# A run that floods the machine must not slow down those who end it.
_NICENESS = 10
# Rounds of freezing before killing; a tree that still grows then is killed as far as it is seen, and seen again.
_FREEZE_ROUNDS = 50
_LIBC = ctypes.CDLL(None, use_errno=True)


class Order(NamedTuple):
    """What to run.

    Attributes:
        folder: to be made now and removed at the end: `script`, `home` (where the code starts) and `tmp`.
        argv: the interpreter with its options; the script's path is added.
        script: the code.
        environment: the whole environment of the code.
        timeout_seconds: how long the code's own process may live.
        memory_bytes, file_bytes, processes: the resource limits; None sets none.
    """

    folder: str
    argv: list[str]
    script: str
    environment: dict[str, str]
    timeout_seconds: float
    memory_bytes: int | None
    file_bytes: int
    processes: int | None


class Report(NamedTuple):
    """How it ended.

    Attributes:
        end: `exited`, `timed_out` or `stopped`, or `failed` when the code could not be started.
        exit_code: of the code's own process; the negative number of a signal that ended it.
        duration_seconds: from its start until it ended or was told to.
        message: why it could not be started.
    """

    end: str
    exit_code: int = 0
    duration_seconds: float = 0.0
    message: str = ""


def forbid_inspection() -> None:
    """Closes this process's memory and environment in /proc to other processes of the same user."""
    _prctl(_PR_SET_DUMPABLE, 0)


class Tree:
    """The code's own process and everything that descends from it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.exit_code: int | None = None

    def reap(self) -> bool:
        """Collects the dead. Returns whether anybody is left, which the kernel knows for certain."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self.exit_code = os.waitstatus_to_exitcode(status)

    def kill(self, wakeup: int) -> None:
        """Kills until nobody is left."""
        while self.reap():
            self._kill_those_seen()
            _wait([wakeup], 0.01)
            _drain(wakeup)

    def _kill_those_seen(self) -> None:
        import psutil  # noqa: PLC0415 - see the top

        me = psutil.Process()
        seen: set[psutil.Process] = set()
        # Frozen first: who is stopped cannot fork, and keeps its place against the limits on processes.
        for _ in range(_FREEZE_ROUNDS):
            new = set(me.children(recursive=True)) - seen
            if not new:
                break
            for process in new:
                _freeze(process.pid)
            seen |= new
        for process in seen:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _freeze(pid: int) -> None:
    """Stops a descendant with its whole process group: the kernel does that at once, so that no fork slips by."""
    with contextlib.suppress(ProcessLookupError):
        group = os.getpgid(pid)
        if group == os.getpgrp():
            os.kill(pid, signal.SIGSTOP)
        else:
            os.killpg(group, signal.SIGSTOP)


def _prctl(option: int, argument: int) -> bool:
    done: int = _LIBC.prctl(option, argument, 0, 0, 0)
    return done == 0


def _confine(order: Order, guard: int) -> None:
    """Runs in the code's process before it becomes the interpreter."""
    if not _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) or os.getppid() != guard:
        os._exit(127)
    # No setuid program helps the code to what its user may not, or out of reach of our signals.
    if not _prctl(_PR_SET_NO_NEW_PRIVS, 1):
        os._exit(127)
    # Started as root, it keeps the number and loses the powers; among them reading the service's memory.
    for capability in range(_MAX_CAPABILITY + 1):
        _prctl(_PR_CAPBSET_DROP, capability)
    # When memory runs out, the code goes first and not the service.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    os.nice(_NICENESS)
    os.umask(0o077)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, order.file_bytes)
    if order.memory_bytes is not None:
        _limit(resource.RLIMIT_AS, order.memory_bytes)
    if order.processes is not None:
        _limit(resource.RLIMIT_NPROC, order.processes)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))


def _start(order: Order) -> subprocess.Popen[bytes]:
    folder = Path(order.folder)
    folder.mkdir(mode=0o700)
    (folder / "home").mkdir(mode=0o700)
    (folder / "tmp").mkdir(mode=0o700)
    script = folder / "script"
    script.write_bytes(order.script.encode())
    guard = os.getpid()
    return subprocess.Popen(
        [*order.argv, str(script)],
        cwd=folder / "home",
        env=order.environment,
        start_new_session=True,
        preexec_fn=lambda: _confine(order, guard),  # noqa: PLW1509 - this process has one thread
    )


def _remove(folder: str) -> None:
    """Removes a run's folder, however deep, and also what the code has locked against itself."""
    remove = ["/bin/rm", "-rf", "--", folder]
    if subprocess.run(remove, stderr=subprocess.DEVNULL, check=False).returncode:
        subprocess.run(["/bin/chmod", "-R", "u+rwx", "--", folder], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(remove, stderr=subprocess.DEVNULL, check=False)


def _wait(readable: list[int], seconds: float) -> list[int]:
    ready, _, _ = select.select(readable, [], [], max(seconds, 0.0))
    return ready


def _drain(wakeup: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(wakeup, 4096)
    return b""


def _watch(tree: Tree, control: int, wakeup: int, timeout_seconds: float) -> str:
    """Waits until the code's own process has ended, its time is up, or the service wants an end."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        tree.reap()
        if tree.exit_code is not None:
            return "exited"
        left = deadline - time.monotonic()
        if left <= 0:
            return "timed_out"
        ready = _wait([control, wakeup], left)
        if control in ready:
            return "stopped"
        if wakeup in ready and set(_drain(wakeup)) - {signal.SIGCHLD}:
            return "stopped"


def _listen() -> int:
    """Turns signals into bytes on a pipe, so that none comes between a look and a wait."""
    wakeup, raised = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(raised, False)
    signal.set_wakeup_fd(raised, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    return wakeup


def _release_streams() -> None:
    """Lets go of the code's standard streams, so that their ends are seen when the code is gone."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _read_order(control: socket.socket) -> Order | None:
    """Reads the order; None when the service went away before it was complete."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = control.recv(65_536)
        if not piece:
            return None
        line += piece
    return Order(**json.loads(line))


def _carry_out(order: Order, control: socket.socket, wakeup: int) -> Report:
    try:
        process = _start(order)
    except (OSError, subprocess.SubprocessError) as error:
        _release_streams()
        return Report("failed", message=str(error))
    _release_streams()
    tree = Tree(process.pid)
    started = time.monotonic()
    end = _watch(tree, control.fileno(), wakeup, order.timeout_seconds)
    duration = time.monotonic() - started
    tree.kill(wakeup)
    # All waiting was done by the tree; Popen must not wait for a number that may be somebody else's by now.
    process.returncode = -signal.SIGKILL if tree.exit_code is None else tree.exit_code
    return Report(end, process.returncode, duration)


def main() -> NoReturn:
    """Carries out one order."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path.append(sys.argv[2])
    wakeup = _listen()
    forbid_inspection()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if not _prctl(_PR_SET_CHILD_SUBREAPER, 1):
        sys.exit("the kernel does not let this process adopt its descendants")
    order = _read_order(control)
    if order is None:
        sys.exit(0)
    try:
        report = _carry_out(order, control, wakeup)
    finally:
        _remove(order.folder)
    # The service may be gone; then nobody wants to know.
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(report._asdict()).encode() + b"\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
