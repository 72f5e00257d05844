"""Puts the sandbox together."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent_reach.v1 import sandbox_pb2_grpc
from services.chassis.runtime import Registration, Runtime
from services.chassis.startup import StartupError

from .launcher import forbid_inspection
from .runner import Limits, Sandbox
from .server import SandboxServicer
from .settings import SandboxSettings


@asynccontextmanager
async def open_sandbox(settings: SandboxSettings, runtime: Runtime) -> AsyncIterator[list[Registration]]:
    """Opens the sandbox; needs neither PostgreSQL nor Redis. At the end every run is stopped and waited for.

    Raises:
        StartupError: the folder for runs or the interpreter is not there.
    """
    _check_paths(settings)
    # Its environment holds the service key, and code of the same user must not find it in /proc.
    forbid_inspection()
    sandbox = Sandbox(
        Limits(
            places=settings.sandbox_places,
            python=settings.sandbox_python,
            folder=settings.sandbox_dir,
            memory_bytes=settings.sandbox_memory_bytes,
            file_bytes=settings.sandbox_file_bytes,
            processes=settings.sandbox_processes,
            delivery_seconds=settings.sandbox_delivery_seconds,
        )
    )
    try:
        yield [
            Registration(
                add=sandbox_pb2_grpc.add_SandboxServiceServicer_to_server,
                servicer=SandboxServicer(sandbox, runtime.stopping),
                name="agent_reach.v1.SandboxService",
            )
        ]
    finally:
        await sandbox.close()


def _check_paths(settings: SandboxSettings) -> None:
    folder, python = settings.sandbox_dir, settings.sandbox_python
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise StartupError("sandbox", f"{folder} is no folder that can be written to", "correct REACH_SANDBOX_DIR")
    if python is not None and not os.access(python, os.X_OK):
        raise StartupError("sandbox", f"{python} cannot be executed", "correct REACH_SANDBOX_PYTHON")
