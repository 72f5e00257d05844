"""What becomes of a task after its handler was called."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from agent_reach.durable import Claim, Done, Later

from .errors import AttemptInterruptedError, NoConnectionError
from .handlers import Handler
from .model import ANSWERS, GiveUp, Retry, State, Wait

_MAX_ERROR_TEXT = 2000
# Nothing bounds how often a task is tried after an error that spends no attempt: not more often than this.
_LEAST_WAIT_SECONDS = 1.0


_DONE = Done()


class Outcome(NamedTuple):
    """How a task goes on.

    Attributes:
        state: what it is in from now on.
        reason: why it did not succeed, as it is kept; None when it did.
        action: what the engine does with the row.
        next_at: when it is planned again; None when it has ended.
        waits: 1 where the handler had to wait, which is no attempt.
    """

    state: State
    reason: str | None = None
    action: Done | Later = _DONE
    next_at: datetime | None = None
    waits: int = 0


_SUCCEEDED = Outcome(State.SUCCEEDED)


class Planner(Protocol):
    """Who knows when a task is tried again."""

    @property
    def now(self) -> datetime:
        """The database's time."""

    def gap(self, claim: Claim) -> float:
        """Returns the seconds between the planned moments of this attempt and the next, by the task's strategy."""


def judge(claim: Claim, handler: Handler, result: Any, error: BaseException | None, planner: Planner) -> Outcome:
    """Returns what becomes of a task.

    Args:
        claim: of the attempt, its number included.
        handler: knows which errors are final, and which spend no attempt.
        result: what it returned, an answer perhaps.
        error: what it raised.
        planner: knows when it is tried again.
    """
    if error is not None:
        reason = printable(described(error))
    elif isinstance(result, ANSWERS):
        reason = printable(str(result.reason))
    else:
        return _SUCCEEDED
    # What ended an attempt from outside says nothing about whether trying again may help.
    raised = None if isinstance(error, AttemptInterruptedError) else error
    if isinstance(raised, NoConnectionError):
        # Nothing was tried.
        return _waiting(claim, reason, planner, max(planner.gap(claim), _LEAST_WAIT_SECONDS))
    if isinstance(result, GiveUp) or (raised is not None and not handler.retryable(raised)):
        return Outcome(State.GIVEN_UP, reason)
    if isinstance(result, Wait):
        return _waiting(claim, reason, planner, result.after)
    if raised is not None and not handler.counted(raised):
        return _waiting(claim, reason, planner, max(planner.gap(claim), _LEAST_WAIT_SECONDS))
    if claim.attempts >= claim.row["max_attempts"]:
        return Outcome(State.EXHAUSTED, reason)
    action, next_at = _next(claim, planner, result.after if isinstance(result, Retry) else None)
    expires_at = claim.row["expires_at"]
    if expires_at is not None and expires_at <= next_at:
        return Outcome(State.EXPIRED, reason)
    return Outcome(State.WAITING, reason, action, next_at)


def _waiting(claim: Claim, reason: str, planner: Planner, seconds: float) -> Outcome:
    next_at, expires_at = planner.now + timedelta(seconds=seconds), claim.row["expires_at"]
    action = Later(after_seconds=seconds, counted=False)
    if expires_at is not None and expires_at <= next_at:
        # It expires then, having spent nothing.
        next_at, action = expires_at, Later(run_at=expires_at, counted=False)
    return Outcome(State.WAITING, reason, action, next_at, waits=1)


def _next(claim: Claim, planner: Planner, after: float | None) -> tuple[Later, datetime]:
    """Plans from the planned moment on, so that the plan stays exact; from now on where that is past."""
    now, seconds = planner.now, planner.gap(claim) if after is None else after
    planned = claim.run_at + timedelta(seconds=seconds)
    if after is None and planned > now:
        return Later(run_at=planned), planned
    return Later(after_seconds=seconds), now + timedelta(seconds=seconds)


def described(error: BaseException) -> str:
    """Returns an error in one line: its type, and what it says."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - whose errors these are, is whose they are to describe
        said = "(it cannot be described)"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def printable(text: str) -> str:
    """Returns text that PostgreSQL takes, of a length that people read."""
    return text[:_MAX_ERROR_TEXT].replace("\0", "\\0").encode(errors="backslashreplace").decode()
