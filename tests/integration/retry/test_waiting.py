"""What a task needs is away for long: it waits, and no attempt is spent by that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisAwayError

from agent_reach.local import LocalRedis
from agent_reach.retry import AttemptFailedError, Report, Retries, Retry, Scheduled, State, Wait

from .field import Field, until

calls: list[int] = []
away: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()
    away.clear()


class TokenAwayError(Exception):
    pass


class RemoteError(Exception):
    pass


def charge(order: int) -> str:
    """Raises as often as `away` says, first that the token's source is away, then that the partner is."""
    calls.append(order)
    if away:
        raise TokenAwayError("no token") if away.pop() else RemoteError("away")
    return "charged"


@pytest.fixture
async def counter(scratch: Path) -> AsyncIterator[tuple[LocalRedis, redis.asyncio.Redis]]:
    """A Redis of the test's own that does not run yet, and a client of it."""
    server = LocalRedis(scratch / "away")
    async with redis.asyncio.from_url(server.url) as client:
        yield server, client
    server.stop()


async def test_redis_is_away_for_fifty_tries_and_no_attempt_is_spent(
    retry: Retries, field: Field, counter: tuple[LocalRedis, redis.asyncio.Redis]
) -> None:
    server, client = counter
    told: list[Report] = []
    retry.after_attempt(told.append)

    @retry.listener("count", max_attempts=1)
    async def count(order: int) -> Wait | None:
        calls.append(order)
        try:
            await client.incr("orders")
        except RedisAwayError:
            return Wait(after=0.01, reason="Redis is away")
        return None

    async with retry.running():
        task = retry.register(None, "count", 7)
        await until(lambda: len(calls) >= 50)
        waiting, log = retry.tasks.show(task.task_id)
        assert (waiting.state.final, waiting.last_error) == (False, "Redis is away")
        assert [line.error for line in log] == ["Redis is away"], "one line, however often it waits"
        await asyncio.to_thread(server.start)
        assert await field.until_ended(task.task_id) is State.SUCCEEDED
        assert await client.get("orders") == b"1"
    ended, log = retry.tasks.show(task.task_id)
    assert ended.attempts == 1
    assert [(line.attempt, line.waits, line.error) for line in log] == [
        (1, len(calls) - 1, "Redis is away"),
        (1, 0, None),
    ]
    assert log[0].started_at is not None
    assert log[0].duration_seconds is not None
    assert log[0].started_at < log[0].ended_at <= log[1].ended_at
    assert [(report.attempt, report.state) for report in told] == [(1, State.SUCCEEDED)]


async def test_attempts_and_waits_alternate_and_each_keeps_its_count(retry: Retries, field: Field) -> None:
    answers: Iterator[Wait | Retry] = iter(
        [Wait(after=0.01), Retry(), Wait(after=0.01), Wait(after=0.01), Retry(), Wait(after=0.01), Retry()]
    )

    @retry.listener("picky", max_attempts=3)
    async def picky(_: int) -> Wait | Retry:
        return next(answers)

    async with retry.running():
        task = retry.register(None, "picky", 1)
        assert await field.until_ended(task.task_id) is State.EXHAUSTED
    _, log = retry.tasks.show(task.task_id)
    assert [(line.attempt, line.waits) for line in log] == [(1, 1), (1, 0), (2, 2), (2, 0), (3, 1), (3, 0)]


async def test_a_task_that_waits_still_expires_having_spent_nothing(retry: Retries, field: Field) -> None:
    ends: list[Report] = []
    retry.at_end(ends.append)

    @retry.listener("token")
    def token(_: int) -> Wait:
        return Wait(after=3600)

    async with retry.running():
        task = retry.register(None, "token", 1, expires_after_seconds=1)
        await until(lambda: retry.tasks.show(task.task_id)[1] != [])
        waiting, _ = retry.tasks.show(task.task_id)
        assert waiting.run_at - waiting.created_at == timedelta(seconds=1), "it is not put off beyond its expiry"
        assert await field.until_ended(task.task_id) is State.EXPIRED
        await until(lambda: [(report.state, report.attempt) for report in ends] == [(State.EXPIRED, 0)])
    assert retry.tasks.show(task.task_id)[0].attempts == 0


async def test_an_ordinary_function_waits_after_errors_that_count_as_none(retry: Retries, field: Field) -> None:
    charged = retry.on_failure(include=(RemoteError,), uncounted=(TokenAwayError,), max_attempts=1)(charge)
    away.extend([1, 1])
    scheduled = charged(7)
    assert isinstance(scheduled, Scheduled)
    retry.tasks.retry([scheduled.task_id])
    async with retry.running():
        await until(lambda: len(calls) == 2)
        retry.tasks.retry([scheduled.task_id])
        assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
    task, log = retry.tasks.show(scheduled.task_id)
    assert (task.attempts, [line.waits for line in log]) == (1, [1, 0])


def test_who_invokes_a_task_that_waits_is_told(retry: Retries, field: Field) -> None:
    @retry.listener("token")
    def token(_: int) -> Wait:
        return Wait(after=60, reason="no token")

    task = retry.register(None, "token", 1)
    with pytest.raises(AttemptFailedError, match="WAITING: no token"):
        retry.run_now(task.task_id)
    assert retry.tasks.show(task.task_id)[0].attempts == 0


async def test_a_wait_of_an_hour_is_planned_in_an_hour(retry: Retries, field: Field) -> None:
    @retry.listener("token")
    async def token(_: int) -> Wait:
        return Wait(after=3600)

    async with retry.running():
        task = retry.register(None, "token", 1)
        await until(lambda: retry.tasks.show(task.task_id)[1] != [])
    waiting, log = retry.tasks.show(task.task_id)
    assert waiting.state is State.WAITING
    assert abs(waiting.run_at - log[0].ended_at - timedelta(hours=1)) < timedelta(seconds=1)


@pytest.mark.parametrize("after", [0, -1, float("inf"), float("nan")])
def test_a_wait_takes_time(after: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Wait(after=after)
