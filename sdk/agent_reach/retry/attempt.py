"""One call of a handler: begun, ended once, settled, and told of."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from agent_reach.durable import Batch, Claim, ClaimLostError, TableQueue

from .context import Context, SyncContext
from .errors import AttemptInterruptedError
from .handlers import Call, Handler
from .model import Report, State
from .outcome import Outcome, judge
from .queue import Verdict
from .telling import Teller

# A handler that was told to stop has so long to end before it is left to itself.
STOP_SECONDS = 5.0

Span = AbstractContextManager[object]
_NO_SPAN: Span = nullcontext()


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done for a task that was read.

    Attributes:
        handler: who does it.
        call: does it, given the context.
    """

    handler: Handler
    call: Call


class Office(Protocol):
    """What attempts need of the runner."""

    dsn: str
    teller: Teller
    log: Any

    @property
    def queue(self) -> TableQueue:
        """The tasks as a durable queue."""

    @property
    def now(self) -> datetime:
        """The database's time."""

    def gap(self, claim: Claim) -> float:
        """Returns the seconds between the planned moments of this attempt and the next."""

    def in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Calls a function in a thread."""


class Attempt:
    """One call of a handler.

    It goes on by callbacks, and has no asyncio task beside the handler's own: that would be most of what a short
    attempt costs.

    Attributes:
        claim: the task's row, as it was started.
        working: the handler, as a future.

    Args:
        office: the runner.
        batch: where the claim is settled.
        claim: the task's row, as it was started.
        work: what is to be done.
        started_at: when it was, on the database's clock.
        over: called once when all is done and told; also when the claim was left open, for the engine to release.
    """

    __slots__ = (
        "_batch",
        "_began",
        "_context",
        "_ended",
        "_office",
        "_over",
        "_patience",
        "_started_at",
        "_stopped_by",
        "_work",
        "claim",
        "working",
    )

    def __init__(
        self, office: Office, batch: Batch, claim: Claim, work: Work, started_at: datetime, over: Callable[[], None]
    ) -> None:
        self._office = office
        self._batch = batch
        self._work = work
        self.claim = claim
        self._started_at = started_at
        self._over = over
        self._began = time.monotonic()
        self._ended = False
        self._stopped_by: BaseException | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._context: Context | SyncContext
        self.working: asyncio.Future[Any]

    def begin(self, span: Span = _NO_SPAN) -> None:
        """Calls the handler."""
        loop, call = asyncio.get_running_loop(), self._work.call
        if self._work.handler.asynchronous:
            self._context = context = Context(self._batch, self.claim, self._success)
            self.working = loop.create_task(_awaited(call, context, span))
        else:
            self._context = blocking = SyncContext(
                self._batch, self.claim, self._success, self._office.queue, self._office.dsn, loop
            )
            copied = contextvars.copy_context()
            self.working = self._office.in_thread(lambda: copied.run(_called, call, blocking, span))
        self.working.add_done_callback(self._returned)
        self._batch.on_lost(self.claim, self._lost)

    def stop(self, reason: BaseException) -> None:
        """Tells the handler to stop, if it has not ended.

        Args:
            reason: what the attempt has failed with; CancelledError leaves the claim open.
        """
        if self._stopped_by is not None or self.working.done():
            return
        self._stopped_by = reason
        self._context.stop()
        # First, since a thread cannot be cancelled, and its future has ended at once.
        self._patience = asyncio.get_running_loop().call_later(STOP_SECONDS, self._conclude, None, reason)
        self.working.cancel()

    def _lost(self) -> None:
        self.stop(lost(self.claim))

    def _success(self) -> Verdict:
        return Verdict(State.SUCCEEDED, started_at=self._started_at, began=self._began)

    def _returned(self, working: asyncio.Future[Any]) -> None:
        # Asked for in any case: an exception that nobody has seen is logged.
        error = None if working.cancelled() else working.exception()
        if self._stopped_by is not None:
            # It was told to stop; what it says to that is of no interest.
            self._conclude(None, self._stopped_by)
        elif working.cancelled():
            self._conclude(None, AttemptInterruptedError("the handler was cancelled"))
        elif error is not None:
            self._conclude(None, error)
        else:
            self._conclude(working.result(), None)

    def _conclude(self, result: Any, error: BaseException | None) -> None:
        """Says what becomes of the task; nothing where that was said already."""
        if self._ended:
            return
        self._ended = True
        if self._patience is not None:
            self._patience.cancel()
        try:
            self._settle(result, error)
        except Exception as defect:
            self._office.log.exception("retry.attempt_broke", task=str(self.claim.id), code=self.claim.row["code"])
            self._give_up(defect)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        claim, code = self.claim, self.claim.row["code"]
        duration = time.monotonic() - self._began
        if self._context.completed:
            if isinstance(error, Exception):
                self._office.log.error("retry.failed_after_completion", task=str(claim.id), exc_info=error)
            self._tell(
                Report(claim.id, code, State.SUCCEEDED, claim.attempts, duration_seconds=duration, result=result)
            )
        elif isinstance(error, ClaimLostError):
            self._office.log.warning("retry.claim_lost", task=str(claim.id), code=code)
            self._give_up(error)
        elif isinstance(error, asyncio.CancelledError):
            # The engine stops. What is left open is handed back.
            self._over()
        else:
            outcome = judge(
                claim, self._work.handler, result, error, self._office.now, lambda: self._office.gap(claim)
            )
            verdict = Verdict(
                outcome.state,
                outcome.reason,
                waits=outcome.waits,
                started_at=self._started_at,
                duration_seconds=duration,
            )
            kept = None if outcome.reason is not None else result
            report = Report(
                claim.id, code, outcome.state, claim.attempts, error, outcome.reason, duration, outcome.next_at, kept
            )
            stored = self._batch.settle(claim, outcome.action, verdict)
            stored.add_done_callback(lambda passed: self._stored(passed, outcome, report))

    def _stored(self, passed: asyncio.Future[bool], outcome: Outcome, report: Report) -> None:
        if passed.cancelled() or not passed.result():
            self._give_up(lost(self.claim))
        else:
            self._tell(report, waited=outcome.waits > 0)

    def _give_up(self, why: Exception) -> None:
        self._office.teller.no_report(self.claim, why)
        self._over()

    def _tell(self, report: Report, *, waited: bool = False) -> None:
        calling = self._office.teller.report(self.claim, report, attempted=True, waited=waited)
        if calling is None:
            self._over()
        else:
            calling.add_done_callback(lambda _: self._over())


def lost(claim: Claim) -> ClaimLostError:
    """Returns what there is to say of a claim that somebody else has the say over."""
    return ClaimLostError(f"task {claim.id} is not ours any more")


async def _awaited(call: Call, context: Context | SyncContext, span: Span) -> Any:
    try:
        with span:
            return await call(context)
    except SystemExit as error:
        raise AttemptInterruptedError("the handler called sys.exit()") from error


def _called(call: Call, context: Context | SyncContext, span: Span) -> Any:
    try:
        with span:
            return call(context)
    except SystemExit as error:
        raise AttemptInterruptedError("the handler called sys.exit()") from error
    except StopIteration as error:
        # A future cannot carry it: whoever waits for the thread would wait for ever.
        raise RuntimeError("the handler raised StopIteration") from error
