"""A task commits with the transaction that registered it, or leaves no trace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from agent_reach.retry import (
    BACKOFF,
    BindingError,
    ParameterError,
    RegistrationError,
    Retries,
    State,
    StrategyError,
)

from .field import Field, until

ORDER = "INSERT INTO orders VALUES (7)"


class RollbackError(Exception):
    pass


@contextmanager
def engine(dsn: str) -> Iterator[Engine]:
    made = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    yield made
    made.dispose()


def async_engine(dsn: str) -> AsyncEngine:
    return create_async_engine("postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(dsn))


@pytest.mark.parametrize("commits", [True, False])
class TestWithTheOrder:
    def test_psycopg(self, retry: Retries, field: Field, *, commits: bool) -> None:
        with psycopg.connect(field.dsn) as connection:
            connection.execute(ORDER)
            task = retry.register(connection, "notify", {"order": 7})
            assert field.tasks() == 0, "it is not to be seen before the commit"
            connection.commit() if commits else connection.rollback()
        self._check(retry, field, task.task_id, commits=commits)

    async def test_psycopg_async(self, retry: Retries, field: Field, *, commits: bool) -> None:
        async with await psycopg.AsyncConnection.connect(field.dsn) as connection:
            await connection.execute(ORDER)
            task = await retry.register_async(connection, "notify", {"order": 7})
            await (connection.commit() if commits else connection.rollback())
        self._check(retry, field, task.task_id, commits=commits)

    def test_sqlalchemy_session(self, retry: Retries, field: Field, *, commits: bool) -> None:
        with engine(field.dsn) as made, Session(made) as session:
            session.execute(text(ORDER))
            task = retry.register(session, "notify", {"order": 7})
            session.commit() if commits else session.rollback()
        self._check(retry, field, task.task_id, commits=commits)

    def test_sqlalchemy_session_that_does_nothing_else(self, retry: Retries, field: Field, *, commits: bool) -> None:
        with engine(field.dsn) as made, Session(made) as session:
            retry.register(session, "notify", {"order": 7})
            session.commit() if commits else session.rollback()
        assert field.tasks() == commits

    def test_sqlalchemy_connection(self, retry: Retries, field: Field, *, commits: bool) -> None:
        with engine(field.dsn) as made, made.connect() as connection:
            connection.execute(text(ORDER))
            task = retry.register(connection, "notify", {"order": 7})
            connection.commit() if commits else connection.rollback()
        self._check(retry, field, task.task_id, commits=commits)

    async def test_sqlalchemy_async_session(self, retry: Retries, field: Field, *, commits: bool) -> None:
        made = async_engine(field.dsn)
        session: AsyncSession
        async with async_sessionmaker(made)() as session:
            await session.execute(text(ORDER))
            task = await retry.register_async(session, "notify", {"order": 7})
            await (session.commit() if commits else session.rollback())
        await made.dispose()
        self._check(retry, field, task.task_id, commits=commits)

    async def test_sqlalchemy_async_connection(self, retry: Retries, field: Field, *, commits: bool) -> None:
        made = async_engine(field.dsn)
        async with made.connect() as connection:
            task = await retry.register_async(connection, "notify", {"order": 7})
            await connection.execute(text(ORDER))
            await (connection.commit() if commits else connection.rollback())
        await made.dispose()
        self._check(retry, field, task.task_id, commits=commits)

    def _check(self, retry: Retries, field: Field, task_id: Any, *, commits: bool) -> None:
        assert (field.orders(), field.tasks()) == (commits, commits)
        if commits:
            task, _ = retry.tasks.show(task_id)
            assert (task.state, task.payload, task.attempts) == (State.WAITING, {"order": 7}, 0)
            assert field.query("SELECT owner FROM reach_retry.tasks") == [(None,)], "never owned at insert"


def test_what_a_task_can_be_told_is_kept(retry: Retries) -> None:
    scheduled = retry.register(
        None,
        "notify",
        {"order": 7},
        max_attempts=4,
        first_delay_seconds=60,
        interval_seconds=5,
        strategy=BACKOFF,
        priority=9,
        expires_after_seconds=3600,
        max_execution_seconds=30,
        description="tell the customer",
        creator="checkout",
    )
    task, attempts = retry.tasks.show(scheduled.task_id)
    assert attempts == []
    assert (task.max_attempts, task.priority, task.max_execution_seconds) == (4, 9, 30)
    assert (task.strategy, task.interval_seconds, task.first_delay_seconds) == ("backoff", 5, 60)
    assert (task.description, task.creator) == ("tell the customer", "checkout")
    assert task.run_at - task.created_at == timedelta(seconds=60)
    assert task.expires_at is not None
    assert task.expires_at - task.created_at == timedelta(hours=1)
    assert abs(task.created_at - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"strategy": BACKOFF}, StrategyError),
        ({"strategy": "fibonacci"}, StrategyError),
        ({"strategy": "unheard of"}, StrategyError),
        ({"max_attempts": 0}, RegistrationError),
        ({"priority": 10}, RegistrationError),
        ({"first_delay_seconds": -1}, RegistrationError),
        ({"first_delay_seconds": float("nan")}, RegistrationError),
        ({"expires_after_seconds": 0}, RegistrationError),
        ({"jitter_ratio": 1}, RegistrationError),
        ({"unique_key": "a\0b"}, RegistrationError),
        ({"description": "\ud800"}, RegistrationError),
    ],
)
def test_a_refused_task_leaves_the_callers_transaction_as_it_was(
    retry: Retries, field: Field, options: dict[str, Any], error: type[Exception]
) -> None:
    with psycopg.connect(field.dsn) as connection:
        connection.execute(ORDER)
        with pytest.raises(error):
            retry.register(connection, "notify", {}, **options)
    assert (field.orders(), field.tasks()) == (1, 0)


@dataclass
class Notification:
    order: int
    lines: list[str]


class Model(BaseModel):
    order: int
    at: datetime


@pytest.mark.parametrize(
    "parameter", ["a\0b", "\ud800", float("inf"), {"deep": [float("nan")]}, object(), {"a": object()}, "x" * 2**21]
)
def test_what_json_cannot_hold_is_refused_before_the_database_sees_it(
    retry: Retries, field: Field, parameter: object
) -> None:
    with psycopg.connect(field.dsn) as connection:
        connection.execute(ORDER)
        with pytest.raises(ParameterError):
            retry.register(connection, "elsewhere", parameter)
    assert (field.orders(), field.tasks()) == (1, 0)


def test_a_parameter_is_checked_by_its_handlers_type(retry: Retries) -> None:
    @retry.listener("notify")
    def notify(parameter: Notification) -> None:
        pass

    retry.register(None, "notify", Notification(7, ["a"]))
    wrong: Any = Notification("seven", ["a"])  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="order"):
        retry.register(None, "notify", {"order": "seven", "lines": []})
    with pytest.raises(ParameterError, match="order"):
        retry.register(None, "notify", wrong)


def test_models_and_dataclasses_are_stored_as_json_where_the_handler_lives_elsewhere(retry: Retries) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    first = retry.register(None, "elsewhere", Model(order=1, at=at))
    second = retry.register(None, "elsewhere", Notification(2, ["a"]))
    assert retry.tasks.show(first.task_id)[0].payload == {"order": 1, "at": "2026-01-02T00:00:00Z"}
    assert retry.tasks.show(second.task_id)[0].payload == {"order": 2, "lines": ["a"]}


def test_what_is_no_connection_is_refused(retry: Retries) -> None:
    nothing: Any = object()
    with pytest.raises(BindingError, match="object is not a psycopg 3 connection"):
        retry.register(nothing, "notify", {})


async def test_a_transaction_that_stays_open_past_the_planned_time_runs_right_after_its_commit(
    retry: Retries, field: Field
) -> None:
    seen: list[int] = []

    @retry.listener("notify")
    async def notify(order: int) -> None:
        seen.append(order)

    async with retry.running() as worker, await psycopg.AsyncConnection.connect(field.dsn) as connection:
        await worker.engine.wait_ready()
        held = await retry.register_async(connection, "notify", 1)
        # Scans go past it meanwhile: the mark below which nothing waits lies 2 s behind the present.
        for other in range(2, 7):
            await retry.register_async(None, "notify", other, first_delay_seconds=1)
            await until(lambda other=other: other in seen)  # type: ignore[misc]
        assert 1 not in seen
        await connection.commit()
        assert await field.until_ended(held.task_id) is State.SUCCEEDED
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]


def test_one_live_task_per_key(retry: Retries, field: Field) -> None:
    first = retry.register(None, "notify", 1, unique_key="order-7")
    again = retry.register(None, "notify", 2, unique_key="order-7")
    assert (again.task_id, again.created) == (first.task_id, False)
    assert retry.tasks.cancel([first.task_id]) == [first.task_id]
    assert retry.register(None, "notify", 3, unique_key="order-7").created


async def test_two_transactions_with_one_key_make_one_task(retry: Retries, field: Field) -> None:
    async def register(number: int) -> bool:
        async with await psycopg.AsyncConnection.connect(field.dsn) as connection:
            return (await retry.register_async(connection, "notify", number, unique_key="k")).created

    created = await asyncio.gather(*(register(number) for number in range(8)))
    assert sum(created) == 1
    assert field.tasks() == 1
