"""Who competes in `bench.durable`: each has its tables, fills them, registers jobs and does them.

The job does nothing. Every table holds the same rows far ahead, older than what is due, as they are where reminders
and retries wait. Each contender lives in a database of its own, in the same PostgreSQL.
"""
# ruff: noqa: S608 - the tables' names are constants

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, ClassVar
from uuid import uuid4

import procrastinate
import psycopg
from procrastinate.schema import SchemaManager
from psycopg_pool import AsyncConnectionPool

from agent_reach.durable import (
    Batch,
    Consumer,
    Done,
    Engine,
    QueueSettings,
    TableQueue,
    instance_table,
    queue_columns,
    queue_indexes,
    queue_storage,
)
from agent_reach.retry import Context, Retries, RetrySettings
from agent_reach.retry.queue import CLAIMED_COLUMNS

CONCURRENCY = 200
_FAR_AHEAD = "interval '1 day'"


class Contender(ABC):
    """One way to keep jobs in PostgreSQL and to do them.

    Attributes:
        name: in `CONTENDERS`.
        options: what its class is made with beside the dsn.

    Args:
        dsn: a database of its own.
    """

    name: ClassVar[str]
    options: tuple[str, ...] = ()

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Executes one statement and commits it; returns its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    @abstractmethod
    def install(self) -> None:
        """Creates the tables."""

    @abstractmethod
    def fill(self, count: int, *, ahead: bool) -> None:
        """Inserts jobs, by one statement: due a moment ago, or far ahead."""

    @abstractmethod
    def finished(self) -> int:
        """Counts the jobs that the table says are done."""

    @abstractmethod
    async def work(self, count: int) -> None:
        """Does so many due jobs with a fresh worker; returns when they are stored as done and the worker has ended."""


class Registering(Contender):
    """One that also has an API to register jobs, and knows when each was planned."""

    @abstractmethod
    def registering(self, connections: int) -> AbstractAsyncContextManager[None]:
        """Opens so many connections to register on."""

    @abstractmethod
    async def register(self, delay_seconds: float) -> None:
        """Registers one job in a transaction of its own."""

    @abstractmethod
    async def register_many(self, count: int, delay_seconds: float) -> None:
        """Registers jobs in one transaction, as fast as the API can."""

    @abstractmethod
    async def started(self, count: int, first: Callable[[], None]) -> list[tuple[float, bool]]:
        """Works until so many jobs have started.

        Args:
            count: how many.
            first: called when the first one starts, which is left out of the result.

        Returns:
            For each the seconds from its planned moment, as the table has it, to the first line of its function, and
            whether it was planned ahead.
        """


class _Starts:
    """What the job of a contender does: it counts and, where lateness is measured, notes when it started.

    Attributes:
        enough: set when all have started.
        noted: the jobs' ids and when they started, by this process's clock.
    """

    def __init__(self) -> None:
        self.enough = asyncio.Event()
        self.noted: list[tuple[Any, float]] = []
        self._left = 0
        self._first: Callable[[], None] | None = None

    def expect(self, count: int, first: Callable[[], None] | None = None) -> None:
        """Says how many there will be; with ``first``, called when the first one starts, they are noted."""
        self._left, self._first = count, first

    def started(self, job_id: object) -> None:
        """Is the job."""
        if self._first is not None:
            self.noted.append((job_id, time.time()))
            if len(self.noted) == 1:
                self._first()
        self._left -= 1
        if self._left <= 0:
            self.enough.set()


class Retry(Registering):
    """The library that applications use: `agent_reach.retry`. How much it does at once is part of the contender."""

    name = "retry"

    def __init__(self, dsn: str, concurrency: str = str(CONCURRENCY)) -> None:
        super().__init__(dsn)
        self.options = (concurrency,)
        self._retry = Retries(dsn, settings=RetrySettings(concurrency=int(concurrency), log_level="WARNING"))
        self._free: asyncio.Queue[psycopg.AsyncConnection[Any]]
        self._starts = _Starts()

        @self._retry.listener("noop", first_delay_seconds=0)
        async def noop(parameter: int, ctx: Context) -> None:  # noqa: ARG001 - it does nothing
            self._starts.started(ctx.task_id)

    def install(self) -> None:
        """Creates the library's tables."""
        self._retry.install()

    def fill(self, count: int, *, ahead: bool) -> None:
        """Inserts rows as a registration does."""
        self.execute(
            "INSERT INTO reach_retry.tasks (id, created_at, priority, run_at, code, payload, max_attempts, strategy,"
            " first_delay_seconds, jitter_ratio) SELECT gen_random_uuid(), clock_timestamp(), 5, clock_timestamp()"
            f" {'+ ' + _FAR_AHEAD if ahead else ''}, 'noop', to_jsonb(n), 3, 'fixed', 0, 0 FROM generate_series(1, %s) AS n",
            (count,),
        )

    def finished(self) -> int:
        """Counts what succeeded and has its attempt logged."""
        return int(
            self.execute(
                "SELECT count(*) FROM reach_retry.tasks WHERE state = 'SUCCEEDED'"
                " AND id IN (SELECT task_id FROM reach_retry.attempts)"
            )[0][0]
        )

    async def work(self, count: int) -> None:
        """Does jobs with `Retries.running`."""
        self._starts.expect(count)
        await self._work()

    @asynccontextmanager
    async def registering(self, connections: int) -> AsyncIterator[None]:
        """Opens connections."""
        self._free = asyncio.Queue()
        async with AsyncExitStack() as stack:
            for _ in range(connections):
                connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
                self._free.put_nowait(await stack.enter_async_context(connection))
            yield

    async def register(self, delay_seconds: float) -> None:
        """Registers on a connection in autocommit, which is one round trip."""
        connection = await self._free.get()
        await self._retry.register_async(connection, "noop", 1, first_delay_seconds=delay_seconds)
        self._free.put_nowait(connection)

    async def register_many(self, count: int, delay_seconds: float) -> None:
        """Registers one after the other in one transaction."""
        connection = await self._free.get()
        async with connection.transaction():
            for number in range(count):
                await self._retry.register_async(connection, "noop", number, first_delay_seconds=delay_seconds)
        self._free.put_nowait(connection)

    async def started(self, count: int, first: Callable[[], None]) -> list[tuple[float, bool]]:
        """Compares what the function saw with the attempts' log."""
        self._starts.expect(count, first)
        await self._work()
        rows = self.execute(
            "SELECT a.task_id, extract(epoch FROM a.planned_at)::float8, t.first_delay_seconds > 0"
            " FROM reach_retry.attempts AS a JOIN reach_retry.tasks AS t ON t.id = a.task_id"
        )
        planned = {task_id: (moment, ahead) for task_id, moment, ahead in rows}
        return [(at - planned[task_id][0], planned[task_id][1]) for task_id, at in self._starts.noted[1:]]

    async def _work(self) -> None:
        async with self._retry.running() as worker:
            await self._starts.enough.wait()
            await _stored(worker.engine)


class Bare(Contender):
    """The engine alone, `agent_reach.durable`, with the smallest queue there is."""

    name = "bare"

    def install(self) -> None:
        """Creates a queue with nothing of its own but a payload."""
        self.execute(
            f"CREATE SCHEMA bare; {instance_table('bare')} CREATE TABLE bare.jobs (id uuid PRIMARY KEY,"
            f" priority smallint NOT NULL DEFAULT 5, {queue_columns()}, payload jsonb NOT NULL) {queue_storage()};"
            f" {queue_indexes('bare.jobs')}"
        )

    def fill(self, count: int, *, ahead: bool) -> None:
        """Inserts rows."""
        self.execute(
            "INSERT INTO bare.jobs (id, run_at, payload) SELECT gen_random_uuid(), clock_timestamp()"
            f" {'+ ' + _FAR_AHEAD if ahead else ''}, to_jsonb(n) FROM generate_series(1, %s) AS n",
            (count,),
        )

    def finished(self) -> int:
        """Counts finished rows."""
        return int(self.execute("SELECT count(*) FROM bare.jobs WHERE finished_at IS NOT NULL")[0][0])

    async def work(self, count: int) -> None:
        """Does jobs with a handler that starts and settles each batch."""
        done = 0
        enough = asyncio.Event()

        async def noop(batch: Batch) -> None:
            nonlocal done
            for claim in await batch.start():
                batch.settle(claim, Done())
                done += 1
            if done >= count:
                enough.set()

        consumer = Consumer(
            TableQueue("bare.jobs", ("payload",)), noop, QueueSettings(slots=3000, concurrency=CONCURRENCY)
        )
        async with (
            AsyncConnectionPool(self.dsn, min_size=2, max_size=8, open=False) as pool,
            Engine(pool, "bare", [consumer], direct_dsn=self.dsn) as engine,
        ):
            await enough.wait()
            await _stored(engine)


class Floor(Retry):
    """The least that PostgreSQL must do: one UPDATE claims a batch, one finishes it, on the library's own table.

    No attempt is noted or logged, nothing is fenced, nobody takes over. The batch size is part of the contender.
    """

    name = "floor"

    def __init__(self, dsn: str, batch_size: str) -> None:
        super().__init__(dsn)
        self.options = (batch_size,)
        self._batch_size = int(batch_size)

    def finished(self) -> int:
        """Counts finished rows."""
        return int(self.execute("SELECT count(*) FROM reach_retry.tasks WHERE finished_at IS NOT NULL")[0][0])

    async def work(self, count: int) -> None:
        """Claims and finishes, on one connection in autocommit, with prepared statements."""
        columns = ", ".join(f"t.{name}" for name in ("id", "claim_no", "attempts", "run_at", *CLAIMED_COLUMNS))
        claim = (
            "UPDATE reach_retry.tasks AS t SET owner = %s, claim_no = t.claim_no + 1 FROM (SELECT id"
            " FROM reach_retry.tasks WHERE priority = 5 AND owner IS NULL AND finished_at IS NULL AND NOT suspect"
            " AND run_at <= now() ORDER BY run_at LIMIT %s FOR UPDATE SKIP LOCKED) AS due"
            f" WHERE t.id = due.id RETURNING {columns}"
        )
        finish = (
            "UPDATE reach_retry.tasks SET owner = NULL, state = 'SUCCEEDED', finished_at = clock_timestamp()"
            " WHERE id = ANY(%s)"
        )
        owner = uuid4()
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            left = count
            while left > 0:
                cursor = await connection.execute(claim.encode(), (owner, self._batch_size))
                rows = await cursor.fetchall()
                await connection.execute(finish, ([row[0] for row in rows],))
                left -= len(rows)


class Procrastinate(Registering):
    """Procrastinate, with its worker in one process, LISTEN on, jobs kept (its default), prepared statements."""

    name = "procrastinate"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=4, max_size=10))
        self._starts = _Starts()

        async def noop(context: procrastinate.JobContext, number: int) -> None:  # noqa: ARG001 - it does nothing
            assert context.job.id is not None
            self._starts.started(context.job.id)

        self._task = self._app.task(name="noop", pass_context=True)(noop)

    def install(self) -> None:
        """Creates its tables."""
        self.execute(SchemaManager.get_schema())

    def fill(self, count: int, *, ahead: bool) -> None:
        """Inserts rows as a deferral does, its triggers included."""
        self.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args, scheduled_at) SELECT 'default', 'noop',"
            f" jsonb_build_object('number', n), {'now() + ' + _FAR_AHEAD if ahead else 'NULL'}"
            " FROM generate_series(1, %s) AS n",
            (count,),
        )

    def finished(self) -> int:
        """Counts what succeeded."""
        return int(self.execute("SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'")[0][0])

    async def work(self, count: int) -> None:
        """Does jobs until none is due; its worker ends by itself then."""
        self._starts.expect(count)
        async with self._app.open_async():
            await self._app.run_worker_async(concurrency=CONCURRENCY, wait=False, install_signal_handlers=False)

    @asynccontextmanager
    async def registering(self, connections: int) -> AsyncIterator[None]:
        """Opens its pool."""
        connector = procrastinate.PsycopgConnector(conninfo=self.dsn, min_size=connections, max_size=connections)
        with self._app.replace_connector(connector):
            async with self._app.open_async():
                yield

    async def register(self, delay_seconds: float) -> None:
        """Defers one job."""
        await self._task.configure(**_schedule(delay_seconds)).defer_async(number=1)

    async def register_many(self, count: int, delay_seconds: float) -> None:
        """Defers jobs by its call for many."""
        await self._task.configure(**_schedule(delay_seconds)).batch_defer_async(
            *({"number": number} for number in range(count))
        )

    async def started(self, count: int, first: Callable[[], None]) -> list[tuple[float, bool]]:
        """Compares what the function saw with the jobs and their events."""
        self._starts.expect(count, first)
        async with self._app.open_async():
            working = asyncio.create_task(
                self._app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
            )
            await self._starts.enough.wait()
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        rows = self.execute(
            "SELECT j.id, extract(epoch FROM coalesce(j.scheduled_at, e.at))::float8, j.scheduled_at IS NOT NULL"
            " FROM procrastinate_jobs AS j JOIN procrastinate_events AS e ON e.job_id = j.id AND e.type = 'deferred'"
            " WHERE j.status <> 'todo'"
        )
        planned = {job_id: (moment, ahead) for job_id, moment, ahead in rows}
        return [(at - planned[job_id][0], planned[job_id][1]) for job_id, at in self._starts.noted[1:]]


def _schedule(delay_seconds: float) -> dict[str, Any]:
    return {"schedule_in": {"milliseconds": round(delay_seconds * 1000)}} if delay_seconds else {}


async def _stored(engine: Engine) -> None:
    """Returns once every answer is in the table."""
    while any(queue.settling or queue.in_flight for queue in engine.stats().queues.values()):  # noqa: ASYNC110 - it says how it stands, and sets no event
        await asyncio.sleep(0.002)


CONTENDERS: dict[str, Any] = {kind.name: kind for kind in (Retry, Bare, Procrastinate, Floor)}
