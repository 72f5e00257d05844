"""What a process does from time to time beside the tasks: expiry, dead tasks, the clean-up, the queue's depth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any

from cronsim import CronSim
from psycopg_pool import AsyncConnectionPool

from agent_reach.durable import Engine
from agent_reach.durable.clock import DatabaseClock
from agent_reach.durable.outage import Outage, transaction

from .model import Report, State
from .settings import RetrySettings
from .store import Statements, fetch_async
from .telemetry import Telemetry
from .telling import Teller

Turn = Callable[[], Coroutine[Any, Any, None]]

# Rows that one round of expiry touches.
_EXPIRE_ROWS = 500
_DEPTH_SECONDS = 30.0
# Between two rounds of the clean-up, so that it never crowds out the work.
_CLEANUP_PAUSE_SECONDS = 0.1
# A sleep is never longer, so that a clock that was set is noticed.
_CRON_STEP_SECONDS = 60.0


class Rounds:
    """What is done from time to time beside the work; every process may, since each row is taken by one.

    Args:
        engine: which works meanwhile.
        pool: its connections.
        teller: calls the callbacks.
        codes: of the tasks that can be done here.
        statements: the SQL.
        settings: what is done, and how often.
        telemetry: gets the queue's depth.
        log: where failures go.
        clock: tells when the clean-up is due; the engine's if not given.
    """

    def __init__(
        self,
        engine: Engine,
        pool: AsyncConnectionPool[Any],
        teller: Teller,
        codes: Sequence[str],
        statements: Statements,
        settings: RetrySettings,
        telemetry: Telemetry,
        log: Any,
        clock: DatabaseClock | None = None,
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._teller = teller
        self._codes = codes
        self._statements = statements
        self._settings = settings
        self._telemetry = telemetry
        self._log = log
        self._clock = clock or engine.clock

    def all(self) -> list[Turn]:
        """Returns what is to be kept going."""
        turns: list[Turn] = [
            lambda: self._every(self._settings.sweep_seconds, "expire", self._expire),
            lambda: self._every(_DEPTH_SECONDS, "depth", self._count_if_asked),
        ]
        if self._settings.dead_task_check:
            turns.append(lambda: self._every(self._settings.sweep_seconds, "revive", self._revive))
        if self._settings.cleanup:
            turns.append(self._clean_up_by_the_clock)
        return turns

    async def _every(self, seconds: float, activity: str, turn: Turn) -> None:
        outage = Outage(activity, self._log)
        while True:
            await asyncio.sleep(seconds)
            try:
                await turn()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round tries again
                await asyncio.sleep(outage.failed(error))
            else:
                outage.succeeded()

    async def _expire(self) -> None:
        grace = 2 * self._settings.sweep_seconds
        async with transaction(self._pool) as connection:
            rows = await fetch_async(connection, self._statements.expire(self._codes, grace, _EXPIRE_ROWS))
        for task_id, code, attempts in rows:
            if code in self._codes:
                self._teller.tell(Report(task_id, code, State.EXPIRED, attempts), attempted=False)

    async def _revive(self) -> None:
        # Whoever works on a task stops it by itself in time; this is for those that cannot any more.
        grace = max(5.0, 2 * self._settings.sweep_seconds)
        async with transaction(self._pool) as connection:
            freed = await fetch_async(connection, self._statements.revive(self._settings.dead_task_seconds, grace))
        if freed:
            self._engine.wake(self._statements.channel)
            self._engine.notifier.poke(self._statements.channel)

    async def _count_if_asked(self) -> None:
        if self._telemetry.depth_asked:
            await self.count()

    async def count(self) -> None:
        """Tells the telemetry how many tasks are alive."""
        async with transaction(self._pool) as connection:
            rows = await fetch_async(connection, self._statements.live_counts())
        # None is a number too: what is not told keeps its last value on a dashboard.
        none = {(code, state): 0 for code in self._codes for state in (State.WAITING, State.RUNNING)}
        self._telemetry.depth({**none, **{(code, State(state)): count for code, state, count in rows}})

    async def _clean_up_by_the_clock(self) -> None:
        await self._engine.wait_ready()
        outage = Outage("clean-up", self._log)
        while True:
            due = next(CronSim(self._settings.cleanup_cron, self._clock.now()))
            await _sleep_until(due, self._clock)
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
            async with transaction(self._pool) as connection:
                cursor = await connection.execute(
                    *self._statements.purge(age, self._settings.cleanup_rows, None, None)
                )
                deleted = cursor.rowcount
            await asyncio.sleep(_CLEANUP_PAUSE_SECONDS)


async def _sleep_until(due: datetime, clock: DatabaseClock) -> None:
    while (left := (due - clock.now()).total_seconds()) > 0:  # noqa: ASYNC110 - a clock sets no event
        await asyncio.sleep(min(left, _CRON_STEP_SECONDS))
