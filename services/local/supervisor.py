"""Keeps the servers and processes of a local system alive until it is told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from agent_reach.durable.tasks import cancel_and_wait
from services.chassis.startup import StartupError

_FIRST_DELAY_SECONDS = 1.0
_MAX_DELAY_SECONDS = 30.0
# A role that lived this long has recovered: the next fault begins with the short delay again.
_STABLE_SECONDS = 60.0
_MAX_FAILED_STARTS = 5


class Part(Protocol):
    """What is kept alive: a role, or a server."""

    @property
    def name(self) -> str:
        """For people."""

    async def ended(self) -> str:
        """Returns once it has ended, and says how."""
        ...

    async def start(self) -> None:
        """Starts it again.

        Raises:
            StartupError: it did not start.
        """


async def supervise(parts: Sequence[Part], stop: asyncio.Event, report: Callable[[str], None]) -> None:
    """Restarts every part that ends, until `stop` is set.

    Raises:
        StartupError: a part could not be started again, several times in a row.
    """
    stopping = asyncio.create_task(stop.wait())
    keepers = [asyncio.create_task(_keep(part, report), name=f"keep-{part.name}") for part in parts]
    try:
        done, _ = await asyncio.wait({stopping, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
    finally:
        await cancel_and_wait([stopping, *keepers])


async def _keep(part: Part, report: Callable[[str], None]) -> None:
    delay = _FIRST_DELAY_SECONDS
    failed_starts = 0
    while True:
        started_at = time.monotonic()
        how = await part.ended()
        if time.monotonic() - started_at >= _STABLE_SECONDS:
            delay, failed_starts = _FIRST_DELAY_SECONDS, 0
        report(f"{part.name} ended unexpectedly ({how}); it is started again in {delay:g} s")
        await asyncio.sleep(delay)
        delay = min(delay * 2, _MAX_DELAY_SECONDS)
        try:
            await part.start()
        except StartupError as error:
            failed_starts += 1
            report(f"{error}. {error.advice}")
            if failed_starts >= _MAX_FAILED_STARTS:
                raise
        else:
            report(f"{part.name} serves again")
