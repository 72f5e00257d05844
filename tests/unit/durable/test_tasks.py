"""What is ended has ended."""

from __future__ import annotations

import asyncio

import pytest

from agent_reach.durable import tasks
from agent_reach.durable.tasks import cancel_and_wait


async def test_a_loop_that_survives_its_failures_is_ended_though_its_first_cancellation_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "_AGAIN_SECONDS", 0.01)
    lost = 0

    async def turn() -> None:
        nonlocal lost
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            if lost < 2:
                lost += 1
                raise OSError("the rollback found no connection") from cancelled
            raise

    async def endless() -> None:
        while True:
            try:
                await turn()
            except OSError:
                continue

    loop = asyncio.create_task(endless())
    await asyncio.sleep(0)
    await cancel_and_wait([loop])
    assert (loop.cancelled(), lost) == (True, 2)


async def test_tasks_that_have_ended_are_left_as_they_are() -> None:
    async def fail() -> None:
        raise ValueError("its own affair")

    failed = asyncio.create_task(fail())
    await asyncio.wait([failed])
    await cancel_and_wait([failed])
    with pytest.raises(ValueError, match="its own affair"):
        failed.result()
