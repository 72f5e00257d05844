"""Ending asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

# Long enough for what a task does on its way out, short enough that nobody notices a second try.
_AGAIN_SECONDS = 1.0


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks, and cancels them again until every one has ended.

    Once is not enough for an endless loop that survives its failures: a rollback on a connection that was cut off
    raises an error in the cancellation's place, and until Python 3.12 ``asyncio.wait_for`` drops a cancellation that
    meets its result (https://github.com/python/cpython/issues/86296). The results are left to the caller.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
