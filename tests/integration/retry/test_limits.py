"""What the settings and the options say about how long and how often holds while tasks run."""

from __future__ import annotations

import asyncio

from agent_reach.retry import FIXED, Retries, RetrySettings, State

from .field import FAST, Field, until


async def test_a_task_without_a_limit_has_that_of_the_settings(retry: Retries, field: Field) -> None:
    own = Retries(field.dsn, settings=RetrySettings(**FAST, dead_task_seconds=0.1))

    @own.listener("endless", max_attempts=1)
    async def endless(_: int) -> None:
        await asyncio.Event().wait()

    task = own.register(None, "endless", 1).task_id
    async with own.running():
        assert await field.until_ended(task) is State.EXHAUSTED
    assert own.tasks.show(task)[0].last_error == "AttemptInterruptedError: it took longer than 0.1 s"


async def test_without_the_dead_task_check_only_a_limit_of_its_own_stops_a_task(retry: Retries, field: Field) -> None:
    own = Retries(field.dsn, settings=RetrySettings(**FAST, dead_task_check=False, dead_task_seconds=0.05))
    started, released = asyncio.Event(), asyncio.Event()

    @own.listener("long")
    async def long(_: int) -> None:
        started.set()
        await released.wait()

    @own.listener("limited", max_attempts=1, max_execution_seconds=0.2)
    async def limited(_: int) -> None:
        await asyncio.Event().wait()

    async with own.running():
        task = (await own.register_async(None, "long", 1)).task_id
        await started.wait()
        other = (await own.register_async(None, "limited", 1)).task_id
        assert await field.until_ended(other) is State.EXHAUSTED, "it ran longer than the limit of the settings"
        released.set()
        assert await field.until_ended(task) is State.SUCCEEDED
    assert own.tasks.show(task)[0].attempts == 1


async def test_jitter_spreads_the_gaps_of_tasks_that_fail_together(retry: Retries, field: Field) -> None:
    @retry.listener("jittery", strategy=FIXED, interval_seconds=1000, jitter_ratio=0.5)
    async def jittery(_: int) -> None:
        raise RuntimeError("away")

    for number in range(20):
        retry.register(None, "jittery", number)
    async with retry.running():
        await until(lambda: field.tasks("attempts = 1 AND state = 'WAITING' AND owner IS NULL") == 20)
    gaps = [
        gap
        for (gap,) in field.query(
            "SELECT extract(epoch FROM t.run_at - a.planned_at)::float8"
            " FROM reach_retry.tasks AS t JOIN reach_retry.attempts AS a ON a.task_id = t.id"
        )
    ]
    assert len({round(gap) for gap in gaps}) > 10
    assert all(500 <= gap <= 1500 for gap in gaps)
