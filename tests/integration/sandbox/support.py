"""How tests read runs and look at processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from services.sandbox.runner import End, Output, Run, Sandbox, Stream
from services.sandbox.spec import Language, RunSpec


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that was read to its end."""

    stdout: bytes
    stderr: bytes
    end: End


async def collect(run: Run) -> Finished:
    parts: dict[Stream, bytearray] = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    async for event in run.events():
        if isinstance(event, Output):
            parts[event.stream] += event.data
        else:
            return Finished(bytes(parts[Stream.STDOUT]), bytes(parts[Stream.STDERR]), event)
    raise AssertionError("no end")


async def python(sandbox: Sandbox, code: str, **options: object) -> Finished:
    return await collect(await sandbox.start(RunSpec(Language.PYTHON, code, **options)))  # type: ignore[arg-type]


async def shell(sandbox: Sandbox, code: str, **options: object) -> Finished:
    return await collect(await sandbox.start(RunSpec(Language.SHELL, code, **options)))  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what must come; the test's own timeout ends what never does."""
    while not condition():  # noqa: ASYNC110 - processes and kernels set no asyncio.Event
        await asyncio.sleep(0.01)


def left_in(folder: Path) -> list[Path]:
    """Lists a folder."""
    return list(folder.iterdir())
