"""What a handler is given beside its parameter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import psycopg

from agent_reach.durable import Batch, Claim, ClaimLostError, Done, Settlement, TableQueue

from .queue import Verdict

_THREAD_SECONDS = 30.0


class _Attempt:
    """What both kinds of context know.

    Attributes:
        task_id: the task.
        code: its code.
        attempt: the number of this attempt, 1 for the first.
        max_attempts: how many there are at most.
    """

    def __init__(self, batch: Batch, claim: Claim, success: Callable[[], Verdict]) -> None:
        self.task_id: UUID = claim.id
        self.code: str = claim.row["code"]
        self.attempt = claim.attempts
        self.max_attempts: int = claim.row["max_attempts"]
        self.completed = False
        self._batch = batch
        self._claim = claim
        self._success = success
        self._stop = False

    @property
    def stopped(self) -> bool:
        """Whether whatever is done from now on counts for nothing: the task was lost, cancelled, or took too long."""
        return self._stop or self._batch.lost(self._claim)

    def stop(self) -> None:
        """Tells the handler to stop (for the library)."""
        self._stop = True


class Context(_Attempt):
    """The context of an asynchronous handler."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A transaction in which the task is completed: what the block writes commits with that, or not at all.

        Raises:
            ClaimLostError: the task is no longer ours; everything was rolled back.
        """
        async with self._batch.transaction(self._claim, Done(), self._success()) as connection:
            yield connection
        self.completed = True


class SyncContext(_Attempt):
    """The context of a handler that runs in a thread."""

    def __init__(
        self,
        batch: Batch,
        claim: Claim,
        success: Callable[[], Verdict],
        queue: TableQueue,
        dsn: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(batch, claim, success)
        self._queue = queue
        self._dsn = dsn
        self._loop = loop

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """As :meth:`Context.transaction`, with a connection that waits.

        Raises:
            ClaimLostError: the task is no longer ours; everything was rolled back.
        """
        self._on_loop(lambda: self._batch.hold(self._claim))
        try:
            with psycopg.connect(self._dsn, prepare_threshold=None) as connection:
                yield connection
                self._complete(_Awaited(connection))
        except BaseException:
            self._on_loop(lambda: self._batch.let_go(self._claim, settled=False))
            raise
        self.completed = True
        self._on_loop(lambda: self._batch.let_go(self._claim, settled=True))

    def _complete(self, connection: Any) -> None:
        settlement = Settlement(self._claim, Done(), self._success())
        if self._stop or not _drive(self._queue.settle(connection, [settlement])):
            raise ClaimLostError(f"task {self.task_id} is not ours any more")
        _drive(self._queue.apply(connection, [settlement]))

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
