"""Ordinary functions whose failed calls are done again later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest

from agent_reach.retry import (
    FIBONACCI,
    BindingError,
    HandlerError,
    ParameterError,
    Retries,
    Scheduled,
    State,
)

from .field import Field


class RemoteError(Exception):
    pass


class UnpaidError(RemoteError):
    pass


calls: list[tuple[Any, ...]] = []
"""What the functions below were called with: closures are refused, so they cannot have it from their tests."""
errors: list[Exception] = []
connections: list[psycopg.Connection[Any]] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    for each in (calls, errors, connections):
        each.clear()


def charge(order: int, *lines: str, note: str = "none", **more: int) -> str:
    calls.append((order, lines, note, more))
    if connections:
        connections[-1].execute("INSERT INTO orders VALUES (%s)", (order,))
    if errors:
        raise errors.pop(0)
    return f"charged {order}"


async def charge_async(order: int) -> str:
    calls.append((order,))
    if errors:
        raise errors.pop(0)
    return f"charged {order}"


def decorated(retry: Retries, function: Callable[..., Any] = charge, **options: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = retry.on_failure(
        **{
            "include": (RemoteError,),
            "exclude": (UnpaidError,),
            "max_attempts": 3,
            "first_delay_seconds": 0,
            "interval_seconds": 0.05,
            "strategy": FIBONACCI,
            **options,
        }
    )(function)
    return made


async def test_a_failed_call_is_done_again_with_its_arguments(retry: Retries, field: Field) -> None:
    charged = decorated(retry)
    errors.extend([RemoteError("first"), RemoteError("second")])
    scheduled = charged(7, "a", "b", note="x", tip=1)
    assert isinstance(scheduled, Scheduled)
    async with retry.running():
        assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
    assert calls == [(7, ("a", "b"), "x", {"tip": 1})] * 3
    task, attempts = retry.tasks.show(scheduled.task_id)
    assert task.attempts == 2, "the first call, inline, counts as none"
    assert [attempt.error for attempt in attempts] == ["RemoteError: second", None]


async def test_an_async_function_too_and_at_most_so_many_times(retry: Retries, field: Field) -> None:
    charged = decorated(retry, charge_async)
    errors.extend(RemoteError(str(number)) for number in range(10))
    scheduled = await charged(order=7)
    async with retry.running():
        assert await field.until_ended(scheduled.task_id) is State.EXHAUSTED
    assert calls == [(7,)] * 4


def test_a_call_that_works_returns_what_it_returns_and_registers_nothing(retry: Retries, field: Field) -> None:
    assert decorated(retry)(7) == "charged 7"
    assert field.tasks() == 0


@pytest.mark.parametrize("error", [ValueError("ours"), UnpaidError("excluded")])
def test_other_errors_pass_and_register_nothing(retry: Retries, field: Field, error: Exception) -> None:
    errors.append(error)
    with pytest.raises(type(error)):
        decorated(retry)(7)
    assert field.tasks() == 0


async def test_another_error_later_ends_the_task(retry: Retries, field: Field) -> None:
    errors.extend([RemoteError("away"), UnpaidError("never")])
    scheduled = decorated(retry)(7)
    async with retry.running():
        assert await field.until_ended(scheduled.task_id) is State.GIVEN_UP


@pytest.mark.parametrize("commits", [True, False])
def test_bound_it_undoes_its_own_writes_only_and_the_caller_goes_on(
    retry: Retries, field: Field, *, commits: bool
) -> None:
    charged = decorated(retry)
    with psycopg.connect(field.dsn) as bound:
        bound.execute("INSERT INTO orders VALUES (1)")
        connections.append(bound)
        errors.append(RemoteError("away"))
        with retry.bind(bound):
            scheduled = charged(7)
            assert charged(8) == "charged 8"
        assert isinstance(scheduled, Scheduled)
        bound.commit() if commits else bound.rollback()
    assert field.query("SELECT id FROM orders ORDER BY id") == ([(1,), (8,)] if commits else [])
    assert field.tasks() == commits


def test_bound_to_a_fresh_connection_the_savepoint_is_not_the_end_of_the_transaction(
    retry: Retries, field: Field
) -> None:
    with psycopg.connect(field.dsn) as connection:
        connections.append(connection)
        with retry.bind(connection):
            decorated(retry)(7)
        connection.rollback()
    assert field.orders() == 0


async def test_bound_to_an_async_connection(retry: Retries, field: Field) -> None:
    charged = decorated(retry, charge_async)
    async with await psycopg.AsyncConnection.connect(field.dsn) as connection:
        errors.extend([RemoteError("one"), RemoteError("two")])
        with retry.bind(connection):
            assert isinstance(await charged(1), Scheduled)
            await connection.rollback()
            assert isinstance(await charged(2), Scheduled)
    assert field.query("SELECT payload -> 'arguments' FROM reach_retry.tasks") == [({"order": 2},)]


def test_with_reraise_the_task_stands_and_the_error_goes_on(retry: Retries, field: Field) -> None:
    charged = decorated(retry, reraise=True)
    errors.extend([RemoteError("unbound"), RemoteError("bound")])
    with pytest.raises(RemoteError, match="unbound"):
        charged(1)
    with psycopg.connect(field.dsn) as connection, retry.bind(connection):
        with pytest.raises(RemoteError, match="bound"):
            charged(2)
        connection.rollback()
    assert field.tasks() == 2


class Mailer:
    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, to: str) -> None:
        calls.append((self.name, to))
        if errors:
            raise errors.pop(0)


async def test_methods_of_registered_objects(retry: Retries, field: Field) -> None:
    send = decorated(retry, Mailer.send)
    first, second = Mailer("first"), Mailer("second")
    retry.add_object(first, "first")
    with pytest.raises(HandlerError, match="not registered"):
        send(second, "ada")
    with pytest.raises(HandlerError, match="not registered"):
        send(self=second, to="ada")
    with pytest.raises(TypeError, match=r"send\(\) is called without self"):
        send(to="ada")
    assert calls == [], "it is told before anything is done"
    retry.add_object(second, "second")
    errors.append(RemoteError("away"))
    scheduled = send(self=second, to="ada")
    async with retry.running():
        assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
    assert calls == [("second", "ada")] * 2


def fee(cls: type, amount: int) -> int:
    calls.append((cls, amount))
    if errors:
        raise errors.pop(0)
    return amount + 2


class Gateway:
    """Its decorated methods are put in by the test, which has the object that decorates."""

    fee: Callable[..., Any]
    charge: Callable[..., Any]


async def test_class_methods_of_registered_classes_and_static_methods(retry: Retries, field: Field) -> None:
    # As `@classmethod` and `@staticmethod` right above `@retry.on_failure` do.
    Gateway.fee = classmethod(decorated(retry, fee))  # type: ignore[assignment]
    Gateway.charge = staticmethod(decorated(retry))
    with pytest.raises(HandlerError, match="the class Gateway is not registered"):
        Gateway.fee(1)
    assert retry.add_object(Gateway) is Gateway, "so that it decorates the class"
    assert (Gateway.fee(1), Gateway.charge(1)) == (3, "charged 1")
    errors.extend([RemoteError("away"), RemoteError("away")])
    tasks = [Gateway.fee(7), Gateway.charge(8)]
    async with retry.running():
        for task in tasks:
            assert await field.until_ended(task.task_id) is State.SUCCEEDED
    assert sorted(calls[2:], key=len) == [(Gateway, 7)] * 2 + [(8, (), "none", {})] * 2


def test_arguments_that_do_not_fit_are_told_with_the_error_that_made_them_matter(retry: Retries, field: Field) -> None:
    charged = decorated(retry)
    assert charged("seven") == "charged seven", "an ordinary call is nobody's business"
    errors.append(RemoteError("away"))
    with pytest.raises(ParameterError, match="order") as told:
        charged("seven")
    assert isinstance(told.value.__cause__, RemoteError)
    assert field.tasks() == 0


async def test_a_function_that_waits_cannot_run_under_an_async_connection(retry: Retries, field: Field) -> None:
    async with await psycopg.AsyncConnection.connect(field.dsn) as connection:
        with retry.bind(connection), pytest.raises(BindingError, match="asynchronous"):
            decorated(retry)(7)


async def test_what_is_bound_in_one_task_is_not_bound_in_another(retry: Retries, field: Field) -> None:
    charged = decorated(retry, charge_async)
    errors.append(RemoteError("away"))

    async def elsewhere(task: asyncio.Event) -> None:
        await task.wait()
        await charged(1)

    bound = asyncio.Event()
    other = asyncio.create_task(elsewhere(bound))
    async with await psycopg.AsyncConnection.connect(field.dsn) as connection:
        with retry.bind(connection):
            bound.set()
            await other
        await connection.rollback()
    assert field.tasks() == 1


def test_autocommit_without_a_transaction_cannot_be_bound(retry: Retries, field: Field) -> None:
    """Although `include` has all errors: no savepoint is no failure of the function, which was not called."""
    charged = retry.on_failure()(charge)
    with psycopg.connect(field.dsn, autocommit=True) as connection, retry.bind(connection):
        with pytest.raises(BindingError, match="autocommit"):
            charged(7)
        with connection.transaction():
            assert charged(8) == "charged 8"
    assert [call[0] for call in calls] == [8]
    assert field.tasks() == 0


async def test_in_a_transaction_that_failed_already_nothing_is_called_or_registered(
    retry: Retries, field: Field
) -> None:
    charged, charged_async = retry.on_failure()(charge), retry.on_failure()(charge_async)
    with psycopg.connect(field.dsn) as connection, retry.bind(connection):
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT FROM nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            charged(7)
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await charged_async(7)
    assert (calls, field.tasks()) == ([], 0)


def lazily(order: int) -> Coroutine[Any, Any, str]:
    return charge_async(order)


def test_a_function_that_only_returns_what_is_to_be_awaited_is_told_so(retry: Retries, field: Field) -> None:
    """Its failure would come when nobody looks any more, and nothing would be registered."""
    with pytest.raises(HandlerError, match=r"lazily returned something to await.*make it `async def`"):
        decorated(retry, lazily, include=Exception)(7)
    assert (calls, field.tasks()) == ([], 0)


def test_errors_may_be_one_class(retry: Retries, field: Field) -> None:
    charged = decorated(retry, include=RemoteError, exclude=UnpaidError)
    errors.extend([RemoteError("away"), UnpaidError("never")])
    assert isinstance(charged(7), Scheduled)
    with pytest.raises(UnpaidError):
        charged(7)
    assert field.tasks() == 1
