"""One call of a handler: begun, ended once, settled, and told of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from psycopg_pool import AsyncConnectionPool

from agent_reach.durable import Batch, Claim, ClaimLostError, Release, TableQueue

from .calls import NO_SPAN, Span, answer_of, awaited, frames, in_thread
from .context import Context, SyncContext
from .errors import AttemptInterruptedError, HandlerError
from .handlers import Handler
from .model import ANSWERS, Report, State
from .outcome import Outcome, Planner, judge
from .queue import Verdict
from .telling import Teller

# A handler that was told to stop has so long to end before it is left to itself.
STOP_SECONDS = 5.0


Work = tuple[Handler, Any]
"""What is to be done: who does it, and what was read for it."""


class _End(NamedTuple):
    """What an attempt has come to, until that is stored."""

    outcome: Outcome
    result: Any
    error: BaseException | None
    duration_seconds: float


class Office(Planner, Protocol):
    """What attempts need of the runner."""

    dsn: str
    connections: AsyncConnectionPool[Any]
    teller: Teller
    log: Any

    @property
    def queue(self) -> TableQueue:
        """The tasks as a durable queue."""


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
        "_end",
        "_ended",
        "_handler",
        "_office",
        "_over",
        "_patience",
        "_read",
        "_started_at",
        "_stopped_by",
        "claim",
        "working",
    )

    def __init__(
        self, office: Office, batch: Batch, claim: Claim, work: Work, started_at: datetime, over: Callable[[], None]
    ) -> None:
        self._office = office
        self._batch = batch
        self._handler, self._read = work
        self.claim = claim
        self._started_at = started_at
        self._over = over
        self._began = time.monotonic()
        self._ended = False
        self._end: _End
        self._stopped_by: BaseException | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._context: Context | SyncContext
        self.working: asyncio.Future[Any]

    def begin(self, span: Span = NO_SPAN) -> None:
        """Calls the handler."""
        loop, office = asyncio.get_running_loop(), self._office
        started = self._started_at, self._began
        if self._handler.asynchronous:
            self._context = Context(self._batch, self.claim, started, office.queue, office.connections)
            self.working = loop.create_task(awaited(self._handler.call, self._read, self._context, span=span))
        else:
            self._context = SyncContext(self._batch, self.claim, started, office.queue, office.dsn, loop)
            self.working = in_thread(self._handler.call, self._read, self._context, span=span)
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
        self._patience = asyncio.get_running_loop().call_later(STOP_SECONDS, self._conclude, None, reason)
        self.working.cancel()

    def _lost(self) -> None:
        self.stop(lost(self.claim))

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
            try:
                self._conclude(answer_of(working.result()), None)
            except HandlerError as nothing_done:
                self._conclude(None, nothing_done)

    def _conclude(self, result: Any, error: BaseException | None) -> None:
        """Says what becomes of the task; nothing where that was said already."""
        if self._ended:
            return
        self._ended = True
        if self._patience is not None:
            self._patience.cancel()
        try:
            self._settle(result, error)
        except Exception as defect:  # noqa: BLE001 - it is logged and told, and the engine puts this task off
            self._log("retry.attempt_broke", defect)
            self._give_up(defect)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        claim = self.claim
        duration = time.monotonic() - self._began
        if self._context.completed:
            self._tell_completed(result, error, duration)
        elif isinstance(error, ClaimLostError) and self._batch.lost(claim):
            # Which writes nothing, and says that the handler is through with it.
            self._batch.settle(claim, Release())
            self._lose(error)
        elif isinstance(error, asyncio.CancelledError):
            # The engine stops. What is left open is handed back.
            self._over()
        else:
            outcome = judge(claim, self._handler, result, error, self._office)
            verdict = Verdict(
                outcome.state,
                outcome.reason,
                waits=outcome.waits,
                started_at=self._started_at,
                duration_seconds=duration,
            )
            self._end = _End(outcome, None if outcome.reason is not None else result, error, duration)
            self._batch.settle(claim, outcome.action, verdict).then(self._stored)

    def _tell_completed(self, result: Any, error: BaseException | None, duration: float) -> None:
        """Tells of a task that its handler completed in a transaction: whatever came after that changes nothing."""
        answered = isinstance(result, ANSWERS)
        if answered or isinstance(error, Exception):
            self._log("retry.failed_after_completion", error)
        kept = None if answered else result
        self._tell(
            Report(
                self.claim.id,
                self.claim.row["code"],
                State.SUCCEEDED,
                self.claim.attempts,
                duration_seconds=duration,
                result=kept,
            )
        )

    def _log(self, event: str, error: BaseException | None = None) -> None:
        say = self._office.log.warning if error is None else self._office.log.error
        told = {} if error is None else {"error": frames(error)}
        say(event, task=str(self.claim.id), code=self.claim.row["code"], **told)

    def _stored(self, stored: bool) -> None:  # noqa: FBT001 - called by `Answer.then` only
        outcome, result, error, duration = self._end
        if stored:
            claim = self.claim
            report = Report(
                claim.id,
                claim.row["code"],
                outcome.state,
                claim.attempts,
                error,
                outcome.reason,
                duration,
                outcome.next_at,
                result,
            )
            self._tell(report, waited=outcome.waits > 0)
        elif self._context.completed:
            # Its thread, which was told to stop, was about to commit.
            self._tell_completed(None, None, duration)
        else:
            self._lose(lost(self.claim))

    def _lose(self, why: ClaimLostError) -> None:
        self._log("retry.claim_lost")
        self._give_up(why)

    def _give_up(self, why: Exception) -> None:
        self._office.teller.no_report(self.claim, why)
        self._over()

    def _tell(self, report: Report, *, waited: bool = False) -> None:
        self._office.teller.report(self.claim, report, self._over, attempted=True, waited=waited)


def lost(claim: Claim) -> ClaimLostError:
    """Returns what there is to say of a claim that somebody else has the say over."""
    return ClaimLostError(f"task {claim.id} is not ours any more")
