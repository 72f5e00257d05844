"""Ordinary functions under SQLAlchemy's connections and sessions, waiting and asynchronous."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from agent_reach.retry import BindingError, Retries, Scheduled, State

from .field import Field

ORDER = text("INSERT INTO orders VALUES (:number)")


class RemoteError(Exception):
    pass


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


held: list[Any] = []
"""What the functions below write with, beside the order itself: closures are refused."""
failing: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    held.clear()
    failing.clear()


def _add(target: Any, number: int) -> Any:
    """Writes an order: through the unit of work where there is one, so that nothing is sent before the flush."""
    if isinstance(target, (Session, AsyncSession)):
        target.add(Order(id=number))
        return None
    return target.execute(ORDER, {"number": number})


def charge(number: int) -> str:
    _add(held[-1], number)
    if number in failing:
        raise RemoteError("away")
    return f"charged {number}"


async def charge_async(number: int) -> str:
    if (written := _add(held[-1], number)) is not None:
        await written
    if number in failing:
        raise RemoteError("away")
    return f"charged {number}"


@pytest.fixture
def engine(field: Field) -> Iterator[Engine]:
    made = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(field.dsn))
    yield made
    made.dispose()


@pytest.fixture
async def async_engine(field: Field) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(
        "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(field.dsn)
    )
    yield made
    await made.dispose()


def check(retry: Retries, field: Field, scheduled: object, *, commits: bool) -> None:
    assert isinstance(scheduled, Scheduled)
    # 1 was written before, 7 failed, 8 did not, 9 was written after.
    assert field.query("SELECT id FROM orders ORDER BY id") == ([(1,), (8,), (9,)] if commits else [])
    assert field.tasks() == commits
    if commits:
        task, _ = retry.tasks.show(scheduled.task_id)
        assert (task.state, task.payload) == (State.WAITING, {"arguments": {"number": 7}})


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", [Session, Connection])
def test_a_failed_call_is_undone_alone_and_its_task_commits_with_the_rest(
    retry: Retries, field: Field, engine: Engine, kind: type, *, commits: bool
) -> None:
    charged = retry.on_failure(include=(RemoteError,))(charge)
    failing.append(7)
    with Session(engine) if kind is Session else engine.connect() as bound:
        held.append(bound)
        _add(bound, 1)
        with retry.bind(bound):
            scheduled = charged(7)
            assert charged(8) == "charged 8"
        _add(bound, 9)
        bound.commit() if commits else bound.rollback()
    check(retry, field, scheduled, commits=commits)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
async def test_a_failed_call_of_a_coroutine_too(
    retry: Retries, field: Field, async_engine: AsyncEngine, kind: type, *, commits: bool
) -> None:
    charged = retry.on_failure(include=(RemoteError,))(charge_async)
    failing.append(7)
    async with AsyncSession(async_engine) if kind is AsyncSession else async_engine.connect() as bound:
        held.append(bound)
        if (written := _add(bound, 1)) is not None:
            await written
        with retry.bind(bound):
            scheduled = await charged(7)
            assert await charged(8) == "charged 8"
        if (written := _add(bound, 9)) is not None:
            await written
        await (bound.commit() if commits else bound.rollback())
    check(retry, field, scheduled, commits=commits)


@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
async def test_bound_before_anything_was_done_the_savepoint_is_not_the_end_of_the_transaction(
    retry: Retries, field: Field, async_engine: AsyncEngine, kind: type
) -> None:
    charged = retry.on_failure(include=(RemoteError,))(charge_async)
    failing.append(7)
    async with AsyncSession(async_engine) if kind is AsyncSession else async_engine.connect() as bound:
        held.append(bound)
        with retry.bind(bound):
            await charged(7)
            await charged(8)
        await bound.rollback()
    assert (field.orders(), field.tasks()) == (0, 0)


async def test_with_reraise_the_task_stands_whatever_becomes_of_the_session(
    retry: Retries, field: Field, async_engine: AsyncEngine
) -> None:
    charged = retry.on_failure(include=(RemoteError,), reraise=True)(charge_async)
    failing.append(7)
    async with AsyncSession(async_engine) as session:
        held.append(session)
        with retry.bind(session), pytest.raises(RemoteError):
            await charged(7)
        await session.rollback()
    assert (field.orders(), field.tasks()) == (0, 1)


async def test_a_call_that_broke_the_transaction_itself_is_undone_and_registered(
    retry: Retries, field: Field, async_engine: AsyncEngine
) -> None:
    charged = retry.on_failure()(charge_async)
    async with AsyncSession(async_engine) as session:
        held.append(await session.connection())
        with retry.bind(session):
            assert await charged(7) == "charged 7"
            assert isinstance(await charged(7), Scheduled), "the key is there already"
        await session.commit()
    assert (field.orders(), field.tasks()) == (1, 1)


async def test_a_function_that_waits_is_refused_under_an_async_session_before_it_runs(
    retry: Retries, field: Field, async_engine: AsyncEngine
) -> None:
    async with AsyncSession(async_engine) as session:
        held.append(session)
        with retry.bind(session), pytest.raises(BindingError, match="asynchronous"):
            retry.on_failure()(charge)(7)
        await session.commit()
    assert field.orders() == 0


@pytest.mark.parametrize("kind", [Session, Connection])
def test_autocommit_is_refused_before_the_function_runs(
    retry: Retries, field: Field, engine: Engine, kind: type
) -> None:
    charged = retry.on_failure()(charge)
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(loose) if kind is Session else loose.connect() as bound:
        held.append(bound)
        with retry.bind(bound), pytest.raises(BindingError, match="autocommit"):
            charged(7)
    assert (field.orders(), field.tasks()) == (0, 0)


@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
async def test_autocommit_is_refused_before_the_coroutine_runs(
    retry: Retries, field: Field, async_engine: AsyncEngine, kind: type
) -> None:
    charged = retry.on_failure()(charge_async)
    loose = async_engine.execution_options(isolation_level="AUTOCOMMIT")
    async with AsyncSession(loose) if kind is AsyncSession else loose.connect() as bound:
        held.append(bound)
        with retry.bind(bound), pytest.raises(BindingError, match="autocommit"):
            await charged(7)
    assert (field.orders(), field.tasks()) == (0, 0)


@pytest.mark.parametrize("kind", [Session, Connection])
def test_a_broken_constraint_that_only_the_flush_finds_is_the_functions_failure(
    retry: Retries, field: Field, engine: Engine, kind: type
) -> None:
    charged = retry.on_failure()(charge)
    field.query("INSERT INTO orders VALUES (7)")
    with Session(engine) if kind is Session else engine.connect() as bound:
        held.append(bound)
        with retry.bind(bound):
            assert isinstance(charged(7), Scheduled)
        bound.commit()
    assert (field.orders(), field.tasks()) == (1, 1)
