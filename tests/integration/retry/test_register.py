"""A task commits with the transaction that registered it, or leaves no trace."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg.types.string import TextLoader
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from agent_reach.local import LocalPostgres
from agent_reach.local.postgres import THROWAWAY_SETTINGS
from agent_reach.retry import (
    BACKOFF,
    BindingError,
    Context,
    ParameterError,
    RegistrationError,
    Retries,
    RetrySettings,
    Scheduled,
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

    @pytest.mark.parametrize("used", [False, True])
    def test_sqlalchemy_connection_that_does_nothing_else(
        self, retry: Retries, field: Field, *, used: bool, commits: bool
    ) -> None:
        with engine(field.dsn) as made, made.connect() as connection:
            if used:
                connection.execute(text("SELECT 1"))
                connection.commit()
            retry.register(connection, "notify", {"order": 7})
            connection.commit() if commits else connection.rollback()
        assert field.tasks() == commits

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
    ("options", "error", "told"),
    [
        ({"strategy": BACKOFF}, StrategyError, "needs interval_seconds"),
        ({"strategy": "fibonacci"}, StrategyError, "needs interval_seconds"),
        ({"strategy": "unheard of"}, StrategyError, "unknown strategy"),
        ({"strategy": 7}, StrategyError, "a strategy is"),
        ({"strategy": lambda attempt, interval: attempt * interval}, StrategyError, "a strategy is"),
        ({"max_attempts": 0}, RegistrationError, "max_attempts"),
        ({"max_attempts": 3.0}, RegistrationError, "max_attempts"),
        ({"priority": 10}, RegistrationError, "priority"),
        ({"priority": True}, RegistrationError, "priority"),
        ({"priority": None}, RegistrationError, "priority"),
        ({"first_delay_seconds": -1}, RegistrationError, "first_delay_seconds: must be 0 to"),
        ({"first_delay_seconds": float("nan")}, RegistrationError, "first_delay_seconds"),
        ({"first_delay_seconds": True}, RegistrationError, "first_delay_seconds"),
        ({"first_delay_seconds": None}, RegistrationError, "first_delay_seconds"),
        ({"interval_seconds": "3"}, RegistrationError, "interval_seconds"),
        ({"expires_after_seconds": 0}, RegistrationError, "expires_after_seconds"),
        ({"expires_after_seconds": timedelta(0)}, RegistrationError, "expires_after_seconds"),
        ({"max_execution_seconds": timedelta(days=9999)}, RegistrationError, "max_execution_seconds"),
        ({"jitter_ratio": 1}, RegistrationError, "jitter_ratio"),
        ({"jitter_ratio": False}, RegistrationError, "jitter_ratio"),
        ({"jitter_ratio": None}, RegistrationError, "jitter_ratio"),
        ({"unique_key": "a\0b"}, RegistrationError, "unique_key: text with a NUL"),
        ({"unique_key": "x" * 501}, RegistrationError, "unique_key"),
        ({"description": "\ud800"}, RegistrationError, "description"),
        ({"creator": 7}, RegistrationError, "creator"),
        ({"max_attempt": 7}, RegistrationError, "max_attempt: there is no such option; there are max_attempts"),
        ({"first_delay": 10}, RegistrationError, "first_delay: there is no such option"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value))[:60],
)
def test_a_refused_task_leaves_the_callers_transaction_as_it_was(
    retry: Retries, field: Field, options: dict[str, Any], error: type[Exception], told: str
) -> None:
    with psycopg.connect(field.dsn) as connection:
        connection.execute(ORDER)
        with pytest.raises(error, match=told):
            retry.register(connection, "notify", {}, **options)
    assert (field.orders(), field.tasks()) == (1, 0)


@pytest.mark.parametrize("code", ["", "x" * 201, "a\0b", 7])
def test_a_code_that_no_task_can_have_is_refused_when_it_is_first_said(
    retry: Retries, field: Field, code: Any
) -> None:
    for say in (
        lambda: retry.register(None, code, 1),
        lambda: retry.listener(code)(notify),
        lambda: retry.on_failure(code=code)(notify),
    ):
        with pytest.raises(RegistrationError, match=r"^code: "):
            say()
    assert field.tasks() == 0


def notify(order: int) -> None:
    pass


def test_lengths_of_time_are_seconds_or_timedeltas_and_strategies_functions_or_names(retry: Retries) -> None:
    def growing(attempt: int, interval: float) -> float:
        return interval * (1 + attempt)

    minute = timedelta(minutes=1)
    scheduled = [
        retry.register(
            None, "notify", 1, strategy=strategy, first_delay_seconds=minute, interval_seconds=minute,
            expires_after_seconds=2 * minute, max_execution_seconds=minute / 2,
        )
        for strategy in (growing, growing, "BACKOFF")
    ]  # fmt: skip
    tasks = [retry.tasks.show(each.task_id)[0] for each in scheduled]
    assert [task.strategy for task in tasks] == ["growing", "growing", "backoff"]
    for task in tasks:
        assert (task.first_delay_seconds, task.interval_seconds, task.max_execution_seconds) == (60, 60, 30)
        assert task.expires_at == task.created_at + 2 * minute


def test_what_the_settings_say_is_what_tasks_without_options_get(field: Field, retry: Retries) -> None:
    settings = RetrySettings(strategy="Increment", max_attempts=7, first_delay_seconds=11)
    own = Retries(field.dsn, settings=settings)
    task, _ = own.tasks.show(own.register(None, "notify", 1, interval_seconds=5).task_id)
    assert (task.strategy, task.max_attempts, task.first_delay_seconds) == ("increment", 7, 11)


async def test_a_strategy_in_the_settings_that_nobody_knows_is_found_out_at_the_start(field: Field) -> None:
    own = Retries(field.dsn, settings=RetrySettings(strategy="nonsense"))
    with pytest.raises(StrategyError, match="unknown strategy 'nonsense'"):
        async with own.running():
            pass


def _nested(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


@dataclass
class Notification:
    order: int
    lines: list[str]


class Model(BaseModel):
    order: int
    at: datetime


@pytest.mark.parametrize(
    "parameter",
    [
        "a\0b",
        "\ud800",
        b"\xff",
        float("inf"),
        {"deep": [float("nan")]},
        object(),
        {"a": object()},
        "x" * 2**21,
        _nested(100_000),
        10**5000,
    ],
    ids=lambda value: type(value).__name__,
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


@pytest.fixture
def two_phases(scratch: Path) -> Iterator[tuple[Retries, Field]]:
    """An application on a server that prepares transactions."""
    with LocalPostgres(scratch / "prepares", {**THROWAWAY_SETTINGS, "max_prepared_transactions": "2"}) as server:
        dsn = server.create_database("prepares")
        retry = Retries(dsn)
        retry.install()
        yield retry, Field(dsn)


async def test_a_transaction_that_commits_in_two_phases_takes_tasks_too(two_phases: tuple[Retries, Field]) -> None:
    """PostgreSQL prepares no transaction that has notified: its workers are woken from outside."""
    retry, field = two_phases
    async with await psycopg.AsyncConnection.connect(field.dsn, autocommit=True) as listening:
        await listening.execute('LISTEN "reach_retry.tasks"')
        with engine(field.dsn) as made, Session(made, twophase=True) as session:
            retry.register(session, "notify", 1)
            session.commit()
        with psycopg.connect(field.dsn) as connection:
            connection.tpc_begin("two")
            retry.register(connection, "notify", 2)
            connection.tpc_prepare()
            assert field.tasks() == 1
            connection.tpc_commit()
        async with await psycopg.AsyncConnection.connect(field.dsn) as asynchronous:
            await asynchronous.tpc_begin("three")
            await retry.register_async(asynchronous, "notify", 3)
            await asynchronous.tpc_commit()
        assert field.tasks() == 3
        assert [each async for each in listening.notifies(timeout=30, stop_after=1)], "the workers are woken"


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


async def test_twenty_transactions_with_one_key_make_one_task_and_all_know_which(retry: Retries, field: Field) -> None:
    async def register(number: int) -> Scheduled:
        async with await psycopg.AsyncConnection.connect(field.dsn) as connection:
            return await retry.register_async(connection, "notify", number, unique_key="k")

    scheduled = await asyncio.gather(*(register(number) for number in range(20)))
    assert sum(each.created for each in scheduled) == 1
    assert field.query("SELECT id FROM reach_retry.tasks") == [(scheduled[0].task_id,)]
    assert {each.task_id for each in scheduled} == {scheduled[0].task_id}


def test_the_key_of_a_transaction_that_rolls_back_is_free_for_the_one_that_waits_for_it(
    retry: Retries, field: Field
) -> None:
    with ThreadPoolExecutor(1) as threads, psycopg.connect(field.dsn) as first:
        retry.register(first, "notify", 1, unique_key="k")
        second = threads.submit(retry.register, None, "notify", 2, unique_key="k")
        while not field.query("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not second.done(), "it has to wait for the first"
        first.rollback()
        assert second.result().created


_FORKED = """
import os, signal, sys
from agent_reach.retry import Retries
retry = Retries(sys.argv[1])
for number in (1, 2):
    retry.register(None, "notify", number)
retry._registrar._bell._lock.acquire()  # as when another thread is about to register at that moment
child = os.fork()
if child == 0:
    signal.alarm(50)
    retry.register(None, "notify", 3)
    os._exit(0)
retry._registrar._bell._lock.release()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_registers_whatever_its_parent_was_about(retry: Retries, field: Field) -> None:
    subprocess.run([sys.executable, "-c", _FORKED, field.dsn], check=True, timeout=60)
    assert field.tasks() == 3


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_stricter_transactions_register_too_and_are_told_to_repeat_where_a_key_was_taken_meanwhile(
    retry: Retries, field: Field, level: psycopg.IsolationLevel
) -> None:
    with psycopg.connect(field.dsn) as one, psycopg.connect(field.dsn) as two:
        one.isolation_level = two.isolation_level = level
        for number, connection in enumerate([one, two]):
            connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            retry.register(connection, "notify", number, unique_key=str(number))
        one.commit()
        two.commit()
        two.execute("SELECT FROM orders")
        retry.register(None, "notify", 3, unique_key="taken meanwhile")
        with pytest.raises(psycopg.errors.SerializationFailure):
            retry.register(two, "notify", 4, unique_key="taken meanwhile")
    assert (field.orders(), field.tasks()) == (2, 3)


def test_the_transaction_decides_what_it_can_take(retry: Retries, field: Field) -> None:
    with psycopg.connect(field.dsn) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT FROM nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            retry.register(connection, "notify", 1)
        connection.rollback()
        retry.register(connection, "notify", 2)
        with connection.transaction(), connection.transaction(force_rollback=True):
            retry.register(connection, "notify", 3)
    with pytest.raises(psycopg.OperationalError, match="closed"):
        retry.register(connection, "notify", 4)
    with psycopg.connect(field.dsn, autocommit=True) as connection:
        retry.register(connection, "notify", 5)
        assert field.tasks() == 2, "in autocommit it is committed at once, as any other statement is"
        with suppress(RollbackError), connection.transaction():
            retry.register(connection, "notify", 6)
            raise RollbackError
    assert field.query("SELECT payload FROM reach_retry.tasks ORDER BY created_at") == [(2,), (5,)]


def test_an_application_may_have_made_its_connections_its_own(retry: Retries, field: Field) -> None:
    """Cursors with other placeholders, rows of another shape, JSON and ids read and written by another package."""
    with psycopg.connect(field.dsn, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as connection:
        set_json_loads(lambda _: "theirs", connection)
        set_json_dumps(lambda _: "null", connection)
        connection.adapters.register_loader("uuid", TextLoader)
        first = retry.register(connection, "notify", {"order": 7}, unique_key="k")
        assert retry.register(connection, "notify", 8, unique_key="k") == Scheduled(first.task_id, created=False)
        with connection.pipeline():
            second = retry.register(connection, "notify", [9])
    assert [retry.tasks.show(each.task_id)[0].payload for each in (first, second)] == [{"order": 7}, [9]]


async def test_a_handler_registers_what_follows_in_the_transaction_that_completes_it(
    retry: Retries, field: Field
) -> None:
    @retry.listener("first")
    async def first(order: int, ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await retry.register_async(connection, "second", order)
            if ctx.attempt == 1:
                raise RollbackError

    task = retry.register(None, "first", 7)
    async with retry.running():
        assert await field.until_ended(task.task_id) is State.SUCCEEDED
    assert field.query("SELECT code, payload, state FROM reach_retry.tasks ORDER BY created_at") == [
        ("first", 7, "SUCCEEDED"),
        ("second", 7, "WAITING"),
    ]


async def test_a_handler_that_was_renamed_still_does_the_old_tasks_under_both_names(
    retry: Retries, field: Field
) -> None:
    old = retry.register(None, "old name", 1)

    @retry.listener("old name")
    @retry.listener("new name")
    async def renamed(_: int) -> None:
        pass

    new = retry.register(None, "new name", 1)
    async with retry.running():
        for task in (old, new):
            assert await field.until_ended(task.task_id) is State.SUCCEEDED


@dataclass
class Line:
    article: str
    prices: dict[str, Decimal]


class Basket(BaseModel):
    at: datetime
    lines: list[Line]
    labels: set[str] = set()
    gift_for: Notification | None = None


async def test_dataclasses_in_models_in_dataclasses_arrive_as_they_were(retry: Retries, field: Field) -> None:
    arrived: list[Basket] = []

    @retry.listener("basket")
    async def on_basket(basket: Basket) -> None:
        arrived.append(basket)

    basket = Basket(
        at=datetime(2026, 1, 2, tzinfo=UTC),
        lines=[Line("ü \\u0000 '; --", {"EUR": Decimal("0.10")})],
        labels={"a"},
        gift_for=Notification(7, ["x"]),
    )
    task = retry.register(None, "basket", basket)
    async with retry.running():
        assert await field.until_ended(task.task_id) is State.SUCCEEDED
    assert arrived == [basket]
    assert isinstance(arrived[0].lines[0], Line)
