"""Has the dispatcher apply stored events, and the policy keep who wants silence, again and again until they have."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Any, Protocol
from uuid import UUID

import structlog

from agent_reach.durable import Batch, Claim, Done, Later, exponential_jitter
from services.catalog.addresses import pseudonym
from services.catalog.rules import Category, Channel
from services.chassis.clock import Clock
from services.chassis.errors import DeadlineError, OverloadedError, ServiceError, UnavailableError

from .facts import Kind, Source, silence_wanted

_log = structlog.get_logger(__name__)

_JITTER_RATIO = 0.3
# An outage of the dispatcher is one warning in this time and not one per batch.
_COMPLAINT_SECONDS = 30.0


class Result(StrEnum):
    """How an event ended, or, for `TASK_UNKNOWN`, stands at the moment."""

    APPLIED = "applied"
    IGNORED = "ignored"
    TASK_UNKNOWN = "task_unknown"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Event:
    """A stored fact on its way to the dispatcher; fields as in `Fact`, `occurred_at` always there."""

    id: UUID
    provider: str
    kind: Kind
    idempotency_key: str
    provider_message_id: str
    code: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Recipient:
    """Whom a message was for, where it went (in normal form), and its category; None where that is not known."""

    tenant: str
    user_id: str
    channel: Channel
    address: str
    category: Category | None


@dataclass(frozen=True, slots=True)
class Advanced:
    """What an event did, and whom it was about; nobody where that is not known."""

    result: Result
    recipient: Recipient | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish for silence.

    Attributes:
        recipient: who wants it.
        source: where it comes from.
        of_user: the user gets nothing more of that category on that channel, whatever the address; else the address
            gets nothing more.
    """

    recipient: Recipient
    source: Source
    of_user: bool


def wishes_of(recipient: Recipient, source: Source) -> list[Wish]:
    """Returns what a person who wants silence expects.

    The address is quiet at once. Who unsubscribed or complained does not want the next one at another address either;
    a bounce speaks of the address alone. From verification codes nobody can unsubscribe by a receipt: they would lock
    themselves out. A bare address is a user of its own, for whom the address says it all.
    """
    wishes = [Wish(recipient, source, of_user=False)]
    if (
        source is not Source.BOUNCE
        and recipient.category not in {None, Category.VERIFICATION}
        and recipient.user_id != pseudonym(recipient.channel, recipient.address)
    ):
        wishes.append(Wish(recipient, source, of_user=True))
    return wishes


class Dispatcher(Protocol):
    """Who applies events to tasks. Repeating one is harmless."""

    async def advance(self, events: Sequence[Event]) -> list[Advanced]:
        """Applies events; returns what each did, in order.

        Raises:
            UnavailableError: it cannot be reached.
            ServiceError: it refused the batch.
        """
        ...


class Policy(Protocol):
    """Who keeps wishes for silence. Repeating one is harmless."""

    async def suppress(self, tenant: str, wishes: Sequence[Wish]) -> None:
        """Stores a tenant's wishes.

        Raises:
            ServiceError: they are not stored, or nobody knows.
        """
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How events wait that cannot be applied yet.

    Attributes:
        first_seconds: the wait after the first try; doubles.
        longest_seconds: the longest wait.
        give_up: how old an event gets before it ends as it is.
    """

    first_seconds: float = 1.0
    longest_seconds: float = 600.0
    give_up: timedelta = timedelta(days=3)


class Applier:
    """The handler of the queue of events.

    Args:
        dispatcher: who applies them.
        policy: who keeps what they say about silence.
        clock: says how old an event is.
        patience: how events wait.
        random: spreads the waits.
    """

    def __init__(
        self, dispatcher: Dispatcher, policy: Policy, clock: Clock, patience: Patience, random: Random
    ) -> None:
        self._dispatcher = dispatcher
        self._policy = policy
        self._clock = clock
        self._patience = patience
        self._random = random
        self._quiet_until = 0.0

    async def handle(self, batch: Batch) -> None:
        """Settles every claim of a batch."""
        await self._apply(batch, await batch.start())

    async def _apply(self, batch: Batch, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        try:
            advanced = await self._dispatcher.advance([_event(claim) for claim in claims])
        except ServiceError as error:
            if _is_absence(error):
                self._complain(error)
                # Nobody tried anything: this is no attempt.
                for claim in claims:
                    wait = error.retry_after_seconds or self._patience.first_seconds
                    batch.settle(claim, Later(after_seconds=self._spread(wait), counted=False))
            elif len(claims) > 1:
                # One of them spoils the batch: halves find it, and the others go through.
                middle = len(claims) // 2
                await self._apply(batch, claims[:middle])
                await self._apply(batch, claims[middle:])
            else:
                _log.error("receipt_refused_by_dispatcher", receipt_id=str(claims[0].id), error=str(error))
                self._settle(batch, claims[0], Result.REFUSED)
        else:
            pairs = list(zip(claims, advanced, strict=True))
            unkept = await self._silence(pairs)
            for claim, outcome in pairs:
                # One that waited for the policy was applied the first time; the second time it is known already.
                result = Result(claim.row["result"] or outcome.result)
                if claim.id in unkept:
                    batch.settle(claim, Later(after_seconds=self._wait(claim)), result.value)
                else:
                    self._settle(batch, claim, result)

    async def _silence(self, pairs: Sequence[tuple[Claim, Advanced]]) -> set[UUID]:
        """Has the policy keep what the events say about silence; returns those of which it could not."""
        wishes: dict[str, list[tuple[Claim, Wish]]] = {}
        for claim, outcome in pairs:
            source = silence_wanted(Kind(claim.row["kind"]), claim.row["code"])
            if source is not None and outcome.recipient is not None:
                wanted = wishes.setdefault(outcome.recipient.tenant, [])
                wanted += [(claim, wish) for wish in wishes_of(outcome.recipient, source)]
        unkept: set[UUID] = set()
        for tenant, wanted in wishes.items():
            try:
                await self._policy.suppress(tenant, [wish for _, wish in wanted])
            except ServiceError as error:
                # However long it takes: who unsubscribed must not be forgotten.
                _log.warning("suppressions_not_stored", count=len(wanted), error=str(error))
                unkept |= {claim.id for claim, _ in wanted}
        return unkept

    def _settle(self, batch: Batch, claim: Claim, result: Result) -> None:
        if result in {Result.APPLIED, Result.IGNORED}:
            batch.settle(claim, Done(), result.value)
        elif self._clock.now() - claim.row["received_at"] >= self._patience.give_up:
            _log.warning("receipt_given_up", receipt_id=str(claim.id), result=result.value)
            batch.settle(claim, Done(), result.value)
        else:
            batch.settle(claim, Later(after_seconds=self._wait(claim)))

    def _wait(self, claim: Claim) -> float:
        return exponential_jitter(
            claim.attempts,
            self._patience.first_seconds,
            self._patience.longest_seconds,
            _JITTER_RATIO,
            self._random,
        )

    def _spread(self, seconds: float) -> float:
        return exponential_jitter(1, seconds, self._patience.longest_seconds, _JITTER_RATIO, self._random)

    def _complain(self, error: ServiceError) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _COMPLAINT_SECONDS
            _log.warning("dispatcher_unavailable", error=str(error))


def _is_absence(error: ServiceError) -> bool:
    """Says whether the dispatcher could not be asked at all, as against refusing what it was asked."""
    # A stream that was refused as such (our key, a version without the RPC) names the service.
    return isinstance(error, UnavailableError | OverloadedError | DeadlineError) or "service" in error.metadata


def _event(claim: Claim) -> Event:
    row: Mapping[str, Any] = claim.row
    return Event(
        id=claim.id,
        provider=row["provider"],
        kind=Kind(row["kind"]),
        idempotency_key=row["idempotency_key"],
        provider_message_id=row["provider_message_id"],
        code=row["code"],
        # A provider that names no moment spoke at once.
        occurred_at=row["occurred_at"] or row["received_at"],
    )
