"""A process that does tasks: the durable engine with this library's queue, and the rounds beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cronsim import CronSim
from psycopg_pool import AsyncConnectionPool

from agent_reach.durable import Claim, ClaimLostError, Consumer, Engine
from agent_reach.durable.clock import DatabaseClock
from agent_reach.durable.outage import Outage, transaction
from agent_reach.durable.scan import LONG_AGO
from agent_reach.durable.tasks import cancel_and_wait

from .errors import AttemptFailedError, TaskNotFoundError, TaskStateError
from .handlers import Registry
from .model import Report, State
from .queue import CLAIMED_COLUMNS, RetryQueue
from .runner import Runner
from .settings import RetrySettings
from .store import Statements, fetch_async
from .telemetry import Telemetry

Turn = Callable[[], Coroutine[Any, Any, None]]

# Rows that one round of expiry touches.
_EXPIRE_ROWS = 500
_DEPTH_SECONDS = 30.0
# How often somebody who waits for a task looks whether it is still to run here.
_LOOK_SECONDS = 1.0
# Between two rounds of the clean-up, so that it never crowds out the work.
_CLEANUP_PAUSE_SECONDS = 0.1
# A sleep is never longer, so that a clock that was set is noticed.
_CRON_STEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Worker:
    """What does tasks while :func:`working` is entered.

    Attributes:
        engine: the durable engine.
        pool: its connections.
    """

    engine: Engine
    pool: AsyncConnectionPool[Any]
    _runner: Runner
    _statements: Statements
    _codes: Sequence[str]

    async def run_now(self, task_id: UUID) -> Any:
        """Does a waiting task here and now, whenever it is planned; returns its result.

        Raises:
            TaskNotFoundError: there is none.
            TaskStateError: it runs, has ended, or this process has no place free.
            AttemptFailedError: the handler answered that it did not work.
            Exception: what the handler raised; the task goes on by its strategy.
        """
        await self.engine.wait_ready()
        with self.engine.reserve(self._statements.channel, 1) as place:
            if not place.granted:
                raise TaskStateError(f"task {task_id} cannot run here now: this process is full, or stopping")
            async with transaction(self.pool) as connection:
                rows = await fetch_async(connection, self._statements.take(task_id, place.owner, self._codes))
                found = [] if rows else await fetch_async(connection, self._statements.one(task_id))
            if not rows:
                raise _not_taken(task_id, found[0][3] if found else None)
            claim_no, attempts, run_at, priority, suspect, *own = rows[0]
            coming = self._runner.expect(task_id, claim_no)
            row = dict(zip(CLAIMED_COLUMNS, own, strict=True))
            place.adopt([Claim(task_id, place.owner, claim_no, attempts, run_at, priority, suspect, row)])
        try:
            return result_of(await self._report(task_id, claim_no, coming))
        except ClaimLostError as lost:
            raise _taken_away(task_id) from lost
        finally:
            self._runner.forget(task_id, claim_no)

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
    """
    queue = RetryQueue(statements.schema, registry.codes if claims else [])
    size = min(settings.concurrency, 8) + 4
    async with AsyncConnectionPool(
        dsn, min_size=2, max_size=size, open=False, kwargs={"prepare_threshold": None}, name="reach-retry"
    ) as pool:
        engine = Engine(
            pool,
            statements.schema,
            [Consumer(queue, runner.handle, settings.for_queue())],
            direct_dsn=direct_dsn if claims else None,
            settings=settings.for_engine(),
            name=name,
        )
        runner.engine = engine
        worker = Worker(engine, pool, runner, statements, registry.codes)
        rounds = Rounds(worker, settings, statements, telemetry)

        def handler_added() -> None:
            # Tasks of its code may lie below what earlier scans have seen.
            engine.wake(queue.name, LONG_AGO)

        registry.added.append(handler_added)
        try:
            async with engine:
                beside: list[asyncio.Task[None]] = (
                    [asyncio.create_task(turn()) for turn in rounds.all()] if claims else []
                )
                try:
                    yield worker
                finally:
                    await cancel_and_wait(beside)
        finally:
            registry.added.remove(handler_added)
            runner.close()


class Rounds:
    """What is done from time to time beside the work; every process may, since each row is taken by one."""

    def __init__(self, worker: Worker, settings: RetrySettings, statements: Statements, telemetry: Telemetry) -> None:
        self._worker = worker
        self._settings = settings
        self._statements = statements
        self._telemetry = telemetry

    def all(self) -> list[Turn]:
        """Returns what is to be kept going."""
        turns: list[Turn] = [
            lambda: self._every(self._settings.sweep_seconds, "expire", self._expire),
        ]
        if self._telemetry.active:
            turns.append(lambda: self._every(_DEPTH_SECONDS, "depth", self.count))
        if self._settings.dead_task_check:
            turns.append(lambda: self._every(self._settings.sweep_seconds, "revive", self._revive))
        if self._settings.cleanup:
            turns.append(self._clean_up_by_the_clock)
        return turns

    async def _every(self, seconds: float, activity: str, turn: Turn) -> None:
        outage = Outage(activity)
        while True:
            await asyncio.sleep(seconds)
            try:
                await turn()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round tries again
                await asyncio.sleep(outage.failed(error))
            else:
                outage.succeeded()

    async def _expire(self) -> None:
        async with transaction(self._worker.pool) as connection:
            await fetch_async(connection, self._statements.expire(_EXPIRE_ROWS))

    async def _revive(self) -> None:
        # Whoever works on a task stops it by itself in time; this is for those that cannot any more.
        grace = max(5.0, 2 * self._settings.sweep_seconds)
        async with transaction(self._worker.pool) as connection:
            freed = await fetch_async(connection, self._statements.revive(self._settings.dead_task_seconds, grace))
        if freed:
            self._worker.engine.wake(self._statements.channel)
            self._worker.engine.notifier.poke(self._statements.channel)

    async def count(self) -> None:
        """Tells the telemetry how many tasks are alive."""
        async with transaction(self._worker.pool) as connection:
            rows = await fetch_async(connection, self._statements.live_counts())
        self._telemetry.depth({(code, State(state)): count for code, state, count in rows})

    async def _clean_up_by_the_clock(self) -> None:
        await self._worker.engine.wait_ready()
        clock = self._worker.engine.clock
        outage = Outage("clean-up")
        while True:
            due = next(CronSim(self._settings.cleanup_cron, clock.now()))
            await _sleep_until(due, clock)
            try:
                await self.clean_up()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next time tries again
                await asyncio.sleep(outage.failed(error))
            else:
                outage.succeeded()

    async def clean_up(self) -> None:
        """Deletes what ended long ago, in small rounds."""
        age = self._settings.cleanup_older_than_days * 86_400
        deleted = self._settings.cleanup_rows
        while deleted >= self._settings.cleanup_rows:
            async with transaction(self._worker.pool) as connection:
                cursor = await connection.execute(
                    *self._statements.purge(age, self._settings.cleanup_rows, None, None)
                )
                deleted = cursor.rowcount
            await asyncio.sleep(_CLEANUP_PAUSE_SECONDS)


async def _sleep_until(due: datetime, clock: DatabaseClock) -> None:
    while (left := (due - clock.now()).total_seconds()) > 0:  # noqa: ASYNC110 - a clock sets no event
        await asyncio.sleep(min(left, _CRON_STEP_SECONDS))


def _taken_away(task_id: UUID) -> TaskStateError:
    return TaskStateError(f"task {task_id} was taken by somebody else before it started here, or was cancelled")


def _not_taken(task_id: UUID, state: str | None) -> TaskNotFoundError | TaskStateError:
    if state is None:
        return TaskNotFoundError(f"there is no task {task_id}")
    if state == State.WAITING:
        return TaskStateError(f"task {task_id} has no handler in this process")
    return TaskStateError(f"task {task_id} is {state}, so it cannot be run now")
