"""Who is told when a task ends, and by whom."""

from __future__ import annotations

import asyncio

import pytest

from agent_reach.retry import GiveUp, Report, Retries, RetrySettings, State

from .field import FAST, Field, until


@pytest.fixture
def ends(retry: Retries) -> list[Report]:
    """What the application was told of ends."""
    told: list[Report] = []
    retry.at_end(told.append)
    return told


async def test_each_end_is_told_once_however_it_came(retry: Retries, field: Field, ends: list[Report]) -> None:
    @retry.listener("number", max_attempts=2)
    async def number(value: int) -> GiveUp | None:
        if value == 2:
            raise RuntimeError("away")
        return GiveUp("gone") if value == 3 else None

    expected = {1: State.SUCCEEDED, 2: State.EXHAUSTED, 3: State.GIVEN_UP, 4: State.EXPIRED, 5: State.UNREADABLE}
    tasks = {value: retry.register(None, "number", value).task_id for value in expected}
    field.query("UPDATE reach_retry.tasks SET expires_at = created_at + interval '1 ms' WHERE id = %s", tasks[4])
    field.query("UPDATE reach_retry.tasks SET payload = '\"five\"' WHERE id = %s", tasks[5])
    async with retry.running():
        await until(lambda: len(ends) >= 5)
    assert {report.task_id: report.state for report in ends} == {
        tasks[value]: state for value, state in expected.items()
    }
    assert len(ends) == 5


async def test_a_task_that_expires_while_nobody_holds_it_is_told_by_a_process_that_has_its_handler(
    retry: Retries, field: Field, ends: list[Report]
) -> None:
    @retry.listener("mine")
    async def mine(_: int) -> None:
        pass

    other = Retries(field.dsn, settings=RetrySettings(**FAST))
    others: list[Report] = []
    other.at_end(others.append)
    task = retry.register(None, "mine", 1, first_delay_seconds=3600, expires_after_seconds=0.3)
    nobodys = retry.register(None, "elsewhere", 1, first_delay_seconds=3600, expires_after_seconds=0.3)
    async with other.running(), retry.running():
        await until(lambda: len(ends) == 1)
        assert await field.until_ended(nobodys.task_id) is State.EXPIRED
    assert [(report.task_id, report.state, report.attempt) for report in ends] == [(task.task_id, State.EXPIRED, 0)]
    assert others == []


async def test_the_operator_who_cancels_needs_no_telling(retry: Retries, field: Field, ends: list[Report]) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @retry.listener("endless")
    async def endless(_: int) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    waiting = retry.register(None, "endless", 1, first_delay_seconds=3600)
    running = retry.register(None, "endless", 2)
    async with retry.running():
        await started.wait()
        assert len(retry.tasks.cancel([waiting.task_id, running.task_id])) == 2
        await stopped.wait()
        done = retry.register(None, "endless", 3, expires_after_seconds=0.001)
        await until(lambda: [report.task_id for report in ends] == [done.task_id])


async def test_the_end_of_a_task_whose_last_attempt_nobody_lived_to_finish_is_told(
    retry: Retries, field: Field, ends: list[Report]
) -> None:
    @retry.listener("once", max_attempts=1)
    async def once(_: int) -> None:
        raise AssertionError("its only attempt is spent")

    task = retry.register(None, "once", 1)
    field.query("UPDATE reach_retry.tasks SET attempts = 1, suspect = true WHERE id = %s", task.task_id)
    async with retry.running():
        assert await field.until_ended(task.task_id) is State.EXHAUSTED
        await until(lambda: [report.state for report in ends] == [State.EXHAUSTED])
