"""Does tasks: reads them, has their handlers called, and waits until all is told."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from typing import Any, Self
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from agent_reach.durable import Batch, Claim, Done, Engine

from .attempt import STOP_SECONDS, Attempt, Work, lost
from .calls import frames
from .errors import AttemptInterruptedError, ParameterError
from .handlers import Registry
from .model import Report, State
from .options import Strategies
from .outcome import described, printable
from .queue import RetryQueue, Verdict
from .settings import RetrySettings
from .strategies import gap_seconds
from .telemetry import Telemetry
from .telling import Callbacks, Teller


class Runner:
    """The durable engine's handler; an asynchronous context manager around the engine.

    Attributes:
        teller: tells of what becomes of tasks.
        connections: for the transactions of handlers, so that these take none from the engine.

    Args:
        queue: of the tasks.
        registry: who does them.
        strategies: when they are tried again.
        callbacks: who is told.
        telemetry: the instruments.
        settings: limits.
        dsn: for transactions of handlers in threads.
        log: where failures go.
    """

    def __init__(
        self,
        queue: RetryQueue,
        registry: Registry,
        strategies: Strategies,
        callbacks: Callbacks,
        telemetry: Telemetry,
        settings: RetrySettings,
        dsn: str,
        log: Any,
    ) -> None:
        self.queue = queue
        self.dsn = dsn
        self.log = log
        self._registry = registry
        self._strategies = strategies
        self._telemetry = telemetry
        self._settings = settings
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self.teller = Teller(callbacks, telemetry, settings.concurrency, log)
        self.connections = AsyncConnectionPool(
            dsn,
            min_size=0,
            max_size=settings.concurrency,
            open=False,
            kwargs={"prepare_threshold": None},
            name="reach-retry-handlers",
        )
        self.engine: Engine | None = None

    async def __aenter__(self) -> Self:
        await self.connections.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends, after the engine: the last callbacks are called."""
        await self.teller.finish()
        await self.connections.close()

    async def handle(self, batch: Batch) -> None:
        """Does the tasks of a batch, all at once; each answers for itself."""
        await self.teller.room()
        claims = batch.claims
        if not claims:  # all lost meanwhile
            return
        untold = _Countdown(len(claims))
        ready: dict[UUID, tuple[Claim, Work]] = {}
        for claim in claims:
            work = self._open(claim)
            if isinstance(work, Verdict):
                self._end_unstarted(batch, claim, work, untold.one_less)
            else:
                ready[claim.id] = claim, work
        attempts = await self._begin(batch, ready, untold.one_less) if ready else []
        timers = self._limit(attempts)
        try:
            await untold.none
        except asyncio.CancelledError as stopped:
            await _stop(attempts, stopped)
            raise
        finally:
            for timer in timers:
                timer.cancel()

    @property
    def now(self) -> datetime:
        """The database's time."""
        assert self.engine is not None
        return self.engine.clock.now()

    def gap(self, claim: Claim) -> float:
        """Returns the seconds between the planned moments of this attempt and the next, by the task's strategy."""
        row = claim.row
        try:
            return gap_seconds(
                self._strategies.find(row["strategy"]),
                claim.attempts,
                row["interval_seconds"],
                row["first_delay_seconds"],
                row["jitter_ratio"],
                self._random,
            )
        except Exception as error:  # noqa: BLE001 - a strategy of the application may raise anything
            self.log.error(  # noqa: TRY400 - a traceback may show the values of variables
                "retry.strategy_failed", task=str(claim.id), strategy=row["strategy"], error=frames(error)
            )
            return float(row["interval_seconds"] or row["first_delay_seconds"])

    def _open(self, claim: Claim) -> Work | Verdict:
        """Reads a task; a verdict says why it is not to be started."""
        row = claim.row
        if row["expires_at"] is not None and row["expires_at"] <= self.now:
            return Verdict(State.EXPIRED)
        if _tried(claim) >= row["max_attempts"]:
            # Its last attempt took its process along, or ran beyond its limit: nobody could say so then.
            return Verdict(State.EXHAUSTED)
        handler = self._registry.get(row["code"])
        assert handler is not None, "only what has a handler is claimed"
        try:
            return handler, handler.read(row["payload"])
        except ParameterError as error:
            return Verdict(State.UNREADABLE, printable(described(error)))
        except Exception as error:  # noqa: BLE001 - a validator of the application may raise anything
            return Verdict(State.UNREADABLE, printable(f"cannot be read: {described(error)}"))

    def _end_unstarted(self, batch: Batch, claim: Claim, verdict: Verdict, over: Callable[[], None]) -> None:
        report = Report(claim.id, claim.row["code"], verdict.state, _tried(claim), reason=verdict.error)

        def tell(stored: bool) -> None:  # noqa: FBT001 - called by `Answer.then` only
            if stored:
                self.teller.report(claim, report, over, attempted=False)
            else:
                self.teller.no_report(claim, lost(claim))
                over()

        batch.settle(claim, Done(counted=False), verdict).then(tell)

    async def _begin(
        self, batch: Batch, ready: dict[UUID, tuple[Claim, Work]], over: Callable[[], None]
    ) -> list[Attempt]:
        """Has the handlers called; for a task that is not ours any more it is over at once."""
        traced = self._telemetry.traced
        started = await batch.start([claim for claim, _ in ready.values()])
        now = self.now
        attempts = []
        for claim in started:
            attempt = Attempt(self, batch, claim, ready.pop(claim.id)[1], now, over)
            code = claim.row["code"]
            self._telemetry.started(code, (now - claim.run_at).total_seconds())
            if traced:
                attempt.begin(self._telemetry.span(code, claim.id, claim.attempts, claim.row["origin"]))
            else:
                # A span that nobody collects would cost a tenth of a short attempt.
                attempt.begin()
            attempts.append(attempt)
        for claim, _ in ready.values():
            self.teller.no_report(claim, lost(claim))
            over()
        return attempts

    def _limit(self, attempts: Sequence[Attempt]) -> list[asyncio.TimerHandle]:
        """Has attempts stopped that take too long: one timer for all that began together and have the same limit."""
        default = self._settings.dead_task_seconds if self._settings.dead_task_check else None
        limits: defaultdict[float, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            own = attempt.claim.row["max_execution_seconds"]
            if (seconds := default if own is None else own) is not None:
                limits[seconds].append(attempt)
        loop = asyncio.get_running_loop()
        return [loop.call_later(seconds, _end_overdue, overdue, seconds) for seconds, overdue in limits.items()]


class _Countdown:
    """How many tasks of a batch are not over yet.

    Attributes:
        none: done when all are over.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.none: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_less(self) -> None:
        """Notes that one is over."""
        self._count -= 1
        if self._count == 0 and not self.none.done():
            self.none.set_result(None)


def _tried(claim: Claim) -> int:
    """Returns how often the handler was called so far."""
    return claim.attempts - claim.started


async def _stop(attempts: Sequence[Attempt], stopped: asyncio.CancelledError) -> None:
    """Stops what still runs, and waits a moment for it to end."""
    running = [attempt for attempt in attempts if not attempt.working.done()]
    for attempt in running:
        attempt.stop(stopped)
    if running:
        await asyncio.wait([attempt.working for attempt in running], timeout=STOP_SECONDS)


def _end_overdue(attempts: Sequence[Attempt], seconds: float) -> None:
    for attempt in attempts:
        attempt.stop(AttemptInterruptedError(f"it took longer than {seconds:g} s"))
