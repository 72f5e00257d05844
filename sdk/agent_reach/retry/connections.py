"""The connections an application already holds: psycopg 3 and SQLAlchemy 2, waiting and asynchronous."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from .errors import BindingError

if TYPE_CHECKING:
    from sqlalchemy import Connection as AlchemyConnection
    from sqlalchemy.ext.asyncio import AsyncConnection as AlchemyAsyncConnection
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session, scoped_session

    SyncConnection = psycopg.Connection[Any] | AlchemyConnection | Session | scoped_session[Any]
    AsyncConnection = psycopg.AsyncConnection[Any] | AlchemyAsyncConnection | AsyncSession
else:
    SyncConnection = AsyncConnection = Any

_TAKEN = "a psycopg 3 connection, or a SQLAlchemy 2 session or connection over psycopg 3"


def is_async(connection: object) -> bool:
    """Says whether statements on this connection must be awaited."""
    return isinstance(connection, (psycopg.AsyncConnection, *_alchemy("sqlalchemy.ext.asyncio", _ASYNC)))


def sync_driver(connection: SyncConnection) -> psycopg.Connection[Any]:
    """Returns the psycopg connection below, in the caller's transaction.

    Raises:
        BindingError: it is no connection that is known, or an asynchronous one.
    """
    found: Any = connection
    if isinstance(found, _alchemy("sqlalchemy.orm", ("Session", "scoped_session"))):
        found = found.connection()
    if isinstance(found, _alchemy("sqlalchemy", ("Connection",))):
        # Starts SQLAlchemy's transaction, as its own first statement would, so that its commit reaches the driver.
        if not found.in_transaction():
            found.begin()
        found = found.connection.driver_connection
    if isinstance(found, psycopg.Connection):
        return found
    if is_async(found):
        raise BindingError("this is an asynchronous connection: await the function that ends in _async")
    raise BindingError(f"{type(connection).__qualname__} is not {_TAKEN}")


async def async_driver(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """Returns the asynchronous psycopg connection below, in the caller's transaction.

    Raises:
        BindingError: it is no asynchronous connection that is known.
    """
    found: Any = connection
    if isinstance(found, _alchemy("sqlalchemy.ext.asyncio", ("AsyncSession", "async_scoped_session"))):
        found = await found.connection()
    if isinstance(found, _alchemy("sqlalchemy.ext.asyncio", ("AsyncConnection",))):
        if not found.in_transaction():
            await found.begin()  # as above
        found = (await found.get_raw_connection()).driver_connection
    if isinstance(found, psycopg.AsyncConnection):
        return found
    raise BindingError(f"{type(connection).__qualname__} is not {_TAKEN}, asynchronous")


def two_phase(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Says whether the transaction is committed in two phases: PostgreSQL prepares none that has notified."""
    return driver._tpc is not None  # noqa: SLF001 - psycopg tells nobody otherwise


@contextmanager
def savepoint(connection: SyncConnection | None) -> Iterator[None]:
    """A savepoint in the caller's transaction: what the block wrote is undone if it raises. None undoes nothing.

    Raises:
        BindingError: the connection is not in a transaction, and would start none.
    """
    if connection is None:
        yield
        return
    driver = sync_driver(connection)
    starts = _starts_transaction(driver)
    if isinstance(connection, psycopg.Connection):
        if starts:
            driver.execute("SELECT")  # opens the transaction; the block must not be its end
        with driver.transaction():
            yield
    else:
        with connection.begin_nested():
            # A session sets its savepoint when it first uses the connection: that must be now, whoever writes first.
            sync_driver(connection)
            yield


@asynccontextmanager
async def savepoint_async(connection: Any) -> AsyncIterator[None]:
    """As :func:`savepoint`, from a coroutine, for both kinds of connection."""
    if not is_async(connection):
        with savepoint(connection):
            yield
        return
    driver = await async_driver(connection)
    starts = _starts_transaction(driver)
    if isinstance(connection, psycopg.AsyncConnection):
        if starts:
            await driver.execute("SELECT")
        async with driver.transaction():
            yield
    else:
        async with connection.begin_nested():
            await async_driver(connection)
            yield


def check(connection: object) -> None:
    """Refuses what is no connection.

    Raises:
        BindingError: it is none that is known.
    """
    known = (
        psycopg.Connection,
        psycopg.AsyncConnection,
        *_alchemy("sqlalchemy", ("Connection",)),
        *_alchemy("sqlalchemy.orm", ("Session", "scoped_session")),
        *_alchemy("sqlalchemy.ext.asyncio", _ASYNC),
    )
    if not isinstance(connection, known):
        raise BindingError(f"{type(connection).__qualname__} is not {_TAKEN}")


def check_dsn(dsn: str) -> str:
    """Returns a connection string that can be read.

    Raises:
        ValueError: it cannot.
    """
    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # What it says repeats the string, which may hold a password.
        raise ValueError(
            "the connection string cannot be read: write it like postgresql://user@host/database"
        ) from None
    return dsn


_ASYNC = ("AsyncSession", "async_scoped_session", "AsyncConnection")


def _alchemy(module: str, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Returns SQLAlchemy's classes; none while nobody has imported it, since nothing can be of them then."""
    loaded = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names) if loaded is not None else ()


def _starts_transaction(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Says whether the next statement starts a transaction; False where it is in one."""
    if driver.info.transaction_status != TransactionStatus.IDLE:
        return False
    if driver.autocommit:
        raise BindingError("the connection is in autocommit and in no transaction: open one before binding it")
    return True
