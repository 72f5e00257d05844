"""Handlers: what they are given, what they answer, and what becomes of the task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, JsonValue

from agent_reach.retry import (
    BACKOFF,
    FIBONACCI,
    FIXED,
    INCREMENT,
    Context,
    GiveUp,
    HandlerError,
    Report,
    Retries,
    Retry,
    RetrySettings,
    State,
    Strategy,
    SyncContext,
)

from .field import FAST, Field, until


@dataclass
class Order:
    number: int


class Customer(BaseModel):
    name: str


async def test_sync_and_async_functions_and_classes_do_their_tasks(retry: Retries, field: Field) -> None:
    seen: list[object] = []

    @retry.listener("async")
    async def on_loop(order: Order) -> None:
        seen.append(("async", order, threading.current_thread() is threading.main_thread()))

    @retry.listener("sync")
    def in_thread(customer: Customer, ctx: SyncContext) -> None:
        seen.append(("sync", customer, ctx.attempt, threading.current_thread() is threading.main_thread()))

    @retry.listener("class")
    class Listener:
        def __init__(self) -> None:
            self.prefix = "made"

        async def __call__(self, value: JsonValue, ctx: Context) -> None:
            seen.append((self.prefix, value, ctx.code))

    tasks = [
        retry.register(None, "async", Order(1)),
        retry.register(None, "sync", Customer(name="Ada")),
        retry.register(None, "class", {"a": [1, None, "ü"]}),
    ]
    async with retry.running():
        for task in tasks:
            assert await field.until_ended(task.task_id) is State.SUCCEEDED
    assert len(seen) == 3
    assert ("async", Order(1), True) in seen
    assert ("sync", Customer(name="Ada"), 1, False) in seen
    assert ("made", {"a": [1, None, "ü"]}, "class") in seen


async def test_a_failure_is_tried_again_at_the_planned_moments_until_the_attempts_are_spent(
    retry: Retries, field: Field
) -> None:
    @retry.listener("fails", max_attempts=4, first_delay_seconds=0.5, interval_seconds=0.9, strategy=FIBONACCI)
    async def fails(_: int) -> None:
        raise RuntimeError("the provider is away")

    async with retry.running():
        scheduled = retry.register(None, "fails", 1)
        assert await field.until_ended(scheduled.task_id) is State.EXHAUSTED
    task, attempts = retry.tasks.show(scheduled.task_id)
    planned = [attempt.planned_at - task.created_at for attempt in attempts]
    assert planned == [timedelta(seconds=seconds) for seconds in (0.5, 1.4, 2.3, 4.1)]
    assert [attempt.attempt for attempt in attempts] == [1, 2, 3, 4]
    assert all(attempt.started_at and attempt.started_at >= attempt.planned_at for attempt in attempts)
    assert all(attempt.owner and attempt.duration_seconds is not None for attempt in attempts)
    assert {attempt.error for attempt in attempts} == {"RuntimeError: the provider is away"}
    assert task.last_error == "RuntimeError: the provider is away"
    assert task.attempts == 4


@pytest.mark.slow
async def test_every_strategy_plans_its_exact_moments_in_the_table(retry: Retries, field: Field) -> None:
    """Those of the documentation, to the microsecond; it takes the 17 s that the longest of them takes."""

    async def fails(_: int) -> None:
        raise RuntimeError("away")

    moments = {
        FIXED: (2, 7, 12),
        INCREMENT: (2, 7, 17),
        FIBONACCI: (2, 7, 12),
        BACKOFF: (2, 7, 17),
        Strategy("own", lambda attempt, interval: interval + attempt): (2, 8, 15),
    }
    for strategy in moments:
        options = {"max_attempts": 3, "first_delay_seconds": 2, "interval_seconds": 5}
        retry.listener(strategy.name, strategy=strategy, **options)(fails)  # type: ignore[arg-type]
    async with retry.running():
        tasks = {strategy: retry.register(None, strategy.name, 1).task_id for strategy in moments}
        for task_id in tasks.values():
            assert await field.until_ended(task_id) is State.EXHAUSTED
    for strategy, expected in moments.items():
        task, attempts = retry.tasks.show(tasks[strategy])
        planned = [(attempt.planned_at - task.created_at).total_seconds() for attempt in attempts]
        assert planned == list(expected), strategy.name
        assert task.jitter_ratio == 0


async def test_a_handler_can_ask_for_another_attempt_or_give_up(retry: Retries, field: Field) -> None:
    answers: Iterator[Retry | GiveUp] = iter(
        [Retry(after=0.05, reason="not yet"), Retry(), GiveUp("the order is gone")]
    )

    @retry.listener("picky", max_attempts=10, first_delay_seconds=0.05)
    async def picky(_: int) -> Retry | GiveUp:
        return next(answers)

    async with retry.running():
        scheduled = retry.register(None, "picky", 1)
        assert await field.until_ended(scheduled.task_id) is State.GIVEN_UP
    task, attempts = retry.tasks.show(scheduled.task_id)
    assert [attempt.error for attempt in attempts] == [
        "not yet",
        "the handler asked for another attempt",
        "the order is gone",
    ]
    assert task.last_error == "the order is gone"


async def test_effects_and_completion_commit_together_or_not_at_all(retry: Retries, field: Field) -> None:
    @retry.listener("async", max_attempts=2)
    async def on_loop(number: int, ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            if ctx.attempt == 1:
                raise RuntimeError("in the middle")

    @retry.listener("sync", max_attempts=2)
    def in_thread(number: int, ctx: SyncContext) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            if ctx.attempt == 1:
                raise RuntimeError("in the middle")

    async with retry.running():
        for number, code in enumerate(["async", "sync"]):
            scheduled = retry.register(None, code, number)
            assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
            _, attempts = retry.tasks.show(scheduled.task_id)
            assert [attempt.error for attempt in attempts] == ["RuntimeError: in the middle", None]
    assert field.orders() == 2


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_effects_of_a_task_that_was_cancelled_meanwhile_are_undone(
    retry: Retries, field: Field, kind: str
) -> None:
    started, go_on = threading.Event(), threading.Event()
    stopped: list[bool] = []

    @retry.listener("sync")
    def in_thread(number: int, ctx: SyncContext) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            started.set()
            go_on.wait(30)

    @retry.listener("async")
    async def on_loop(number: int, ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            started.set()
            try:
                await asyncio.to_thread(go_on.wait, 30)
            finally:
                stopped.append(ctx.stopped)

    async with retry.running():
        scheduled = retry.register(None, kind, 1)
        await asyncio.to_thread(started.wait, 30)
        assert retry.tasks.cancel([scheduled.task_id]) == [scheduled.task_id]
        go_on.set()
    assert field.state(scheduled.task_id) is State.CANCELLED
    assert field.orders() == 0


async def test_a_cancelled_task_tells_its_handler_to_stop(retry: Retries, field: Field) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @retry.listener("endless")
    async def endless(_: int) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with retry.running():
        scheduled = retry.register(None, "endless", 1)
        await started.wait()
        retry.tasks.cancel([scheduled.task_id], "the customer called")
        await asyncio.wait_for(stopped.wait(), 30)
    task, _ = retry.tasks.show(scheduled.task_id)
    assert (task.state, task.last_error) == (State.CANCELLED, "the customer called")


async def test_one_row_that_no_longer_decodes_fails_with_the_reason_and_the_others_run(
    retry: Retries, field: Field
) -> None:
    seen: list[int] = []

    @retry.listener("order")
    async def on_order(order: Order) -> None:
        seen.append(order.number)

    tasks = [retry.register(None, "order", Order(number)).task_id for number in range(20)]
    field.query('UPDATE reach_retry.tasks SET payload = \'{"number": "seven"}\' WHERE id = %s', tasks[7])
    async with retry.running():
        for task_id in tasks:
            await field.until_ended(task_id)
    assert sorted(seen) == [*range(7), *range(8, 20)]
    assert field.tasks("state = 'SUCCEEDED'") == 19
    spoilt, attempts = retry.tasks.show(tasks[7])
    assert (spoilt.state, spoilt.attempts, attempts) == (State.UNREADABLE, 0, [])
    assert "number" in (spoilt.last_error or "")
    assert "seven" not in (spoilt.last_error or ""), "values may be private"


async def test_an_instance_without_the_strategy_leaves_the_tasks_for_one_that_has_it(
    retry: Retries, field: Field
) -> None:
    newer = Retries(field.dsn, settings=RetrySettings(**FAST))
    newer.add_strategy(Strategy("of a later version", lambda _, __: 0.0, needs_interval=False))
    for each in (retry, newer):

        @each.listener("plain")
        async def plain(_: int) -> None: ...

    planned = newer.register(None, "plain", 1, strategy="of a later version").task_id
    async with retry.running():
        assert await field.until_ended(retry.register(None, "plain", 2).task_id) is State.SUCCEEDED
        assert field.state(planned) is State.WAITING
        async with newer.running():
            assert await field.until_ended(planned) is State.SUCCEEDED


async def test_an_instance_without_the_handler_leaves_the_tasks_for_one_that_has_it(
    retry: Retries, field: Field
) -> None:
    seen: list[str] = []

    @retry.listener("mine")
    async def mine(value: str) -> None:
        seen.append(f"mine {value}")

    other = Retries(field.dsn, settings=RetrySettings(**FAST))
    theirs = other.register(None, "theirs", "b")
    async with retry.running():
        # Later, and less urgent: it was passed over, not stuck behind.
        assert await field.until_ended(retry.register(None, "mine", "a").task_id) is State.SUCCEEDED
        assert field.query("SELECT owner, attempts FROM reach_retry.tasks WHERE code = 'theirs'") == [(None, 0)]

        @other.listener("theirs")
        async def do_theirs(value: str) -> None:
            seen.append(f"theirs {value}")

        async with other.running():
            assert await field.until_ended(theirs.task_id) is State.SUCCEEDED
    assert seen == ["mine a", "theirs b"]


async def test_a_handler_that_is_added_while_it_runs_gets_the_old_tasks(retry: Retries, field: Field) -> None:
    old = retry.register(None, "late", 1)

    async with retry.running() as worker:
        await worker.engine.wait_ready()

        @retry.listener("late")
        async def late(_: int) -> None:
            pass

        assert await field.until_ended(old.task_id) is State.SUCCEEDED


async def test_an_attempt_that_takes_too_long_is_stopped_and_counts(retry: Retries, field: Field) -> None:
    stopped: list[str] = []

    @retry.listener("slow", max_attempts=2, max_execution_seconds=0.1)
    async def slow(_: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("async")

    @retry.listener("slow thread", max_attempts=1, max_execution_seconds=0.1)
    def slow_thread(_: int, ctx: SyncContext) -> None:
        while not ctx.stopped:
            threading.Event().wait(0.01)
        stopped.append("sync")

    async with retry.running():
        tasks = [retry.register(None, code, 1) for code in ("slow", "slow thread")]
        for scheduled in tasks:
            assert await field.until_ended(scheduled.task_id) is State.EXHAUSTED
        await until(lambda: sorted(stopped) == ["async", "async", "sync"])
    task, attempts = retry.tasks.show(tasks[0].task_id)
    assert len(attempts) == 2
    assert "longer than 0.1 s" in (task.last_error or "")


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it does not even say what it is")


async def test_a_handler_that_answers_nonsense_harms_nobody_else(retry: Retries, field: Field) -> None:
    nonsense: Any = 7
    kinds = ["silent", "fine", "reason", "fine", "in the far future", "fine"]
    together = asyncio.Barrier(len(kinds))

    @retry.listener("odd", max_attempts=1)
    async def odd(kind: str) -> GiveUp | Retry | None:
        await together.wait()
        match kind:
            case "silent":
                raise SilentError
            case "reason":
                return GiveUp(nonsense)
            case "in the far future":
                return Retry(after=1e300)
        return None

    with psycopg.connect(field.dsn) as connection:
        tasks = [retry.register(connection, "odd", kind).task_id for kind in kinds]
    async with retry.running():
        for task in tasks:
            await field.until_ended(task)
    ended = [retry.tasks.show(task)[0] for task in tasks]
    assert [(task.state, task.attempts) for task in ended[1::2]] == [(State.SUCCEEDED, 1)] * 3
    assert [(task.state, task.last_error) for task in ended[::2]] == [
        (State.EXHAUSTED, "SilentError: (it cannot be described)"),
        (State.GIVEN_UP, "7"),
        (State.EXHAUSTED, "ValueError: Retry(after=…) must be 0 to 315,360,000 seconds, or a timedelta"),
    ]


async def test_an_expired_task_is_not_started(retry: Retries, field: Field) -> None:
    calls: list[int] = []

    @retry.listener("late")
    async def late(number: int) -> None:
        calls.append(number)
        raise RuntimeError("away")

    @retry.listener("next attempt would be too late", first_delay_seconds=0, interval_seconds=60)
    async def too_late(_: int) -> None:
        raise RuntimeError("away")

    gone = retry.register(None, "late", 1, expires_after_seconds=0.001)
    nobody_does_it = retry.register(None, "elsewhere", 1, expires_after_seconds=0.001)
    short = retry.register(None, "next attempt would be too late", 1, expires_after_seconds=30)
    async with retry.running():
        for task in (gone, nobody_does_it, short):
            assert await field.until_ended(task.task_id) is State.EXPIRED
    assert calls == []
    assert len(retry.tasks.show(short.task_id)[1]) == 1


async def test_callbacks_are_told_of_each_attempt_and_once_of_the_end_and_harm_nothing(
    retry: Retries, field: Field
) -> None:
    attempts: list[Report] = []
    ends: list[Report] = []

    @retry.listener("flaky", max_attempts=3, first_delay_seconds=0.05)
    async def flaky(number: int, ctx: Context) -> str:
        if ctx.attempt < 3:
            raise RuntimeError("away")
        return f"done {number}"

    @retry.after_attempt
    def raises(_: Report) -> None:
        raise ValueError("a bad callback")

    @retry.after_attempt
    async def after(report: Report) -> None:
        attempts.append(report)

    @retry.at_end
    def end(report: Report) -> None:
        ends.append(report)

    retry.at_end(ends.append, code="another code")
    async with retry.running():
        scheduled = retry.register(None, "flaky", 7)
        assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
    assert [(r.attempt, r.state) for r in attempts] == [
        (1, State.WAITING),
        (2, State.WAITING),
        (3, State.SUCCEEDED),
    ]
    assert isinstance(attempts[0].error, RuntimeError)
    assert attempts[0].next_at is not None
    assert [(r.task_id, r.code, r.state, r.result) for r in ends] == [
        (scheduled.task_id, "flaky", State.SUCCEEDED, "done 7")
    ]


async def test_a_custom_strategy_plans_and_a_broken_one_does_not_lose_the_task(retry: Retries, field: Field) -> None:
    def broken(_: int, __: float) -> float:
        raise ZeroDivisionError

    @retry.listener("squares", strategy=Strategy("squares", lambda n, i: i * n * n), interval_seconds=0.8)
    async def squares(_: int) -> None:
        raise RuntimeError("away")

    @retry.listener("broken", strategy=Strategy("broken", broken), interval_seconds=0.1, max_attempts=2)
    async def unlucky(_: int) -> None:
        raise RuntimeError("away")

    async with retry.running():
        tasks = [retry.register(None, code, 1) for code in ("squares", "broken")]
        for scheduled in tasks:
            assert await field.until_ended(scheduled.task_id) is State.EXHAUSTED
    task, attempts = retry.tasks.show(tasks[0].task_id)
    assert [a.planned_at - task.created_at for a in attempts] == [
        timedelta(seconds=seconds) for seconds in (0, 0.8, 4)
    ]


async def test_work_in_progress_may_end_when_the_worker_stops_and_the_rest_is_handed_back(
    retry: Retries, field: Field
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @retry.listener("slow")
    async def slow(_: int) -> None:
        started.set()
        await go_on.wait()

    working = retry.register(None, "slow", 1)
    waiting = retry.register(None, "slow", 2, first_delay_seconds=1.5)
    async with retry.running():
        await started.wait()
        await until(lambda: field.tasks("owner IS NOT NULL") == 2)
        asyncio.get_running_loop().call_later(0.1, go_on.set)
    assert field.state(working.task_id) is State.SUCCEEDED
    assert field.query("SELECT owner, attempts, state FROM reach_retry.tasks WHERE id = %s", waiting.task_id) == [
        (None, 0, "WAITING")
    ]
    assert field.query("SELECT * FROM reach_retry.instance") == []


def _no_annotation(parameter) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    pass


def _connection(parameter: psycopg.Connection[Any]) -> None:
    pass


def _three(parameter: int, ctx: Context, more: int) -> None:
    pass


@pytest.mark.parametrize("function", [_no_annotation, _connection, _three, int, 7])
def test_what_cannot_be_a_handler_is_refused_when_it_is_registered(retry: Retries, function: object) -> None:
    with pytest.raises(HandlerError):
        retry.listener("code")(function)


def test_a_code_has_one_handler(retry: Retries) -> None:
    retry.listener("code")(_one)
    with pytest.raises(HandlerError, match="already"):
        retry.listener("code")(_one)


def _one(parameter: int) -> None:
    pass
