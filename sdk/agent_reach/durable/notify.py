"""Waking the queues of other processes at once, by NOTIFY, with the scans as the safety net.

The channel is the queue's table with its schema. The payload is empty, or the earliest ``run_at`` of the rows
meant, in milliseconds since the epoch, where that lies in the past.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from .log import Log
from .outage import Outage, transaction

# PostgreSQL serialises the commits of notifying transactions, so they must be few.
_PAUSE_SECONDS = 0.05
# A LISTEN connection is silent by nature: now and then it is asked whether it still lives.
_PROBE_SECONDS = 30.0
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Notifier:
    """Tells other processes about new rows, at most once per 50 ms whatever the number of pokes.

    For processes that insert into a queue. An :class:`Engine` has one (``engine.notifier``); a process without an
    engine uses its own as an async context manager.

    Args:
        pool: where connections come from.
        log: where failures go; structlog's if not given.
    """

    def __init__(self, pool: AsyncConnectionPool[Any], log: Log | None = None) -> None:
        self._pool = pool
        self._log = log
        self._poked: dict[str, datetime | None] = {}
        self._wanted = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def poke(self, queue: str, run_at: datetime | None = None) -> None:
        """Announces committed rows of a queue; returns at once.

        Args:
            queue: the queue's table, with its schema.
            run_at: the earliest ``run_at`` of the rows, where that may lie more than a second in the past; those are
                otherwise found by the next full scan only.
        """
        known = self._poked.get(queue)
        if run_at is not None and known is not None:
            run_at = min(run_at, known)
        self._poked[queue] = run_at if run_at is not None else known
        self._wanted.set()

    async def run(self) -> None:
        """Sends what was poked, until :meth:`close`. A notification that cannot be sent is dropped: scans go on."""
        outage = Outage("notify", self._log)
        while not (self._closing and not self._poked):
            await self._wanted.wait()
            self._wanted.clear()
            poked, self._poked = self._poked, {}
            if poked:
                try:
                    await self._send(poked)
                except Exception as error:  # noqa: BLE001 - a lost notification is no reason to end
                    await asyncio.sleep(min(outage.failed(error), _PAUSE_SECONDS if self._closing else 1.0))
                else:
                    outage.succeeded()
            if not self._closing:
                await asyncio.sleep(_PAUSE_SECONDS)
        self._poked.clear()

    def close(self) -> None:
        """Lets :meth:`run` send what is left and end."""
        self._closing = True
        self._wanted.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._task is not None:
            await self._task

    async def _send(self, poked: dict[str, datetime | None]) -> None:
        async with transaction(self._pool) as connection:
            await connection.execute(
                "SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS n(channel, payload)",
                (list(poked), [payload(run_at) for run_at in poked.values()]),
            )


def payload(run_at: datetime | None) -> str:
    """Returns what to send along with a notification about rows due at ``run_at``."""
    return "" if run_at is None else str(int(run_at.timestamp() * 1000))


async def listen(
    dsn: str, channels: Sequence[str], wake: Callable[[str, datetime | None], None], *, name: str, log: Log
) -> None:
    """Calls ``wake(channel, run_at)`` for every notification, for ever; reconnects by itself.

    After every (re)connection all channels are woken once, since nobody knows what was missed.

    Args:
        dsn: of PostgreSQL itself: a pooler in transaction mode does not pass notifications on.
        channels: the queues' tables.
        wake: called on the loop.
        name: the connection's application name.
        log: where failures go.
    """
    outage = Outage("listen", log)
    while True:
        try:
            connection = await AsyncConnection.connect(
                make_conninfo(dsn, application_name=name, connect_timeout=5, tcp_user_timeout=10_000),
                autocommit=True,
                prepare_threshold=None,
            )
            async with connection:
                for channel in channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                outage.succeeded()
                for channel in channels:
                    wake(channel, _LONG_AGO)
                while True:
                    async for notification in connection.notifies(timeout=_PROBE_SECONDS):
                        wake(notification.channel, _run_at(notification.payload))
                    await asyncio.wait_for(connection.execute("SELECT"), 10)
        except Exception as error:  # noqa: BLE001 - whatever it is, the scans go on and it is tried again
            await asyncio.sleep(outage.failed(error))


def _run_at(text: str) -> datetime | None:
    with suppress(ValueError, OverflowError):
        return _LONG_AGO + timedelta(milliseconds=int(text)) if text else None
    return None
