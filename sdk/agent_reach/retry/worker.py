"""A process that does tasks: the durable engine with this library's queue, and the rounds beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection, errors
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool

from agent_reach.durable import Claim, ClaimLostError, Consumer, Engine
from agent_reach.durable.outage import is_transient, transaction
from agent_reach.durable.scan import LONG_AGO
from agent_reach.durable.tasks import cancel_and_wait

from .errors import AttemptFailedError, NotInstalledError, TaskNotFoundError, TaskStateError
from .handlers import Registry
from .model import Report, State
from .queue import CLAIMED_COLUMNS
from .rounds import Rounds
from .runner import Runner
from .schema import MIGRATIONS
from .settings import RetrySettings
from .store import Statements, fetch_async
from .telemetry import Telemetry
from .telling import Teller

# How often somebody who waits for a task looks whether it is still to run here.
_LOOK_SECONDS = 1.0
# So long is PostgreSQL waited for at the start to see that the tables are there.
_CHECK_SECONDS = 5.0
# A statement is prepared when it comes for the third time on a connection.
_PREPARE_THRESHOLD = 2


@dataclass(frozen=True, slots=True)
class Worker:
    """What does tasks while :func:`working` is entered.

    Attributes:
        engine: the durable engine.
        pool: its connections.
        rounds: what is done beside the tasks.
    """

    engine: Engine
    pool: AsyncConnectionPool[Any]
    rounds: Rounds
    _teller: Teller
    _codes: Sequence[str]
    _statements: Statements
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def run_now(self, task_id: UUID) -> Any:
        """Does a waiting task here and now, whenever it is planned; returns its result.

        Raises:
            TaskNotFoundError: there is none.
            TaskStateError: it runs, has ended, or this process has no place free.
            AttemptFailedError: the handler answered that it did not work.
            Exception: what the handler raised; the task goes on by its strategy.
        """
        if asyncio.get_running_loop() is not self._loop:
            # The engine lives on its own loop.
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.run_now(task_id), self._loop))
        await self.engine.wait_ready()
        with self.engine.reserve(self._statements.channel, 1, ahead_of_others=True) as place:
            if not place.granted:
                raise TaskStateError(f"task {task_id} cannot run here now: this process is full, or stopping")
            async with transaction(self.pool) as connection:
                rows = await fetch_async(connection, self._statements.take(task_id, place.owner, self._codes))
                found = [] if rows else await fetch_async(connection, self._statements.one(task_id))
            if not rows:
                raise _not_taken(task_id, found[0][3] if found else None)
            claim_no, attempts, run_at, priority, suspect, *own = rows[0]
            coming = self._teller.expect(task_id, claim_no)
            row = dict(zip(CLAIMED_COLUMNS, own, strict=True))
            place.adopt([Claim(task_id, place.owner, claim_no, attempts, run_at, priority, suspect, row=row)])
        try:
            return result_of(await self._report(task_id, claim_no, coming))
        except ClaimLostError as lost:
            raise _taken_away(task_id) from lost
        finally:
            self._teller.forget(task_id, claim_no)

    async def _report(self, task_id: UUID, claim_no: int, coming: asyncio.Future[Report]) -> Report:
        """Waits for the report; looks from time to time whether somebody else took the task from our memory."""
        while not coming.done():
            await asyncio.wait({coming}, timeout=_LOOK_SECONDS)
            if coming.done():
                break
            async with transaction(self.pool) as connection:
                rows = await fetch_async(connection, self._statements.claim_no(task_id))
            if not coming.done() and rows != [(claim_no,)]:
                raise _taken_away(task_id)
        return coming.result()


def result_of(report: Report) -> Any:
    """Returns the result of an attempt.

    Raises:
        AttemptFailedError: the handler answered that it did not work, or was not even called.
        Exception: what the handler raised.
    """
    if report.error is not None:
        raise report.error
    if report.state is not State.SUCCEEDED:
        raise AttemptFailedError(f"task {report.task_id} is {report.state}: {report.reason or 'it was not started'}")
    return report.result


@asynccontextmanager
async def working(
    dsn: str,
    direct_dsn: str,
    registry: Registry,
    runner: Runner,
    statements: Statements,
    settings: RetrySettings,
    telemetry: Telemetry,
    name: str | None,
    *,
    claims: bool = True,
) -> AsyncIterator[Worker]:
    """Does tasks until the block ends; then hands back what has not started.

    Args:
        dsn: PostgreSQL, or a pooler in transaction mode.
        direct_dsn: PostgreSQL itself.
        registry: who does the tasks.
        runner: the engine's handler.
        statements: the SQL.
        settings: limits and rounds.
        telemetry: gets the queue's depth.
        name: says to people which process this is.
        claims: False where only what :meth:`Worker.run_now` is given shall be done.

    Raises:
        NotInstalledError: the tables are not there, or are older than this library.
    """
    size = min(settings.concurrency, 8) + 4
    async with AsyncConnectionPool(
        dsn,
        min_size=2,
        max_size=size,
        open=False,
        kwargs={"prepare_threshold": None, "autocommit": True},
        configure=configure,
        name="reach-retry",
    ) as pool:
        await _check_tables(pool, statements)
        engine = Engine(
            pool,
            statements.schema,
            [Consumer(runner.queue, runner.handle, settings.for_queue(), lambda: runner.teller.has_room)],
            direct_dsn=direct_dsn if claims else None,
            settings=settings.for_engine(),
            name=name,
            log=runner.log,
        )
        runner.engine = engine
        rounds = Rounds(engine, pool, runner.teller, registry.codes, statements, settings, telemetry, runner.log)
        worker = Worker(engine, pool, rounds, runner.teller, registry.codes, statements)

        def handler_added() -> None:
            # Tasks of its code may lie below what earlier scans have seen.
            engine.wake(runner.queue.name, LONG_AGO)

        registry.added.append(handler_added)
        try:
            async with runner, engine:
                beside: list[asyncio.Task[None]] = (
                    [asyncio.create_task(turn()) for turn in rounds.all()] if claims else []
                )
                try:
                    yield worker
                finally:
                    await cancel_and_wait(beside)
        finally:
            registry.added.remove(handler_added)


async def configure(connection: AsyncConnection[Any]) -> None:
    """Has payloads read once, by the types of their handlers, and statements parsed once, where nobody is in between.

    They are planned each time: a plan that is kept would be one for the table as it was, and a table of retries is empty
    before it is full. Behind a pooler in transaction mode nothing stays for the next statement; it answers with a
    process id of its own.
    """
    connection.adapters.register_loader("jsonb", TextLoader)
    cursor = await connection.execute("SELECT pg_backend_pid()")
    if await cursor.fetchone() == (connection.info.backend_pid,):
        await connection.execute("SET plan_cache_mode = 'force_custom_plan'")
        connection.prepare_threshold = _PREPARE_THRESHOLD


async def _check_tables(pool: AsyncConnectionPool[Any], statements: Statements) -> None:
    try:
        async with asyncio.timeout(_CHECK_SECONDS), transaction(pool) as connection:
            installed = max(
                (version for (version,) in await fetch_async(connection, statements.versions())), default=0
            )
    except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
        raise NotInstalledError(f"there are no tables in the schema {statements.schema}") from error
    except Exception as error:
        if is_transient(error):
            return  # PostgreSQL is away: the engine waits for it
        raise
    if installed < len(MIGRATIONS):
        raise NotInstalledError(
            f"the tables in the schema {statements.schema} are of version {installed},"
            f" and this library needs version {len(MIGRATIONS)}"
        )


def _taken_away(task_id: UUID) -> TaskStateError:
    return TaskStateError(f"task {task_id} was taken by somebody else before it started here, or was cancelled")


def _not_taken(task_id: UUID, state: str | None) -> TaskNotFoundError | TaskStateError:
    if state is None:
        return TaskNotFoundError(f"there is no task {task_id}")
    if state == State.WAITING:
        return TaskStateError(f"task {task_id} has no handler in this process")
    return TaskStateError(f"task {task_id} is {state}, so it cannot be run now")
