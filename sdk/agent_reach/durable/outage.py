"""Which failures of PostgreSQL pass by themselves, and how to wait for that without flooding the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors
from psycopg_pool import AsyncConnectionPool

from .backoff import exponential_jitter
from .log import Log, default_log

# How long one round of statements may take before its connection counts as dead (a network that swallows packets
# says nothing). Far above what any of ours needs.
STATEMENT_TIMEOUT_SECONDS = 30.0

# Where PostgreSQL says "cached plan must not change result type", in whatever language.
_PLAN_CHECK = "RevalidateCachedQuery"

_BASE_SECONDS, _CAP_SECONDS = 0.1, 3.0


def is_transient(error: Exception) -> bool:
    """Says whether the same statement can succeed later: no connection, a conflict, a server that is read-only."""
    if isinstance(error, psycopg.OperationalError):
        # Deadlocks, shutdowns, a full disk and the pool's timeout are OperationalErrors, and pass. So are a value too
        # large for an index (class 54) and a statement over its time limit, where smaller batches help, not waiting.
        state = error.sqlstate or ""
        return not state.startswith("54") and state != errors.QueryCanceled.sqlstate
    return isinstance(error, (psycopg.InterfaceError, errors.ReadOnlySqlTransaction, TimeoutError, OSError))


def is_conflict(error: Exception) -> bool:
    """Says whether the failure came of two transactions in each other's way, which is no outage."""
    return isinstance(error, (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable))


@asynccontextmanager
async def statement(pool: AsyncConnectionPool[Any]) -> AsyncIterator[AsyncConnection[Any]]:
    """A pooled connection for one statement, bounded in time; in autocommit that is one round trip.

    Raises:
        TimeoutError: it took longer than a healthy server can take.
        psycopg.Error: as the statement does; an OperationalError where it was prepared for a table that has changed.
    """
    async with asyncio.timeout(STATEMENT_TIMEOUT_SECONDS), pool.connection() as connection:
        try:
            yield connection
        except errors.FeatureNotSupported as error:
            if error.diag.source_function != _PLAN_CHECK:
                raise
            # The next connection prepares it anew.
            await connection.close()
            raise psycopg.OperationalError("a prepared statement no longer fits its table") from error


@asynccontextmanager
async def transaction(pool: AsyncConnectionPool[Any]) -> AsyncIterator[AsyncConnection[Any]]:
    """A transaction on such a connection; commits unless an exception leaves the block. Raises the same."""
    async with statement(pool) as connection, connection.transaction():
        yield connection


class Outage:
    """The failures in a row of one activity: says how long to wait, and logs the first and the recovery only.

    Args:
        activity: what fails, for the log: "claim", "settle".
        log: where it goes; structlog's if not given.
        fields: more for the log, such as the queue.
    """

    def __init__(self, activity: str, log: Log | None = None, **fields: object) -> None:
        self._log = (log or default_log()).bind(activity=activity, **fields)
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._failures = 0

    def failed(self, error: Exception) -> float:
        """Notes a failure; returns the seconds to wait before the next try."""
        self._failures += 1
        # A conflict is everyday life between transactions; only one that stays is worth a line.
        if self._failures == (5 if is_conflict(error) else 1):
            known = is_transient(error)
            self._log.warning(
                "durable.failing", error=f"{type(error).__name__}: {error}", exc_info=None if known else error
            )
        return exponential_jitter(self._failures, _BASE_SECONDS, _CAP_SECONDS, 0.3, self._random)

    def succeeded(self) -> None:
        """Notes that it works (again)."""
        if self._failures:
            self._log.info("durable.recovered", failures=self._failures)
        self._failures = 0
