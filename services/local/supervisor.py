"""Keeps the five processes of a local system alive until it is told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from services.chassis.startup import StartupError

from .process import RoleProcess

_FIRST_DELAY_SECONDS = 1.0
_MAX_DELAY_SECONDS = 30.0
# A role that lived this long has recovered: the next fault begins with the short delay again.
_STABLE_SECONDS = 60.0
_MAX_FAILED_STARTS = 5


async def supervise(roles: dict[str, RoleProcess], stop: asyncio.Event, report: Callable[[str], None]) -> None:
    """Restarts every role that ends, until `stop` is set.

    Raises:
        StartupError: a role could not be started again, several times in a row.
    """
    stopping = asyncio.create_task(stop.wait())
    keepers = [asyncio.create_task(_keep(process, report), name=f"keep-{name}") for name, process in roles.items()]
    try:
        done, _ = await asyncio.wait({stopping, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
    finally:
        for task in (stopping, *keepers):
            task.cancel()
        await asyncio.gather(stopping, *keepers, return_exceptions=True)


async def _keep(process: RoleProcess, report: Callable[[str], None]) -> None:
    delay = _FIRST_DELAY_SECONDS
    failed_starts = 0
    while True:
        started_at = time.monotonic()
        code = await process.wait()
        if time.monotonic() - started_at >= _STABLE_SECONDS:
            delay, failed_starts = _FIRST_DELAY_SECONDS, 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        report(f"{process.name} ended unexpectedly ({how}); it is started again in {delay:g} s")
        await asyncio.sleep(delay)
        delay = min(delay * 2, _MAX_DELAY_SECONDS)
        try:
            await process.start()
        except StartupError as error:
            failed_starts += 1
            report(f"{error}. {error.advice}")
            if failed_starts >= _MAX_FAILED_STARTS:
                raise
        else:
            report(f"{process.name} serves again")
