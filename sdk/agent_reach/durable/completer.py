"""Writes answers in groups: one transaction for many rows, tried again for as long as PostgreSQL is away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from psycopg_pool import AsyncConnectionPool

from .backoff import exponential_jitter
from .claims import Release, Settlement
from .log import Log
from .outage import Outage, is_transient, statement, transaction
from .queue import TableQueue
from .settings import QueueSettings

# Rows in one transaction: more would hold their locks for long and gain nothing.
_MAX_FLUSH = 500


class Answer:
    """What becomes of a settlement.

    Awaited, it says whether the settlement is committed. False: it was refused, because the row is no longer ours, or could
    not be written (then it is logged, and the row comes again). It need not be awaited.

    Attributes:
        settlement: what is to be written.
    """

    __slots__ = ("_calls", "_stored", "settlement")

    def __init__(self, settlement: Settlement) -> None:
        self.settlement = settlement
        self._stored: bool | None = None
        self._calls: tuple[Callable[[bool], None], ...] = ()

    def then(self, call: Callable[[bool], None]) -> None:
        """Has a function called, on the loop, with what awaiting gives; at once if that is known.

        It costs less than to await, where many do. What it raises goes to the loop's exception handler.
        """
        if self._stored is None:
            self._calls += (call,)
        else:
            _tell(call, self._stored)

    def resolve(self, *, stored: bool) -> None:
        """Tells what has become of it, for the first time (for the engine)."""
        if self._stored is not None:
            return
        self._stored = stored
        calls, self._calls = self._calls, ()
        for call in calls:
            _tell(call, stored)

    def __await__(self) -> Generator[Any, None, bool]:
        if self._stored is None:
            known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda _: None if known.done() else known.set_result(None))
            yield from known
        assert self._stored is not None
        return self._stored


class Completer:
    """The answers of one queue on their way to its table.

    Args:
        pool: where connections come from.
        queue: the table.
        settings: how long an answer waits for company, and how long a row that cannot be written is put off.
        on_stored: called after each commit with the settlements that passed the fence.
        log: where failures go.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        queue: TableQueue,
        settings: QueueSettings,
        on_stored: Callable[[Sequence[Settlement]], None],
        log: Log,
    ) -> None:
        self._pool = pool
        self._queue = queue
        self._settings = settings
        self._on_stored = on_stored
        self._answers: deque[Answer] = deque()
        self._writing: list[Answer] = []
        self._log = log
        self._outage = Outage("settle", log, queue=queue.name)
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()
        self._closing = False

    @property
    def pending(self) -> int:
        """How many answers are not stored yet."""
        return len(self._answers) + len(self._writing)

    def pending_settlements(self) -> list[Settlement]:
        """Returns the answers that are not stored yet."""
        return [answer.settlement for answer in (*self._answers, *self._writing)]

    def submit(self, settlement: Settlement, *, urgent: bool = False) -> Answer:
        """Takes a settlement to be written.

        Args:
            settlement: what is to be written.
            urgent: write it at once, because losing it would mean doing something twice.
        """
        answer = Answer(settlement)
        self._answers.append(answer)
        self._wanted.set()
        if urgent or len(self._answers) >= self._settings.batch_size:
            self._urgent.set()
        return answer

    async def run(self) -> None:
        """Writes what comes in, until :meth:`close` was called and all is written."""
        try:
            while True:
                await self._wanted.wait()
                if not self._answers:
                    if self._closing:
                        return
                    self._wanted.clear()
                    continue
                if not self._closing:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._urgent.wait(), self._settings.flush_seconds)
                self._urgent.clear()
                self._writing = [self._answers.popleft() for _ in range(min(_MAX_FLUSH, len(self._answers)))]
                await self._store(self._writing)
                self._writing = []
        finally:
            # Only when cancelled is there anything left: nobody must wait for it for ever.
            for answer in (*self._writing, *self._answers):
                answer.resolve(stored=False)

    def close(self) -> None:
        """Lets :meth:`run` end once all is written."""
        self._closing = True
        self._wanted.set()
        self._urgent.set()

    async def _store(self, answers: Sequence[Answer]) -> None:
        """Writes these answers; where the fault lies with one of them, the others are written without it."""
        while True:
            try:
                passed = await self._write([answer.settlement for answer in answers])
            except Exception as error:  # noqa: BLE001 - `apply` is the domain's and may raise anything
                if is_transient(error):
                    await asyncio.sleep(self._outage.failed(error))
                elif len(answers) > 1:
                    middle = len(answers) // 2
                    await self._store(answers[:middle])
                    await self._store(answers[middle:])
                    return
                else:
                    await self._store_without_verdict(answers[0], error)
                    return
            else:
                self._outage.succeeded()
                self._on_stored(passed)
                stored = {settlement.claim.key for settlement in passed}
                for answer in answers:
                    answer.resolve(stored=answer.settlement.claim.key in stored)
                return

    async def _write(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Writes these; returns those that passed the fence."""
        opened = statement if self._queue.settles_in_one_statement(settlements) else transaction
        async with opened(self._pool) as connection:
            keys = await self._queue.settle(connection, settlements)
            passed = [settlement for settlement in settlements if settlement.claim.key in keys]
            verdicts = [settlement for settlement in passed if not isinstance(settlement.action, Release)]
            if verdicts:
                await self._queue.apply(connection, verdicts)
        return passed

    async def _store_without_verdict(self, answer: Answer, error: Exception) -> None:
        """Releases the row whose answer cannot be written; the handler gets it again after a while."""
        claim = answer.settlement.claim
        log = self._log.bind(queue=self._queue.name, id=str(claim.id))
        answer.resolve(stored=False)
        if isinstance(answer.settlement.action, Release):
            # Nothing lighter is left to try. The row stays ours until this process ends, when it is swept.
            log.error("durable.release_failed", exc_info=error)
            return
        log.error("durable.answer_not_writable", exc_info=error)
        wait = exponential_jitter(
            claim.attempts,
            self._settings.failure_base_seconds,
            self._settings.failure_cap_seconds,
            0.3,
            self._random,
        )
        await self._store([Answer(Settlement(claim, Release(wait, counted=answer.settlement.action.counted)))])


def _tell(call: Callable[[bool], None], stored: bool) -> None:  # noqa: FBT001 - it is what is told
    try:
        call(stored)
    except Exception as error:  # noqa: BLE001 - one who is told must keep nobody else from it
        context = {"message": "a callback of a durable answer failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
