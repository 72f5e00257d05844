"""What is claimed, and what a handler can answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

# A row's id and the number of one of its claims.
ClaimKey = tuple[UUID, int]

_NO_ROW: Mapping[str, Any] = MappingProxyType({})


class Claim(NamedTuple):
    """A row that this process holds, until it is settled or the lease is lost.

    Attributes:
        id: the row's primary key.
        owner: the instance that claimed it; with ``id`` and ``claim_no`` the fence of every later write.
        claim_no: rises with every claim of the row and is never reset.
        attempts: how often work on the row was started, this claim's start included once it is started.
        run_at: when it was due, on the database's clock.
        priority: 0 to 9, 9 is the most urgent.
        suspect: an earlier owner died while working on this row, so it is handed out alone.
        started: the table has it that work on the row has started: with this claim, or since ``Batch.start``.
        row: the domain's columns, as named in ``TableQueue(columns=…)``.
    """

    id: UUID
    owner: UUID
    claim_no: int
    attempts: int
    run_at: datetime
    priority: int = 5
    suspect: bool = False
    started: bool = False
    row: Mapping[str, Any] = _NO_ROW

    @property
    def key(self) -> ClaimKey:
        """Which claim of which row this is: one row may be claimed again while an earlier claim is still at work."""
        return self.id, self.claim_no

    def start(self, attempts: int) -> Claim:
        """Returns the claim as it is once work on it has started."""
        return self._replace(attempts=attempts, started=True)


class Claimed(NamedTuple):
    """What one round of claiming brought.

    Attributes:
        claims: the rows, now owned.
        now: the database's clock when the round ran.
        oldest: when the oldest row that was due had to run, by priority; those that other processes are just claiming
            are among them. None if the owner has no lease.
        unreadable: rows that are owned too, with what was raised when their columns were read.
    """

    claims: list[Claim]
    now: datetime
    oldest: Mapping[int, datetime] | None
    unreadable: list[tuple[Claim, Exception]]


@dataclass(frozen=True, slots=True)
class Done:
    """The row is finished and is never handed out again.

    Attributes:
        counted: False gives the attempt back, if one was started: it was over without one (it had expired).
    """

    counted: bool = True


@dataclass(frozen=True, slots=True)
class Later:
    """The row waits and is handed out again.

    Attributes:
        run_at: when, an aware datetime. At most one of ``run_at`` and ``after_seconds`` is given; with neither,
            at once.
        after_seconds: how long from now on the database's clock.
        counted: False gives the attempt back, if one was started: waiting for a token, for a service that is
            away, or for a better hour is no attempt.
    """

    run_at: datetime | None = None
    after_seconds: float | None = None
    counted: bool = True

    def __post_init__(self) -> None:
        if self.run_at is not None and self.after_seconds is not None:
            raise ValueError("Later takes run_at or after_seconds, not both")
        if self.run_at is not None and self.run_at.tzinfo is None:
            raise ValueError("Later(run_at=…) needs a time zone")
        if self.after_seconds is not None and not 0 <= self.after_seconds < float("inf"):
            raise ValueError("Later(after_seconds=…) must not be negative or infinite")


@dataclass(frozen=True, slots=True)
class Release:
    """The row goes back without a verdict, as if it had not been claimed.

    The queue's ``release_assignments`` put the domain's columns back, and ``TableQueue.returned`` is called instead of
    ``apply`` for rows whose attempt stays spent.

    Attributes:
        after_seconds: do not hand it out before this; 0 leaves its ``run_at`` as it is.
        counted: False gives the attempt back, if one was started: nobody has got to work on the row.
    """

    after_seconds: float = 0.0
    counted: bool = True


Action = Done | Later | Release


class Settlement(NamedTuple):
    """A claim and what becomes of it.

    Attributes:
        claim: as handed out or, better, as returned by ``Batch.start`` (then ``attempts`` is up to date).
        action: what becomes of the row.
        result: the domain's own, opaque here; ``TableQueue.apply`` writes it.
    """

    claim: Claim
    action: Action
    result: object = None

    def waits_seconds(self, now: float) -> float | None:
        """Returns how long the row waits from now on; None when it is done.

        Args:
            now: the database's time, in seconds since the epoch.
        """
        if isinstance(self.action, Done):
            return None
        if isinstance(self.action, Later) and self.action.run_at is not None:
            return self.action.run_at.timestamp() - now
        return self.action.after_seconds or 0.0
