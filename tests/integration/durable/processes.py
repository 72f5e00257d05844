"""Starting processes on the queue, and hearing what they say."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from .ground import Ground

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def process(ground: Ground, mode: str, *, within: Sequence[str] = ()) -> AsyncIterator[Process]:
    """A process on the queue (see `process`); killed at the end of the block if it still lives.

    Args:
        ground: its database.
        mode: what it does.
        within: a command that executes it, such as `faketime`.
    """
    program = (sys.executable, "-m", "tests.integration.durable.process", mode, ground.dsn)
    started = await asyncio.create_subprocess_exec(*within, *program, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            started.kill()
        # Reads to the end, so that the pipes are closed with the loop still there.
        await started.communicate()


async def said(started: Process) -> str:
    """Returns the next line that is meant for us and no log."""
    assert started.stdout is not None
    async with asyncio.timeout(60):
        async for line in started.stdout:
            if line.startswith(b"> "):
                return line[2:].decode().strip()
    raise AssertionError("the process ended without a word")


async def tell(started: Process) -> None:
    """Sends the line that a process waits for."""
    assert started.stdin is not None
    started.stdin.write(b"\n")
    await started.stdin.drain()
