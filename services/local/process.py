"""One role as a child process: started, awaited until it serves, drained or killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from services.chassis.startup import StartupError
from services.main import Report

_START_TIMEOUT_SECONDS = 60.0
# Longer than a role's own drain, so that only one that hangs is killed.
_STOP_TIMEOUT_SECONDS = 30.0


class RoleProcess:
    """A role in a process of its own. It drains when told, and also when this process dies.

    Args:
        name: the role.
        environment: its whole environment.
        log: the file to which its log is appended.

    Attributes:
        grpc_port: where it serves; 0 until it does.
    """

    def __init__(self, name: str, environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.grpc_port = 0
        self._environment = dict(environment)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 when it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    async def start(self) -> None:
        """Starts the role and waits until it serves.

        Raises:
            StartupError: it could not start; it is gone then.
        """
        read_end, write_end = os.pipe()
        try:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    # -P: a folder `services` in the working directory is not ours.
                    *(sys.executable, "-P", "-m", "services.main", self.name, "--with-parent"),
                    *("--report-fd", str(write_end)),
                    env=self._environment,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_end,),
                    # Ctrl-C at the terminal reaches the supervisor only, which stops the roles in order.
                    start_new_session=True,
                )
        finally:
            os.close(write_end)
        try:
            async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                report = await _read_report(read_end)
        except BaseException as error:
            await self.kill()
            if isinstance(error, TimeoutError):
                raise self._failed(f"it does not serve after {_START_TIMEOUT_SECONDS:g} s") from error
            raise
        if "grpc_port" not in report:
            await self.kill()
            if "part" in report:
                raise StartupError(f"{self.name} ({report['part']})", report["why"], report["advice"])
            raise self._failed("it ended before it served")
        self.grpc_port = report["grpc_port"]

    async def wait(self) -> int:
        """Waits for the end of the process and returns its exit code, negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def ended(self) -> str:
        """Waits for the end of the process and says how it ended."""
        code = await self.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    async def stop(self) -> None:
        """Has the role drain and waits for its end; harmless when it does not run."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """Kills the role (SIGKILL) and waits for its end; harmless when it does not run."""
        if self._process is None:
            return
        if self._process.returncode is None:
            # It may end by itself in this very moment.
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    def _failed(self, why: str) -> StartupError:
        return StartupError(self.name, why, f"read {self._log}")


async def _read_report(descriptor: int) -> Report:
    """Reads the one line that the role writes; empty when it ended without."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        line = await reader.readline()
    finally:
        transport.close()
    report: Report = json.loads(line) if line else {}
    return report
