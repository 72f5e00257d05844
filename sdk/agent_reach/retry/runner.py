"""Does tasks: reads them, calls their handlers, and says what becomes of them."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from agent_reach.durable import Batch, Claim, ClaimLostError, Done, Engine, Later, TableQueue

from .context import Context, SyncContext
from .errors import AttemptInterruptedError, ParameterError, StrategyError
from .handlers import Call, Handler, Registry
from .model import GiveUp, Report, Retry, State
from .options import Strategies
from .queue import Verdict
from .settings import RetrySettings
from .strategies import gap_seconds
from .telemetry import Telemetry

# A handler that was cancelled has so long to end before it is left to itself.
_CANCEL_SECONDS = 5.0
_MAX_ERROR_TEXT = 2000

_SUCCESS: tuple[State, Done | Later, datetime | None] = (State.SUCCEEDED, Done(), None)

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
                    group.create_task(self._end_unstarted(batch, claim, work))
                else:
                    ready[claim.id] = work
            if ready:
                for claim in await batch.start([work.claim for work in ready.values()]):
                    group.create_task(self._attempt(batch, replace(ready.pop(claim.id), claim=claim)))
                for work in ready.values():
                    self._resolve(work.claim, _lost(work.claim))

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
            return Verdict(State.UNREADABLE, _text(error), attempted=False)
        except Exception as error:  # noqa: BLE001 - a validator of the application may raise anything
            return Verdict(State.UNREADABLE, f"cannot be read: {_text(error)}", attempted=False)

    async def _end_unstarted(self, batch: Batch, claim: Claim, verdict: Verdict) -> None:
        if await batch.settle(claim, Done(), verdict):
            report = Report(claim.id, claim.row["code"], verdict.state, claim.attempts, reason=verdict.error)
            await self._tell(claim, report, attempted=False)

    async def _attempt(self, batch: Batch, work: _Work) -> None:
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
            with self._telemetry.span(row["code"], claim.id, claim.attempts):
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
        else:
            stored = await self._settle(batch, work, success, result, error, duration)
            if stored is None:
                self._resolve(claim, _lost(claim))
                return
            report = stored
        self._telemetry.attempted(report.code, report.state)
        if report.state is not State.SUCCEEDED:
            kind = type(report.error).__name__ if report.error is not None else "answer"
            self._log.info(
                "retry.attempt_failed",
                task=str(claim.id),
                code=report.code,
                attempt=report.attempt,
                state=report.state.value,
                error=kind,
            )
        await self._tell(claim, report, attempted=True)

    async def _settle(
        self,
        batch: Batch,
        work: _Work,
        success: Verdict,
        result: Any,
        error: BaseException | None,
        duration: float,
    ) -> Report | None:
        """Says what becomes of the task; returns the report once that is committed, None if it was refused."""
        claim = work.claim
        reason: str | None = None
        if error is not None:
            reason = _text(error)
        elif isinstance(result, Retry | GiveUp):
            reason = result.reason
        state, action, next_at = self._after_failure(work, result, error) if reason is not None else _SUCCESS
        reason = None if reason is None else _printable(reason)
        verdict = replace(success, state=state, error=reason, duration_seconds=duration)
        if not await batch.settle(claim, action, verdict):
            return None
        kept = None if reason is not None else result
        return Report(claim.id, claim.row["code"], state, claim.attempts, error, reason, duration, next_at, kept)

    def _after_failure(
        self, work: _Work, result: Any, error: BaseException | None
    ) -> tuple[State, Done | Later, datetime | None]:
        claim, row, now = work.claim, work.claim.row, self._now
        raised = None if isinstance(error, AttemptInterruptedError) else error
        if isinstance(result, GiveUp) or (raised is not None and not work.handler.retryable(raised)):
            return State.GIVEN_UP, Done(), None
        if claim.attempts >= row["max_attempts"]:
            return State.EXHAUSTED, Done(), None
        if isinstance(result, Retry) and result.after is not None:
            action, next_at = Later(after_seconds=result.after), now + timedelta(seconds=result.after)
        else:
            action, next_at = self._next(claim, now)
        if row["expires_at"] is not None and row["expires_at"] <= next_at:
            return State.EXPIRED, Done(), None
        return State.WAITING, action, next_at

    def _next(self, claim: Claim, now: datetime) -> tuple[Later, datetime]:
        """Plans from the planned moment on, so that the plan stays exact; from now on where that is past."""
        row = claim.row
        try:
            strategy = self._strategies.find(row["strategy"])
            gap = gap_seconds(
                strategy,
                claim.attempts,
                row["interval_seconds"],
                row["first_delay_seconds"],
                row["jitter_ratio"],
                self._random,
            )
        except Exception as error:  # noqa: BLE001 - a strategy of the application may raise anything
            gap = row["interval_seconds"] or row["first_delay_seconds"]
            self._log.error("retry.strategy_failed", task=str(claim.id), strategy=row["strategy"], exc_info=error)
        planned = claim.run_at + timedelta(seconds=gap)
        if planned > now:
            return Later(run_at=planned), planned
        return Later(after_seconds=gap), now + timedelta(seconds=gap)

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
        losing = asyncio.ensure_future(batch.wait_lost(work.claim))
        try:
            await asyncio.wait({working, losing}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            ctx.stop()
            await _stop(working)
            if ctx.completed:
                return None
            if losing.done():
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
            losing.cancel()

    def _resolve(self, claim: Claim, outcome: Report | Exception) -> None:
        future = self._waiting.pop((claim.id, claim.claim_no), None)
        if future is None or future.done():
            return
        if isinstance(outcome, Report):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    async def _tell(self, claim: Claim, report: Report, *, attempted: bool) -> None:
        """Calls the callbacks; one that raises is logged and harms nothing."""
        self._resolve(claim, report)
        called: list[tuple[str | None, Callback]] = []
        if attempted:
            called += self._callbacks.after_attempt
        if report.state.final:
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


def _text(error: BaseException) -> str:
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _printable(text: str) -> str:
    """Returns text that PostgreSQL takes, of a length that people read."""
    return text[:_MAX_ERROR_TEXT].replace("\0", "\\0").encode(errors="backslashreplace").decode()
