"""A simulation: a tenant's real history, judged once more by another policy. Reads only, and gives way to real work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from services.catalog.catalog import Catalog
from services.catalog.errors import CatalogError
from services.catalog.holder import CatalogHolder
from services.catalog.policies import Policies, parse_policies
from services.chassis.errors import InvalidFieldsError, OverloadedError, Violation

from .counters import KEPT, RecentSends
from .decision import Address, Rules, UserKey
from .dossiers import Dossiers, Recipient
from .judge import rules_for
from .places import Place, user_of
from .replay import Change, Course, Judgement, Replay, RulesOf, TooManyError

# Messages judged without a pause; after it the service does other work for as long as they took.
_CHUNK = 50
_MAX_CHANGES = 200
# Messages that parted, or wait, at the same time: about a kilobyte each.
_MOST_KEPT = 200_000


@dataclass(frozen=True, slots=True)
class Simulation:
    """What is replayed, and by what.

    Attributes:
        tenant: whose messages.
        policies: the other policy.
        since: the messages that were judged first at this moment or later.
        before: the messages that were judged first before this moment.
        scene: reports the messages of this scene; empty reports all. The others are judged all the same: they count.
    """

    tenant: str
    policies: Policies
    since: datetime
    before: datetime
    scene: str = ""


@dataclass(slots=True)
class Progress:
    """What was found since the last progress, and the sums so far."""

    replayed: int = 0
    changed: int = 0
    changes: list[Change] = field(default_factory=list)


class PastMessages(Protocol):
    """Keeps what was judged."""

    def pages(self, tenant: str, since: datetime, before: datetime) -> AsyncGenerator[list[tuple[Judgement, ...]]]:
        """Yields messages with all their judgements, the oldest first; the iterator can be closed."""
        ...


class Simulator:
    """Runs simulations, one at a time.

    Args:
        catalog: gives the templates.
        history: what was judged.
        dossiers: what is known of recipients.
        sends: what left.
    """

    def __init__(self, catalog: CatalogHolder, history: PastMessages, dossiers: Dossiers, sends: RecentSends) -> None:
        self._catalog = catalog
        self._history = history
        self._dossiers = dossiers
        self._sends = sends
        self._owner: object | None = None

    def reserve(self) -> Callable[[], None]:
        """Takes the place of the one simulation; returns what gives it back.

        Raises:
            OverloadedError: another simulation has it.
        """
        if self._owner is not None:
            raise OverloadedError("another simulation runs already; wait for its end")
        owner = self._owner = object()

        def give_back() -> None:
            if self._owner is owner:
                self._owner = None

        return give_back

    async def run(self, simulation: Simulation) -> AsyncGenerator[Progress]:
        """Yields what changes, as it is found, and at the end the sums; to be called with the place of `reserve`.

        Raises:
            OverloadedError: more messages change than can be kept.
            UnavailableError: the history, or the recipients, cannot be read.
        """
        try:
            async with aclosing(self._run(simulation)) as run:
                async for progress in run:
                    yield progress
        except TooManyError:
            raise OverloadedError(
                f"more than {_MOST_KEPT:,} messages change or wait; simulate a shorter time"
            ) from None

    async def _run(self, simulation: Simulation) -> AsyncGenerator[Progress]:
        rules_of = _rules_of(Catalog(simulation.policies, self._catalog.current.templates))
        replay = Replay(rules_of, _MOST_KEPT)
        progress = Progress()

        def take(changes: Iterable[Change]) -> None:
            for change in changes:
                if simulation.scene in {"", change.item.scene}:
                    progress.changes.append(change)
                    progress.changed += 1

        # From midnight on: quotas count by the UTC day.
        midnight = simulation.since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        async with aclosing(self._history.pages(simulation.tenant, midnight, simulation.before)) as pages:
            async for page in pages:
                courses = await self._courses(simulation, page)
                for first in range(0, len(courses), _CHUNK):
                    started_at = time.perf_counter()
                    for course in courses[first : first + _CHUNK]:
                        if course.began_at < simulation.since:
                            replay.count(course)
                            continue
                        progress.replayed += simulation.scene in {"", course.item.scene}
                        take(replay.run(course))
                    await asyncio.sleep(time.perf_counter() - started_at)
                yield _taken(progress)
        take(replay.finish(simulation.before))
        yield _taken(progress)

    async def _courses(self, simulation: Simulation, page: Sequence[Sequence[Judgement]]) -> list[Course]:
        """Looks up what is known of the recipients of a page."""
        since = min(judgements[0].decision.decided_at for judgements in page)
        recipients = [_recipient(judgements) for judgements in page]
        dossiers = await self._dossiers.load(recipients, since)
        places: dict[UserKey, dict[str, Place]] = {}
        reach = max(KEPT, simulation.policies.longest_window)
        users = list(dict.fromkeys(recipient.user for recipient in recipients))
        for send in await self._sends.recent_sends(users, since - reach):
            place = Place(send.sent_at, send.cap_date, send.channel, send.category)
            places.setdefault(send.user, {})[send.message] = place
        return [
            Course(judgements, dossier, places.get(recipient.user, {}))
            for judgements, recipient, dossier in zip(page, recipients, dossiers, strict=True)
        ]


def read_policies(content: bytes) -> Policies:
    """Reads the other `policies.yaml` of a simulation.

    Raises:
        InvalidFieldsError: every fault with its line.
    """
    try:
        return parse_policies(content.decode("utf-8"), Path("policies.yaml"), alone=True)
    except UnicodeDecodeError as error:
        raise InvalidFieldsError([Violation("policies_yaml", f"is no UTF-8: {error.reason}")]) from None
    except CatalogError as error:
        raise InvalidFieldsError(
            [
                Violation(
                    "policies_yaml", f"line {problem.line}: {problem.reason}" if problem.line else problem.reason
                )
                for problem in error.problems
            ]
        ) from None


def _rules_of(catalog: Catalog) -> RulesOf:
    @lru_cache(maxsize=1_024)
    def rules_of(scene: str, template: str, tenant: str) -> Rules:
        return rules_for(catalog, scene, template, tenant)

    return rules_of


def _recipient(judgements: Sequence[Judgement]) -> Recipient:
    """Returns whom a message was for, with the addresses that were chosen then."""
    item = judgements[0].item
    addresses = [] if item.address is None else [item.address]
    for judgement in judgements:
        decision = judgement.decision
        if decision.channel is not None and decision.address:
            addresses.append(Address(decision.channel, decision.address))
    return Recipient(user_of(item), tuple(addresses))


def _taken(progress: Progress) -> Progress:
    """Returns what was found, and begins anew."""
    taken = Progress(progress.replayed, progress.changed, progress.changes)
    progress.changes = []
    return taken
