"""Runs code: starts the launcher, passes output on as fast as it is taken, and knows when all of it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil
import structlog

from . import launcher
from .launcher import Order, Report
from .leftovers import kill_leftovers
from .spec import Language, RunSpec

_log = structlog.get_logger(__name__)

_LAUNCHER = Path(launcher.__file__)
_PACKAGES = Path(psutil.__file__).parent.parent
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHUNK_BYTES = 64 * 1024
# Pieces that wait for a slow caller; with the pipes and readers before them a run holds about 1 MiB at most.
_WAITING_PIECES = 4


class SandboxError(Exception):
    """A run could not be made, or not be finished."""


class NoPlaceError(SandboxError):
    """Every place is taken."""


class LauncherError(SandboxError):
    """The launcher failed, or was killed; what the code did until then is not known."""


class OutputLostError(SandboxError):
    """The caller did not take the output in time."""


class Stream(StrEnum):
    """Where output came from."""

    STDOUT = "stdout"
    STDERR = "stderr"


class EndKind(StrEnum):
    """How a run ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    OUTPUT_LIMIT = "output_limit"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Output:
    """Some bytes that the code wrote, at most 64 KiB."""

    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The last event. Nothing of the run is left when it is handed out: no process, no file.

    Attributes:
        kind: how it ended.
        exit_code: of the code's own process; the negative number of a signal that ended it.
        duration_seconds: how long that process lived.
        stdout_bytes: how much was passed on from standard output.
        stderr_bytes: how much was passed on from standard error.
    """

    kind: EndKind
    exit_code: int
    duration_seconds: float
    stdout_bytes: int
    stderr_bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for every run of this sandbox.

    Attributes:
        places: runs at the same time.
        python: the interpreter; None takes the one below the service's virtual environment.
        folder: where runs get their folders; None takes the system's temporary folder.
        memory_bytes: address space of each process; None for no limit.
        file_bytes: size of each file.
        processes: of the whole user id; None for no limit.
        delivery_seconds: for a caller to take what is left of the output after the end.
    """

    places: int = 8
    python: Path | None = None
    folder: Path | None = None
    memory_bytes: int | None = 2 * 1024**3
    file_bytes: int = 64 * 1024**2
    processes: int | None = None
    delivery_seconds: float = 60.0


class Run:
    """A run under way.

    It is held by the sandbox and not by whoever reads it, so that it ends and gives its place back also when its
    reader is stuck or forgotten.
    """

    def __init__(
        self,
        spec: RunSpec,
        folder: Path,
        delivery_seconds: float,
        process: asyncio.subprocess.Process,
        control: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._delivery_seconds = delivery_seconds
        self._process = process
        self._control_in, self._control_out = control
        self._events: asyncio.Queue[Output | End | SandboxError] = asyncio.Queue(_WAITING_PIECES)
        self._report: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._passed_on = dict.fromkeys(Stream, 0)
        self._over_limit = False
        self._abandoned = False

    @property
    def launcher_pid(self) -> int:
        """The process that guards this run."""
        return self._process.pid

    async def events(self) -> AsyncIterator[Output | End]:
        """Hands out the output as it comes and the end as the last event. For one reader, once.

        Raises:
            LauncherError: the code could not be started, or its launcher was killed.
            OutputLostError: the output was not taken in time.
        """
        while True:
            event = await self._events.get()
            if isinstance(event, SandboxError):
                raise event
            yield event
            if isinstance(event, End):
                return

    def stop(self) -> None:
        """Ends the code and all it started, and drops output that was not taken. Harmless when repeated."""
        self._abandoned = True
        self._end_code()
        # Makes room for whoever waits to hand in more; from now on that is dropped.
        while not self._events.empty():
            self._events.get_nowait()

    async def conduct(self) -> None:
        """Sees the run through until nothing of it is left. The sandbox's own task."""
        delivery = asyncio.create_task(self._deliver())
        try:
            # The socket ends when the launcher does, and that is when the last process is gone.
            line = await self._control_in.read()
            self._report.set_result(await self._read_report(line))
            async with asyncio.timeout(self._delivery_seconds):
                await delivery
        except TimeoutError:
            self.stop()
            self._events.put_nowait(OutputLostError(f"output was not taken within {self._delivery_seconds:g} s"))
        except LauncherError as error:
            self.stop()
            self._events.put_nowait(error)
        except Exception:
            # The reader must not wait for ever; the reason goes to the log by the sandbox.
            self.stop()
            self._events.put_nowait(LauncherError("the run could not be followed to its end"))
            raise
        except asyncio.CancelledError:
            self.stop()
            await self._control_in.read()
            raise
        finally:
            delivery.cancel()
            await asyncio.wait([delivery])
            self._control_out.close()
            # Pipes stay open where somebody outside of the run got hold of their other ends, and asyncio counts a
            # process as running until its pipes are closed. There is no public way to close them from our side.
            self._process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - see above
            await self._process.wait()

    def _end_code(self) -> None:
        # Half closed: the launcher reads the end and can still send its report.
        if not self._control_out.transport.is_closing():
            self._control_out.write_eof()

    async def _read_report(self, line: bytes) -> Report:
        if not line:
            killed = await asyncio.to_thread(kill_leftovers, self._folder / "home")
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            _log.warning("sandbox_launcher_lost", leftovers_killed=killed)
            raise LauncherError("the launcher of the run was killed")
        report = Report(**json.loads(line))
        if report.end == "failed":
            raise LauncherError(f"the code could not be started: {report.message}")
        return report

    async def _deliver(self) -> None:
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(stdin))
            group.create_task(self._pump(Stream.STDOUT, stdout))
            group.create_task(self._pump(Stream.STDERR, stderr))
        await self._events.put(self._end(await self._report))

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        # Code need not read what it is given.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(self._spec.stdin)
            await stdin.drain()
        stdin.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await stdin.wait_closed()

    async def _pump(self, stream: Stream, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            room = self._spec.max_output_bytes - sum(self._passed_on.values())
            if len(data) > room and not self._over_limit:
                self._over_limit = True
                self._end_code()
            if (piece := data[:room]) and not self._abandoned:
                self._passed_on[stream] += len(piece)
                await self._events.put(Output(stream, piece))

    def _end(self, report: Report) -> End:
        if self._abandoned:
            kind = EndKind.STOPPED
        elif self._over_limit:
            kind = EndKind.OUTPUT_LIMIT
        elif report.end == "exited":
            kind = EndKind.SIGNALLED if report.exit_code < 0 else EndKind.EXITED
        else:
            kind = EndKind(report.end)
        return End(
            kind,
            report.exit_code,
            report.duration_seconds,
            self._passed_on[Stream.STDOUT],
            self._passed_on[Stream.STDERR],
        )


class Sandbox:
    """A bounded number of places in which code runs."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free = limits.places
        self._folder = limits.folder or Path(tempfile.gettempdir())
        self._runs: dict[asyncio.Task[None], Run] = {}

    @property
    def free_places(self) -> int:
        """How many runs can be started now."""
        return self._free

    async def start(self, spec: RunSpec) -> Run:
        """Starts a run that goes on until its end or until it is stopped.

        Raises:
            NoPlaceError: every place is taken.
        """
        if not self._free:
            raise NoPlaceError(f"all {self._limits.places} places are taken")
        self._free -= 1
        try:
            run = await self._launch(spec)
        except BaseException:
            self._free += 1
            raise
        task = asyncio.create_task(run.conduct(), name="sandbox-run")
        self._runs[task] = run
        task.add_done_callback(self._ended)
        return run

    async def close(self) -> None:
        """Stops every run and waits until nothing of them is left."""
        for run in self._runs.values():
            run.stop()
        if self._runs:
            await asyncio.wait(list(self._runs))

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._runs[task]
        self._free += 1
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("sandbox_run_failed", exc_info=error)

    async def _launch(self, spec: RunSpec) -> Run:
        folder = self._folder / f"reach-run-{uuid.uuid4().hex}"
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-I",
                    # Without site: what an installation hooks into every start costs more than the launcher itself.
                    "-S",
                    str(_LAUNCHER),
                    str(theirs.fileno()),
                    str(_PACKAGES),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    env={"LANG": "C.UTF-8"},
                    cwd="/",
                    limit=_CHUNK_BYTES,
                    # A Ctrl-C at the service's terminal is the service's to handle.
                    start_new_session=True,
                )
            control = await asyncio.open_connection(sock=ours)
            undo.pop_all()
        control[1].write(json.dumps(self._order(spec, folder)._asdict()).encode() + b"\n")
        return Run(spec, folder, self._limits.delivery_seconds, process, control)

    def _order(self, spec: RunSpec, folder: Path) -> Order:
        return Order(
            folder=str(folder),
            argv=_interpreter(spec.language, self._limits.python),
            script=spec.code,
            environment=_environment(folder, spec.environment),
            timeout_seconds=spec.timeout_seconds,
            memory_bytes=self._limits.memory_bytes,
            file_bytes=self._limits.file_bytes,
            processes=self._limits.processes,
        )


def _interpreter(language: Language, python: Path | None) -> list[str]:
    # Both read the code from a file: an argument holds 128 KiB at most.
    interpreters: dict[Language, Callable[[], list[str]]] = {
        Language.PYTHON: lambda: [str(python or _base_python()), "-I", "-u"],
        Language.SHELL: lambda: ["/bin/sh"],
    }
    return interpreters[language]()


def _base_python() -> str:
    """Returns the interpreter below the virtual environment, which has none of the service's packages."""
    base: str = getattr(sys, "_base_executable", "") or sys.executable
    return os.path.realpath(base)


def _environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    scrubbed = {"PATH": _PATH, "LANG": "C.UTF-8"}
    fixed = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    return {**scrubbed, **given, **fixed}
