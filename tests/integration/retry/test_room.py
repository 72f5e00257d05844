"""Slow callbacks hold up the tasks behind them, which meanwhile wait as they would anywhere else."""

from __future__ import annotations

import asyncio

from agent_reach.retry import Report, Retries, State

from .field import FAST, Field, until

AT_ONCE = FAST["concurrency"]
QUEUE = "reach_retry.tasks"


async def test_tasks_that_wait_for_callbacks_are_not_running_and_spend_nothing(retry: Retries, field: Field) -> None:
    called: list[int] = []
    holding: set[object] = set()
    go = asyncio.Event()

    @retry.listener("quick", max_attempts=2)
    async def quick(number: int) -> None:
        called.append(number)

    @retry.after_attempt
    async def slow(report: Report) -> None:
        holding.add(report.task_id)
        await go.wait()

    tasks = [retry.register(None, "quick", number).task_id for number in range(3 * AT_ONCE)]
    async with retry.running():
        await until(lambda: len(holding) >= AT_ONCE)
        await until(lambda: field.tasks("state = 'SUCCEEDED'") == len(called) == len(holding))
        await until(lambda: field.tasks("state = 'WAITING' AND owner IS NOT NULL") > 0)
        assert field.tasks("state = 'RUNNING'") == 0
        go.set()
        for task_id in tasks:
            assert await field.until_ended(task_id) is State.SUCCEEDED
    assert sorted(called) == list(range(3 * AT_ONCE))
    assert field.tasks("attempts = 1") == 3 * AT_ONCE


async def test_a_task_taken_away_while_it_waits_for_callbacks_can_be_done_afterwards(
    retry: Retries, field: Field
) -> None:
    go, holding = asyncio.Event(), 0

    @retry.listener("first")
    async def first(_: int) -> None:
        pass

    @retry.listener("second")
    async def second(_: int) -> None:
        pass

    @retry.after_attempt(code="first")
    async def slow(_: Report) -> None:
        nonlocal holding
        holding += 1
        await go.wait()

    for number in range(AT_ONCE):
        retry.register(None, "first", number)
    async with retry.running() as worker:
        await until(lambda: holding >= AT_ONCE)
        task_id = retry.register(None, "second", 1).task_id
        held = "SELECT id FROM reach_retry.tasks WHERE id = %s AND owner IS NOT NULL"
        await until(lambda: bool(field.query(held, task_id)) and worker.engine.stats().queues[QUEUE].heap == 0)
        assert retry.tasks.cancel([task_id]) == [task_id]
        assert retry.tasks.retry([task_id]) == [task_id]
        # Claimed again, behind the batch that has lost it.
        await until(lambda: worker.engine.stats().queues[QUEUE].heap == 1)
        go.set()
        assert await field.until_ended(task_id) is State.SUCCEEDED


async def test_a_worker_goes_on_when_the_type_of_a_column_is_changed(retry: Retries, field: Field) -> None:
    @retry.listener("quick")
    async def quick(_: int) -> None:
        pass

    async with retry.running():
        # So that its statements are prepared by then.
        for number in range(8):
            await field.until_ended(retry.register(None, "quick", number).task_id)
        field.query("ALTER TABLE reach_retry.tasks ALTER COLUMN attempts TYPE bigint")
        for number in range(8):
            assert await field.until_ended(retry.register(None, "quick", number).task_id) is State.SUCCEEDED
    assert field.tasks("attempts = 1") == 16
