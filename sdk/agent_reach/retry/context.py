"""What a handler is given beside its parameter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from agent_reach.durable import Batch, Claim, ClaimLostError, Done, Settlement, TableQueue

from .errors import NoConnectionError, TaskStateError
from .model import State
from .queue import Verdict

Started = tuple[datetime, float]
"""When an attempt started, on the database's clock and on this process's monotonic one."""

_THREAD_SECONDS = 30.0


class _Attempt:
    """What both kinds of context know.

    Attributes:
        task_id: the task.
        code: its code.
        attempt: the number of this attempt, 1 for the first.
        max_attempts: how many there are at most.
    """

    __slots__ = (
        "_batch",
        "_claim",
        "_queue",
        "_started",
        "_stop",
        "attempt",
        "code",
        "completed",
        "max_attempts",
        "task_id",
    )

    def __init__(self, batch: Batch, claim: Claim, started: Started, queue: TableQueue) -> None:
        self.task_id: UUID = claim.id
        self.code: str = claim.row["code"]
        self.attempt = claim.attempts
        self.max_attempts: int = claim.row["max_attempts"]
        self.completed = False
        self._batch = batch
        self._claim = claim
        self._started = started
        self._queue = queue
        self._stop = False

    @property
    def stopped(self) -> bool:
        """Whether whatever is done from now on counts for nothing: the task was lost, cancelled, or took too long."""
        return self._stop or self._batch.lost(self._claim)

    def stop(self) -> None:
        """Tells the handler to stop (for the library)."""
        self._stop = True

    def _check_open(self) -> None:
        if self.completed:
            raise TaskStateError(f"task {self.task_id} is completed: ctx.transaction() can be used once")
        if self.stopped:
            raise ClaimLostError(f"task {self.task_id} is not ours any more")

    async def _complete(self, connection: Any) -> None:
        at, began = self._started
        success = Verdict(State.SUCCEEDED, started_at=at, duration_seconds=time.monotonic() - began)
        settlement = Settlement(self._claim, Done(), success)
        if self._stop or not await self._queue.settle(connection, [settlement]):
            raise ClaimLostError(f"task {self.task_id} is not ours any more")
        await self._queue.apply(connection, [settlement])


class Context(_Attempt):
    """The context of an asynchronous handler."""

    __slots__ = ("_connections",)

    def __init__(
        self,
        batch: Batch,
        claim: Claim,
        started: Started,
        queue: TableQueue,
        connections: AsyncConnectionPool[Any],
    ) -> None:
        super().__init__(batch, claim, started, queue)
        self._connections = connections

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A transaction in which the task is completed: what the block writes commits with that, or not at all.

        Raises:
            ClaimLostError: the task is no longer ours; everything was rolled back.
            TaskStateError: it was completed before, by such a block.
            NoConnectionError: there is no connection to be had. An attempt that ends in this is not counted.
        """
        self._check_open()
        try:
            async with self._connected() as connection, connection.transaction():
                yield connection
                self._batch.hold(self._claim)
                await self._complete(connection)
            self.completed = True
        finally:
            self._batch.let_go(self._claim, settled=self.completed)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        try:
            connection = await self._connections.getconn()
        except PoolTimeout as error:
            raise NoConnectionError(str(error)) from error
        try:
            yield connection
        finally:
            await self._connections.putconn(connection)


class SyncContext(_Attempt):
    """The context of a handler that runs in a thread."""

    __slots__ = ("_dsn", "_loop")

    def __init__(
        self,
        batch: Batch,
        claim: Claim,
        started: Started,
        queue: TableQueue,
        dsn: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(batch, claim, started, queue)
        self._dsn = dsn
        self._loop = loop

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """As :meth:`Context.transaction`, with a connection that waits; raises the same."""
        self._check_open()
        try:
            with self._connected() as connection:
                yield connection
                self._on_loop(lambda: self._batch.hold(self._claim))
                _drive(self._complete(_Awaited(connection)))
            self.completed = True
        finally:
            self._on_loop(lambda: self._batch.let_go(self._claim, settled=self.completed))

    def _connected(self) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(self._dsn, prepare_threshold=None)
        except psycopg.OperationalError as error:
            raise NoConnectionError("PostgreSQL cannot be reached, or has no connection to spare") from error

    def _on_loop(self, act: Callable[[], None]) -> None:
        async def call() -> None:
            act()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(_THREAD_SECONDS)


class _Awaited:
    """A waiting connection that looks asynchronous, so that the queue's statements exist once."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def cursor(self, **options: Any) -> _AwaitedCursor:
        return _AwaitedCursor(self._connection.cursor(**options))

    async def execute(self, *arguments: Any) -> _AwaitedCursor:
        return _AwaitedCursor(self._connection.execute(*arguments))


class _AwaitedCursor:
    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    async def execute(self, *arguments: Any) -> None:
        self._cursor.execute(*arguments)

    async def fetchall(self) -> Sequence[Any]:
        return self._cursor.fetchall()


def _drive(work: Any) -> Any:
    """Runs a coroutine that never really waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("it was to wait for something, in a thread without a loop")
