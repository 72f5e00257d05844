"""The words of this library: a task, its states, its attempts, and what a handler can answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from .strategies import seconds


class State(StrEnum):
    """What has become of a task. WAITING and RUNNING are alive, the rest is final."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    EXHAUSTED = "EXHAUSTED"
    """Every attempt failed."""
    GIVEN_UP = "GIVEN_UP"
    """The handler said that trying again is no use."""
    UNREADABLE = "UNREADABLE"
    """Its parameter, or its strategy, is not one that this version of the application knows."""
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Whether nothing happens any more."""
        return self not in {State.WAITING, State.RUNNING}


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """A handler's answer: it did not work, try again.

    Attributes:
        after: so many seconds from now (a ``timedelta`` is taken too); by the task's strategy if not given.
        reason: for people; kept as the attempt's error.
    """

    after: float | None
    reason: str

    def __init__(
        self, after: float | timedelta | None = None, reason: str = "the handler asked for another attempt"
    ) -> None:
        length = None if after is None else _after(self, after, zero=True)
        object.__setattr__(self, "after", length)
        object.__setattr__(self, "reason", reason)


@dataclass(frozen=True, slots=True, init=False)
class Wait:
    """A handler's answer: what it needs is away (a token, Redis, a partner). It was no attempt, and none is spent.

    However often a task waits, its log has one line of waiting for each attempt. Its expiry goes on.

    Attributes:
        after: so many seconds from now (a ``timedelta`` is taken too); more than 0, since nothing else bounds how often
            it is asked.
        reason: for people; kept as the task's last error.
    """

    after: float
    reason: str

    def __init__(self, after: float | timedelta, reason: str = "the handler had to wait") -> None:
        object.__setattr__(self, "after", _after(self, after, zero=False))
        object.__setattr__(self, "reason", reason)


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A handler's answer: it did not work, and trying again is no use.

    Attributes:
        reason: for people; kept as the task's last error.
    """

    reason: str


ANSWERS = (Retry, Wait, GiveUp)
"""What a handler can return to say that it did not work."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A task that will be done, once the transaction that registered it commits.

    Attributes:
        task_id: its id.
        created: False when a live task with the same unique key was there already, which then is this one.
    """

    task_id: UUID
    created: bool = True


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it is in the database.

    Attributes:
        id: its primary key.
        code: says which handler does it.
        payload: its parameter, as JSON value.
        state: what has become of it.
        priority: 0 to 9, 9 is the most urgent.
        attempts: how often work on it was started; what ended in :class:`Wait` does not count.
        max_attempts: how often it is started at most.
        run_at: when the next attempt is planned, or the last one was.
        created_at: when it was registered.
        finished_at: when it reached a final state.
        expires_at: it is not started from then on.
        max_execution_seconds: an attempt is stopped after so long.
        strategy: name of the strategy.
        interval_seconds: what the strategy works with.
        first_delay_seconds: from the creation to the first planned attempt.
        jitter_ratio: the share by which gaps vary; 0 for none.
        unique_key: at most one live task has it.
        description: for people.
        creator: for people: who registered it.
        last_error: of the last attempt that failed, or what it waits for.
    """

    id: UUID
    code: str
    payload: Any
    state: State
    priority: int
    attempts: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    max_execution_seconds: float | None
    strategy: str
    interval_seconds: float | None
    first_delay_seconds: float
    jitter_ratio: float
    unique_key: str | None
    description: str | None
    creator: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One line of a task's log.

    Attributes:
        attempt: its number, 1 for the first.
        planned_at: when it was to start.
        started_at: when it started, on the database's clock; None when its process did not live to tell.
        ended_at: when it ended, or was found to have been interrupted.
        duration_seconds: how long it took.
        owner: the instance that worked on it.
        error: why it failed, or waited; None when it succeeded.
        waits: 0 for an attempt. Otherwise how often the handler answered :class:`Wait` in its place: the line tells of
            all of them, from the first one's plan and start to the last one's end, and their time together.
    """

    attempt: int
    planned_at: datetime
    started_at: datetime | None
    ended_at: datetime
    duration_seconds: float | None
    owner: UUID | None
    error: str | None
    waits: int = 0


class Report(NamedTuple):
    """What a callback is told.

    Attributes:
        task_id: the task.
        code: its handler.
        state: what it is in now: WAITING for another attempt, or how it ended.
        attempt: the number of the attempt; 0 when it ended before the first.
        error: what the attempt failed with; None when it succeeded.
        reason: the same in words, also where there was no exception.
        duration_seconds: how long the attempt took.
        next_at: when the next attempt is planned; None when it is over.
        result: what the handler returned.
    """

    task_id: UUID
    code: str
    state: State
    attempt: int
    error: BaseException | None = None
    reason: str | None = None
    duration_seconds: float = 0.0
    next_at: datetime | None = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class Stats:
    """How many tasks there are.

    Attributes:
        counts: by code and state.
        oldest_due_seconds: how long the oldest task that is due has been waiting; 0 when none is.
        instances: names of the processes that live.
    """

    counts: Mapping[tuple[str, State], int] = field(default_factory=dict)
    oldest_due_seconds: float = 0.0
    instances: tuple[str, ...] = ()


def _after(answer: Retry | Wait, length: object, *, zero: bool) -> float:
    try:
        return seconds(length, zero=zero)
    except ValueError as error:
        raise ValueError(f"{type(answer).__name__}(after=…) {error}") from None
