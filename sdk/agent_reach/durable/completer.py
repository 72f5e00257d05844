"""Writes answers in groups: one transaction for many rows, tried again for as long as PostgreSQL is away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from psycopg_pool import AsyncConnectionPool

from .backoff import exponential_jitter
from .claims import Release, Settlement
from .log import Log
from .outage import Outage, is_transient, transaction
from .queue import TableQueue
from .settings import QueueSettings

# Rows in one transaction: more would hold their locks for long and gain nothing.
_MAX_FLUSH = 500


@dataclass(frozen=True, slots=True)
class _Entry:
    settlement: Settlement
    stored: asyncio.Future[bool]


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
        self._entries: deque[_Entry] = deque()
        self._writing: list[_Entry] = []
        self._log = log
        self._outage = Outage("settle", log, queue=queue.name)
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()
        self._closing = False

    @property
    def pending(self) -> int:
        """How many answers are not stored yet."""
        return len(self._entries) + len(self._writing)

    def pending_settlements(self) -> list[Settlement]:
        """Returns the answers that are not stored yet."""
        return [entry.settlement for entry in (*self._entries, *self._writing)]

    def submit(self, settlement: Settlement, *, urgent: bool = False) -> asyncio.Future[bool]:
        """Takes an answer; the future says whether it passed the fence and is committed.

        Args:
            settlement: the answer.
            urgent: write it at once, because losing it would mean doing something twice.
        """
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._entries.append(_Entry(settlement, stored))
        self._wanted.set()
        if urgent or len(self._entries) >= self._settings.batch_size:
            self._urgent.set()
        return stored

    async def run(self) -> None:
        """Writes what comes in, until :meth:`close` was called and all is written."""
        try:
            while True:
                await self._wanted.wait()
                if not self._entries:
                    if self._closing:
                        return
                    self._wanted.clear()
                    continue
                if not self._closing:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._urgent.wait(), self._settings.flush_seconds)
                self._urgent.clear()
                self._writing = [self._entries.popleft() for _ in range(min(_MAX_FLUSH, len(self._entries)))]
                await self._store(self._writing)
                self._writing = []
        finally:
            # Only when cancelled is there anything left: nobody must wait for it for ever.
            for entry in (*self._writing, *self._entries):
                _resolve(entry, passed=False)

    def close(self) -> None:
        """Lets :meth:`run` end once all is written."""
        self._closing = True
        self._wanted.set()
        self._urgent.set()

    async def _store(self, entries: Sequence[_Entry]) -> None:
        """Writes these entries; where the fault lies with one of them, the others are written without it."""
        while True:
            try:
                stored = await self._write(entries)
            except Exception as error:  # noqa: BLE001 - `apply` is the domain's and may raise anything
                if is_transient(error):
                    await asyncio.sleep(self._outage.failed(error))
                elif len(entries) > 1:
                    middle = len(entries) // 2
                    await self._store(entries[:middle])
                    await self._store(entries[middle:])
                    return
                else:
                    await self._store_without_verdict(entries[0], error)
                    return
            else:
                self._outage.succeeded()
                self._on_stored(stored)
                passed = {settlement.claim.key for settlement in stored}
                for entry in entries:
                    _resolve(entry, passed=entry.settlement.claim.key in passed)
                return

    async def _write(self, entries: Sequence[_Entry]) -> list[Settlement]:
        async with transaction(self._pool) as connection:
            passed = await self._queue.settle(connection, [entry.settlement for entry in entries])
            stored = [entry.settlement for entry in entries if entry.settlement.claim.key in passed]
            verdicts = [settlement for settlement in stored if not isinstance(settlement.action, Release)]
            if verdicts:
                await self._queue.apply(connection, verdicts)
        return stored

    async def _store_without_verdict(self, entry: _Entry, error: Exception) -> None:
        """Releases the row whose answer cannot be written; the handler gets it again after a while."""
        claim = entry.settlement.claim
        log = self._log.bind(queue=self._queue.name, id=str(claim.id))
        _resolve(entry, passed=False)
        if isinstance(entry.settlement.action, Release):
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
        released = replace(entry.settlement, action=Release(wait), result=None)
        await self._store([_Entry(released, asyncio.get_running_loop().create_future())])


def _resolve(entry: _Entry, *, passed: bool) -> None:
    if not entry.stored.done():
        entry.stored.set_result(passed)
