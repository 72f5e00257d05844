"""Does tasks: reads them, calls their handlers, and says what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any
from uuid import UUID

from agent_reach.durable import Batch, Claim, ClaimLostError, Done, Engine, TableQueue

from .context import Context, SyncContext
from .errors import AttemptInterruptedError, ParameterError, StrategyError
from .handlers import Call, Handler, Registry
from .model import Report, State
from .options import Strategies
from .outcome import described, judge, printable
from .queue import Verdict
from .settings import RetrySettings
from .strategies import gap_seconds
from .telemetry import Telemetry

# A handler that was cancelled has so long to end before it is left to itself.
_CANCEL_SECONDS = 5.0
_NO_SPAN = contextlib.nullcontext()

Callback = Callable[[Report], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Who is told of attempts and of ends; ``None`` as code is every code."""

    after_attempt: list[tuple[str | None, Callback]]
    at_end: list[tuple[str | None, Callback]]


@dataclass(frozen=True, slots=True)
class _Work:
    claim: Claim
    handler: Handler
    call: Call


class Runner:
    """The durable engine's handler.

    Args:
        queue: of the tasks.
        registry: who does them.
        strategies: when they are tried again.
        callbacks: who is told.
        telemetry: the instruments.
        settings: limits.
        dsn: for transactions of handlers in threads.
        log: where failures of callbacks go.
    """

    def __init__(
        self,
        queue: TableQueue,
        registry: Registry,
        strategies: Strategies,
        callbacks: Callbacks,
        telemetry: Telemetry,
        settings: RetrySettings,
        dsn: str,
        log: Any,
    ) -> None:
        self._queue = queue
        self._registry = registry
        self._strategies = strategies
        self._callbacks = callbacks
        self._telemetry = telemetry
        self._settings = settings
        self._dsn = dsn
        self._log = log
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="reach-retry")
        self._waiting: dict[tuple[UUID, int], asyncio.Future[Report]] = {}
        self.engine: Engine | None = None

    def close(self) -> None:
        """Lets the threads end; does not wait for those that do not."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def expect(self, task_id: UUID, claim_no: int) -> asyncio.Future[Report]:
        """Returns the future of the report on a claim that is about to be handed out here."""
        return self._waiting.setdefault((task_id, claim_no), asyncio.get_running_loop().create_future())

    def forget(self, task_id: UUID, claim_no: int) -> None:
        """Drops what :meth:`expect` gave."""
        self._waiting.pop((task_id, claim_no), None)

    async def handle(self, batch: Batch) -> None:
        """Does the tasks of a batch, all at once; each answers for itself."""
        ready: dict[UUID, _Work] = {}
        async with asyncio.TaskGroup() as group:
            for claim in batch.claims:
                work = self._open(claim)
                if isinstance(work, Verdict):
                    group.create_task(self._alone(claim, self._end_unstarted(batch, claim, work)))
                else:
                    ready[claim.id] = work
            if ready:
                traced = self._telemetry.traced
                for claim in await batch.start([work.claim for work in ready.values()]):
                    work = replace(ready.pop(claim.id), claim=claim)
                    group.create_task(self._alone(claim, self._attempt(batch, work, traced=traced)))
                for work in ready.values():
                    self._resolve(work.claim, _lost(work.claim))

    async def _alone(self, claim: Claim, work: Coroutine[Any, Any, None]) -> None:
        """Keeps a defect from the other tasks of the batch; this one is put off by the engine."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it is logged, and told to whoever waits for this task
            self._log.error("retry.attempt_broke", task=str(claim.id), code=claim.row["code"], exc_info=error)
            self._resolve(claim, error)

    @property
    def _now(self) -> datetime:
        assert self.engine is not None
        return self.engine.clock.now()

    def _open(self, claim: Claim) -> _Work | Verdict:
        """Reads a task; a verdict says why it is not to be started."""
        row = claim.row
        if row["expires_at"] is not None and row["expires_at"] <= self._now:
            return Verdict(State.EXPIRED, attempted=False)
        if claim.attempts >= row["max_attempts"]:
            # Its last attempt took its process along, or ran beyond its limit: nobody could say so then.
            return Verdict(State.EXHAUSTED, attempted=False)
        handler = self._registry.get(row["code"])
        assert handler is not None, "only what has a handler is claimed"
        try:
            self._strategies.find(row["strategy"])
            return _Work(claim, handler, handler.prepare(row["payload"]))
        except (ParameterError, StrategyError) as error:
            return Verdict(State.UNREADABLE, printable(described(error)), attempted=False)
        except Exception as error:  # noqa: BLE001 - a validator of the application may raise anything
            return Verdict(State.UNREADABLE, printable(f"cannot be read: {described(error)}"), attempted=False)

    async def _end_unstarted(self, batch: Batch, claim: Claim, verdict: Verdict) -> None:
        if await batch.settle(claim, Done(), verdict):
            report = Report(claim.id, claim.row["code"], verdict.state, claim.attempts, reason=verdict.error)
            await self._tell(claim, report, attempted=False)

    async def _attempt(self, batch: Batch, work: _Work, *, traced: bool) -> None:
        claim, row = work.claim, work.claim.row
        began, started_at = time.monotonic(), self._now
        success = Verdict(State.SUCCEEDED, started_at=started_at, began=began)
        self._telemetry.started(row["code"], (started_at - claim.run_at).total_seconds())
        ctx: Context | SyncContext
        if work.handler.asynchronous:
            ctx = Context(batch, claim, success)
        else:
            ctx = SyncContext(batch, claim, success, self._queue, self._dsn, asyncio.get_running_loop())
        result: Any = None
        error: BaseException | None = None
        try:
            # A span that nobody collects would cost a tenth of a short attempt.
            span = self._telemetry.span(row["code"], claim.id, claim.attempts, row["origin"]) if traced else _NO_SPAN
            with span:
                result = await self._call(batch, work, ctx)
        except ClaimLostError as lost:
            self._log.warning("retry.claim_lost", task=str(claim.id), code=row["code"])
            self._resolve(claim, lost)
            return
        except Exception as failure:  # noqa: BLE001 - a handler may raise anything: that is what this library is for
            error = failure
        duration = time.monotonic() - began
        if ctx.completed:
            if error is not None:
                self._log.error("retry.failed_after_completion", task=str(claim.id), exc_info=error)
            report = Report(claim.id, row["code"], State.SUCCEEDED, claim.attempts, None, None, duration, None, result)
            waited = False
        else:
            outcome = judge(claim, work.handler, result, error, self._now, lambda: self._gap(claim))
            state, reason, waited = outcome.state, outcome.reason, outcome.waits > 0
            verdict = replace(success, state=state, error=reason, waits=outcome.waits, duration_seconds=duration)
            if not await batch.settle(claim, outcome.action, verdict):
                self._resolve(claim, _lost(claim))
                return
            kept = None if reason is not None else result
            report = Report(
                claim.id, row["code"], state, claim.attempts, error, reason, duration, outcome.next_at, kept
            )
        self._note(report, waited=waited)
        await self._tell(claim, report, attempted=not waited)

    def _note(self, report: Report, *, waited: bool) -> None:
        """Tells the metrics and the log what an attempt has come to."""
        self._telemetry.attempted(report.code, report.state, report.error, waited=waited)
        if report.state is State.SUCCEEDED:
            return
        say = self._log.debug if waited else self._log.info
        say(
            "retry.waiting" if waited else "retry.attempt_failed",
            task=str(report.task_id),
            code=report.code,
            attempt=report.attempt,
            state=report.state.value,
            error=type(report.error).__name__ if report.error is not None else "answer",
        )

    def _gap(self, claim: Claim) -> float:
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
            self._log.error("retry.strategy_failed", task=str(claim.id), strategy=row["strategy"], exc_info=error)
            return float(row["interval_seconds"] or row["first_delay_seconds"])

    async def _call(self, batch: Batch, work: _Work, ctx: Context | SyncContext) -> Any:
        """Calls the handler, within its time, and stops it when the task is lost.

        Raises:
            ClaimLostError: the task is lost.
            AttemptInterruptedError: it took too long.
        """
        limit = work.claim.row["max_execution_seconds"]
        if limit is None and self._settings.dead_task_check:
            limit = self._settings.dead_task_seconds
        loop = asyncio.get_running_loop()
        working: asyncio.Future[Any]
        if work.handler.asynchronous:
            working = asyncio.ensure_future(_awaited(work.call, ctx))
        else:
            working = loop.run_in_executor(self._threads, contextvars.copy_context().run, _called, work.call, ctx)
        # One future for what may come first, and no task beside the handler's: they are most of a short attempt's cost.
        over: asyncio.Future[None] = loop.create_future()

        def end(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        working.add_done_callback(end)
        batch.on_lost(work.claim, end)
        timer = None if limit is None else loop.call_later(limit, end)
        try:
            await over
            if working.done():
                return working.result()
            ctx.stop()
            await _stop(working)
            if ctx.completed:
                return None
            if batch.lost(work.claim):
                raise _lost(work.claim)
            raise AttemptInterruptedError(f"it took longer than {limit:g} s")
        except asyncio.CancelledError as cancelled:
            ctx.stop()
            if working.done() and not _cancelled_from_outside():
                # The handler's own doing, and no wish of the engine: an error like others.
                raise AttemptInterruptedError("the handler was cancelled") from cancelled
            await _stop(working)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _resolve(self, claim: Claim, outcome: Report | Exception) -> None:
        future = self._waiting.pop((claim.id, claim.claim_no), None)
        if future is None or future.done():
            return
        if isinstance(outcome, Report):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    async def _tell(self, claim: Claim, report: Report, *, attempted: bool) -> None:
        """Tells whoever waits for this claim, and the callbacks."""
        self._resolve(claim, report)
        await self.tell(report, attempted=attempted)

    async def tell(self, report: Report, *, attempted: bool) -> None:
        """Calls the callbacks of a report; one that raises is logged and harms nothing."""
        called: list[tuple[str | None, Callback]] = []
        if attempted:
            called += self._callbacks.after_attempt
        if report.state.final:
            self._telemetry.ended(report.code, report.state)
            called += self._callbacks.at_end
        for code, callback in called:
            if code not in {None, report.code}:
                continue
            try:
                if inspect.iscoroutinefunction(callback):
                    await callback(report)
                else:
                    await asyncio.get_running_loop().run_in_executor(self._threads, callback, report)
            except Exception as error:  # noqa: BLE001 - a callback may raise anything
                self._log.error("retry.callback_failed", task=str(report.task_id), code=report.code, exc_info=error)


async def _awaited(call: Call, ctx: Context | SyncContext) -> Any:
    try:
        return await call(ctx)
    except SystemExit as error:
        raise AttemptInterruptedError("the handler called sys.exit()") from error


def _called(call: Call, ctx: Context | SyncContext) -> Any:
    try:
        return call(ctx)
    except SystemExit as error:
        raise AttemptInterruptedError("the handler called sys.exit()") from error
    except StopIteration as error:
        # A future cannot carry it: whoever waits for the thread would wait for ever.
        raise RuntimeError("the handler raised StopIteration") from error


async def _stop(working: asyncio.Future[Any]) -> None:
    """Cancels the work and waits a moment for it to end; a thread cannot be cancelled, and is left to itself."""
    working.cancel()
    await asyncio.wait({working}, timeout=_CANCEL_SECONDS)
    if working.done() and not working.cancelled():
        working.exception()  # it was told to stop; what it says to that is of no interest


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _lost(claim: Claim) -> ClaimLostError:
    return ClaimLostError(f"task {claim.id} is not ours any more")
