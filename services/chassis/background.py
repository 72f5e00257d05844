"""Endless work beside a service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from agent_reach.durable.tasks import cancel_and_wait

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs endless works while the body runs; no TaskGroup, which would wrap the errors of whatever is inside.

    Raises:
        Exception: at the end, what a work failed with; it is logged at once.
    """
    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(_report)
    try:
        yield
    finally:
        await cancel_and_wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("background_work_failed", exc_info=error)
