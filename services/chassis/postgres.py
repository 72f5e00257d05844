"""PostgreSQL pools without session state, fit for a pooler in transaction mode."""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
import structlog
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from .startup import StartupError

Connection = psycopg.AsyncConnection[TupleRow]
Pool = AsyncConnectionPool[Connection]

ResultT = TypeVar("ResultT")

_ACQUIRE_TIMEOUT_SECONDS = 5.0
_DEADLOCK_TRIES = 5

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_pool(part: str, dsn: str, size: int) -> AsyncIterator[Pool]:
    """Opens a pool and closes it at the end.

    Raises:
        StartupError: the DSN is missing, or the database cannot be reached at the start.
    """
    variable = f"REACH_POSTGRES_{part.upper()}_DSN"
    if not dsn:
        raise StartupError("PostgreSQL", f"no connection string for the role {part}", f"set {variable}")
    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # Without its text, which repeats the password.
        raise StartupError("PostgreSQL", f"{variable} is not a connection string", f"correct {variable}") from None
    pool: Pool = AsyncConnectionPool(
        dsn,
        min_size=1,
        max_size=size,
        timeout=_ACQUIRE_TIMEOUT_SECONDS,
        open=False,
        # A connection that an outage broke is found here and replaced, not handed to a caller.
        check=_check_alive,
        # Named prepared statements are session state, which a pooler in transaction mode does not keep.
        kwargs={"prepare_threshold": None, "autocommit": True, "connect_timeout": 5},
        reconnect_timeout=5.0,
        name=f"reach-{part}",
    )
    try:
        try:
            await pool.open(wait=True, timeout=10.0)
        except psycopg.Error as error:
            raise StartupError(
                "PostgreSQL", f"it cannot be reached as role {part}: {error}", f"check {variable} and that it runs"
            ) from error
        yield pool
    finally:
        await pool.close()


async def _check_alive(connection: psycopg.AsyncConnection[Any]) -> None:
    """Sees whether the server has hung up. A question would cost more than most statements; a server says goodbye.

    Raises:
        psycopg.OperationalError: there is something to read on an idle connection: its end.
    """
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    if poll.poll(0):
        # Closed, or the pool would take it back as an idle one and offer it again and again.
        await connection.close()
        raise psycopg.OperationalError("the server closed the connection")


@asynccontextmanager
async def tenant_transaction(pool: Pool, tenant: str) -> AsyncIterator[Connection]:
    """Gives a connection of the role api inside a transaction that sees this tenant's rows only."""
    async with pool.connection() as connection, connection.transaction():
        await connection.execute("SELECT set_config('reach.tenant', %s, true)", (tenant,))
        yield connection


async def past_deadlocks(work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Does a piece of work, and does it again where PostgreSQL has sacrificed its transaction to another one's.

    Args:
        work: a whole transaction; whatever a failed one did is rolled back when it is called again.

    Raises:
        psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure: five times in a row.
    """
    for _ in range(_DEADLOCK_TRIES - 1):
        try:
            return await work()
        except (errors.DeadlockDetected, errors.SerializationFailure) as error:
            _log.info("transaction_repeated", error=type(error).__name__)
    return await work()
