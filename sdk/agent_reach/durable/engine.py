"""The engine: several queues of one schema, worked by one process under one lease."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from .clock import DatabaseClock
from .consumer import Consumer
from .ddl import check_name
from .lease import Lease
from .log import Log, default_log
from .notify import Notifier, listen
from .outage import Outage, transaction
from .settings import EngineSettings
from .slots import Reservation, SuspectGate
from .stats import EngineStats
from .tasks import cancel_and_wait
from .worker import Worker

# Rows freed by one statement of the sweep.
_SWEEP_ROWS = 1000
# How long answers may take to reach the table, and the lease to be given up, once all handlers have ended.
_FLUSH_SECONDS = 5.0


class Engine:
    """Works queues until it is stopped, through crashes of others and outages of PostgreSQL.

    Entered (``async with``), it works while the block runs. Should it fail, which is a defect, it ends the block with
    its error, as a :class:`asyncio.TaskGroup` does: a process shall not live on that does nothing any more.

    Args:
        pool: open, for the engine's role. A pooler in transaction mode may be behind it; then its connections must not
            prepare statements (``kwargs={"prepare_threshold": None}``). Two connections and two per queue keep
            everything moving.
        schema: holds the ``instance`` table and the queues.
        consumers: one for each queue.
        direct_dsn: PostgreSQL itself, for LISTEN and the heartbeat's own connection. Without it the heartbeat uses the
            pool's connection string, and the queues rely on their scans and :meth:`wake`.
        settings: the lease, the sweep and the drain.
        name: says to people which process this is; host and process id if not given.
        log: where all of the engine writes to, with the levels and the form that it has; structlog's if not given.

    Raises:
        ValueError: a queue of another schema, or two consumers of one queue.
        TypeError: no direct_dsn, and a pool whose connection string is a function.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        schema: str,
        consumers: Sequence[Consumer],
        *,
        direct_dsn: str | None = None,
        settings: EngineSettings | None = None,
        name: str | None = None,
        log: Log | None = None,
    ) -> None:
        self.settings = settings or EngineSettings()
        self._log = log or default_log()
        self.notifier = Notifier(pool, self._log)
        self._pool = pool
        self._schema = check_name(schema)
        self._direct_dsn = direct_dsn
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        heartbeat_dsn = direct_dsn or pool.conninfo
        if not isinstance(heartbeat_dsn, str):
            raise TypeError("the heartbeat needs direct_dsn, or a pool with a plain connection string")
        self._clock = DatabaseClock()
        self._lease = Lease(pool, heartbeat_dsn, schema, self.settings, self._name, self._clock, self._log)
        gate = SuspectGate()
        self._workers: dict[str, Worker] = {}
        for consumer in consumers:
            queue = consumer.queue
            if queue.schema != schema or queue.name in self._workers:
                raise ValueError(f"queue {queue.name} is not of schema {schema}, or has two consumers")
            self._workers[queue.name] = Worker(
                pool, consumer, self._lease, self._clock, gate, self.notifier.poke, self._log
            )
        self._stopping = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._block: asyncio.Task[Any] | None = None
        self._block_cut_short = False

    @property
    def instance_id(self) -> UUID:
        """The owner under which this process claims now; changes when a lease was lost."""
        return self._lease.instance_id

    @property
    def clock(self) -> DatabaseClock:
        """The database's clock, as far as this process knows it."""
        return self._clock

    def start(self) -> None:
        """Starts working; returns at once, PostgreSQL need not be there yet."""
        if self._main is not None:
            raise RuntimeError("an engine starts once; make a new one")
        self._main = asyncio.create_task(self._run(), name=f"durable-{self._schema}")
        self._main.add_done_callback(self._ended)

    async def wait_ready(self) -> None:
        """Returns once there is a lease, so that rows are claimed and reservations granted."""
        await self._lease.wait_registered()

    async def wait_ended(self) -> None:
        """Returns once the engine has stopped: for who must not go on without it, and did not enter it.

        Raises:
            RuntimeError: it was not started.
            BaseExceptionGroup: it has failed; this is a defect.
        """
        if self._main is None:
            raise RuntimeError("the engine was not started")
        await asyncio.wait({self._main})
        if not self._main.cancelled():
            self._main.result()

    async def stop(self) -> None:
        """Stops in good order: hands back what has not started, lets the rest end, writes the answers, goes.

        Takes ``drain_seconds`` and some at most. Handlers that are still running then are cancelled, and their rows
        are released with the attempt spent; one that swallows the cancellation holds up the end. Safe to call twice.

        Raises:
            BaseExceptionGroup: the engine had failed before; this is a defect.
        """
        if self._main is None:
            return
        self._stopping.set()
        try:
            await self.wait_ended()
        except asyncio.CancelledError:
            await cancel_and_wait([self._main])
            raise

    def wake(self, queue: str, run_at: datetime | None = None) -> None:
        """Scans a queue at once, for rows that this process has just committed.

        Args:
            queue: the queue's name (its table with the schema).
            run_at: their earliest ``run_at``, where that may lie more than a second in the past.
        """
        self._workers[queue].wake(run_at)

    def reserve(self, queue: str, count: int, *, ahead_of_others: bool = False) -> Reservation:
        """Keeps up to ``count`` free places for rows that the caller inserts as already claimed.

        ::

            with engine.reserve("dispatcher.tasks", len(rows)) as places:
                …  # insert; the first `places.granted` rows with owner = places.owner, claim_no = 1; commit
                places.adopt(claims)

        Only for rows due within the queue's ``preload_seconds``, and never in a transaction of somebody else's.

        Args:
            queue: the queue's name.
            count: how many places are wanted.
            ahead_of_others: also while rows that are due wait in the table for a place. By default nothing is granted
                then, so that newer rows do not slip past older ones; somebody who waits for this very row may.
        """
        return self._workers[queue].reserve(count, ahead_of_others=ahead_of_others)

    def stats(self) -> EngineStats:
        """Returns what the engine holds at this moment, for metrics."""
        queues = {name: worker.stats() for name, worker in self._workers.items()}
        return EngineStats(lease_age_seconds=self._lease.age, queues=queues)

    async def __aenter__(self) -> Self:
        self.start()
        self._block = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        if block is not None and self._block_cut_short:
            if not isinstance(error, asyncio.CancelledError):
                # The block was over before it was cancelled; nobody behind it shall be.
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            block.uncancel()
        await self.stop()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            notifying = group.create_task(self.notifier.run())
            lease = group.create_task(self._lease.run(self._lease_lost))
            working = [group.create_task(worker.run()) for worker in self._workers.values()]
            watching = [group.create_task(self._sweep())]
            if self._direct_dsn is not None:
                name = f"durable-listen-{self._schema}"
                watching.append(
                    group.create_task(
                        listen(self._direct_dsn, [*self._workers], self._notified, name=name, log=self._log)
                    )
                )
            await self._stopping.wait()
            await cancel_and_wait(watching)
            seconds = self.settings.drain_seconds
            await asyncio.gather(*(worker.drain(seconds) for worker in self._workers.values()))
            await self._end(working, "the answers")
            self.notifier.close()
            await self._end([notifying], "the notifications")
            await cancel_and_wait([lease])
            await self._resign()

    async def _end(self, tasks: Sequence[asyncio.Task[None]], what: str) -> None:
        """Waits for tasks that are about to end; cancels them if PostgreSQL does not let them."""
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=_FLUSH_SECONDS)
        if late:
            self._log.warning("durable.stopped_early", without=what)
        await cancel_and_wait(late)

    async def _resign(self) -> None:
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._lease.resign()
        except Exception as error:  # noqa: BLE001 - then the lease expires by itself
            self._log.warning("durable.lease_left_to_expire", error=type(error).__name__)

    def _ended(self, main: asyncio.Task[None]) -> None:
        """Says at once when the engine has failed, and ends the block that it was entered for."""
        if main.cancelled() or (error := main.exception()) is None:
            return
        self._log.critical("durable.engine_failed", exc_info=error)
        if self._block is not None:
            self._block_cut_short = self._block.cancel()

    def _lease_lost(self) -> None:
        for worker in self._workers.values():
            worker.lease_lost()

    def _notified(self, queue: str, run_at: datetime | None) -> None:
        self._workers[queue].wake(run_at)

    async def _sweep(self) -> None:
        """Frees the rows of dead processes, and keeps our own books straight."""
        outages = {worker: Outage("sweep", self._log, queue=worker.queue.name) for worker in self._workers.values()}
        burial = Outage("burial", self._log)
        while True:
            await asyncio.sleep(self.settings.sweep_seconds)
            # After an outage everybody's lease may look expired; those who live get the time to renew it.
            if not self._lease.steady:
                continue
            try:
                await self._lease.bury_the_dead()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next sweep tries again
                await asyncio.sleep(burial.failed(error))
                continue
            burial.succeeded()
            for worker, outage in outages.items():
                try:
                    await self._free_orphans(worker)
                    await worker.reconcile()
                except Exception as error:  # noqa: BLE001 - one queue's trouble is not the others'
                    await asyncio.sleep(outage.failed(error))
                else:
                    outage.succeeded()

    async def _free_orphans(self, worker: Worker) -> None:
        freed = _SWEEP_ROWS
        while freed >= _SWEEP_ROWS:
            async with transaction(self._pool) as connection:
                freed, earliest = await worker.queue.sweep(connection, _SWEEP_ROWS)
            if freed:
                self._log.info("durable.orphans_freed", queue=worker.queue.name, rows=freed)
                worker.wake(earliest)
                self.notifier.poke(worker.queue.name, earliest)
