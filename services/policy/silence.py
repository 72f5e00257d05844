"""Wishes for silence: stored, waited for, and looked up straight from PostgreSQL before a message leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol
from uuid import UUID

from services.catalog.rules import Category, Channel
from services.chassis.deadline import remaining_seconds

from . import reasons
from .decision import Address, Known, Person, Preference, Suppression, UserKey
from .gates import find_preference, find_suppression
from .lookup import Lookup
from .preference_store import PreferenceStore
from .records import Choice, Departure, Question, StoredChoice, StoredSuppression, Wish
from .store import PolicyStore

# What the answer needs to travel back within the caller's deadline.
_MARGIN_SECONDS = 0.25
_UNKNOWN = Known(Person())

# Says whether a scene of a tenant needs an opting in; arguments: scene, tenant.
NeedsOptIn = Callable[[str, str], bool]


class Departures(Protocol):
    """Knows what is being handed over in this moment."""

    async def await_sending(
        self, tenant: str, user_ids: Sequence[str], addresses: Sequence[Address], wait_seconds: float
    ) -> int:
        """Waits until nothing to these recipients is being handed over.

        Returns:
            How many messages could not be waited for.

        Raises:
            UnavailableError: it cannot be asked, so nobody knows.
        """
        ...


class Silence:
    """Suppressions and preferences, strongly consistent.

    Args:
        lookup: where both are looked up.
        store: where suppressions are kept.
        preferences: where choices are kept.
        departures: knows what is leaving in this moment.
        needs_opt_in: knows the scenes.
        wait_seconds: longest wait for what is leaving.
    """

    def __init__(
        self,
        lookup: Lookup,
        store: PolicyStore,
        preferences: PreferenceStore,
        departures: Departures,
        needs_opt_in: NeedsOptIn,
        wait_seconds: float,
    ) -> None:
        self._lookup = lookup
        self._store = store
        self._preferences = preferences
        self._departures = departures
        self._needs_opt_in = needs_opt_in
        self._wait_seconds = wait_seconds

    async def suppress(
        self, tenant: str, wishes: Sequence[Wish], created_by: str
    ) -> tuple[list[StoredSuppression], int]:
        """Stores wishes, commits, and only then waits for messages that passed the last look before.

        Returns:
            What stands now, and how many messages could not be waited for.

        Raises:
            UnavailableError: the wishes are stored, but nobody could be asked what is leaving; calling again is
                harmless.
        """
        stored = await self._store.suppress(tenant, wishes, created_by)
        users = (wish.user_id for wish in wishes if wish.user_id)
        addresses = (wish.address for wish in wishes if wish.address is not None)
        return stored, await self._wait(tenant, users, addresses)

    async def choose(self, tenant: str, choices: Sequence[Choice], updated_by: str) -> tuple[list[StoredChoice], int]:
        """Stores choices, commits, and only then waits for messages to users who no longer opt in.

        Returns:
            The choices as stored, and how many messages could not be waited for.

        Raises:
            UnavailableError: the choices are stored, but nobody could be asked what is leaving; calling again is
                harmless.
        """
        stored = await self._preferences.set(tenant, choices, updated_by)
        users = [choice.user_id for choice in choices if not choice.opt_in]
        return stored, await self._wait(tenant, users, ()) if users else 0

    async def check(self, departures: Sequence[Departure]) -> list[str]:
        """Returns, for each message that is about to leave, why it must not; empty lets it go."""
        users = dict.fromkeys(departure.user for departure in departures)
        bare = dict.fromkeys((d.user, d.address) for d in departures if d.address is not None)
        known = await self._lookup.known(list(users), bare)
        return [
            _withheld(
                known.get(departure.user, _UNKNOWN),
                departure.user.user_id,
                departure.address,
                departure.category,
                opt_in=bool(departure.scene) and self._needs_opt_in(departure.scene, departure.user.tenant),
            )[0]
            for departure in departures
        ]

    async def answer(self, tenant: str, questions: Sequence[Question]) -> list[tuple[str, StoredSuppression | None]]:
        """Says, for each message that somebody thinks of, why it would be withheld, and by which suppression.

        Returns:
            Reasons, empty where it would not be; None where it is a preference that withholds.
        """
        users = [UserKey(tenant, question.user_id) for question in questions]
        bare = dict.fromkeys((u, q.address) for u, q in zip(users, questions, strict=True) if q.address is not None)
        known = await self._lookup.known(list(dict.fromkeys(users)), bare)
        found = [_answer(question, known.get(user, _UNKNOWN)) for user, question in zip(users, questions, strict=True)]
        ids = [UUID(suppression.suppression_id) for _, suppression in found if suppression is not None]
        stored = {entry.suppression_id: entry for entry in await self._store.find_suppressions(tenant, ids)}
        return [(reason, stored.get(entry.suppression_id) if entry else None) for reason, entry in found]

    async def _wait(self, tenant: str, users: Iterable[str], addresses: Iterable[Address]) -> int:
        wait_seconds = max(0.1, remaining_seconds(self._wait_seconds) - _MARGIN_SECONDS)
        return await self._departures.await_sending(
            tenant, list(dict.fromkeys(users)), list(dict.fromkeys(addresses)), wait_seconds
        )


def _withheld(
    known: Known, user_id: str, address: Address | None, category: Category, *, opt_in: bool
) -> tuple[str, Suppression | None]:
    """Returns why one message must not leave, and the suppression that says so; an empty reason lets it go."""
    found = find_suppression(known.suppressions, user_id=user_id, address=address, category=category)
    if found is not None:
        return found[1], found[0]
    # Of a message without an address nobody knows the channel: a choice about any of them may be meant.
    channels = tuple(Channel) if address is None else (address.channel,)
    refusals = (_refusal(known.preferences, category, channel, opt_in=opt_in) for channel in channels)
    return next(filter(None, refusals), ""), None


def _refusal(chosen: Iterable[Preference], category: Category, channel: Channel, *, opt_in: bool) -> str:
    """Returns the reason for which a user's choices forbid a message; empty where they do not."""
    choice = find_preference(chosen, channel=channel, category=category)
    if choice is None:
        return reasons.OPT_IN_MISSING if opt_in else ""
    return "" if choice.opt_in else reasons.PREFERENCE_OPTED_OUT


def _possible_addresses(question: Question, person: Person) -> list[Address]:
    """Returns where a message could go."""
    if question.address is not None:
        return [question.address]
    addresses = {Channel.INBOX: question.user_id, **person.addresses}
    return [Address(channel, value) for channel, value in addresses.items() if question.channel in {None, channel}]


def _answer(question: Question, known: Known) -> tuple[str, Suppression | None]:
    """Returns the first reason that holds for any way in question."""
    possible: list[Address | None] = list(_possible_addresses(question, known.person))
    if question.address is None:
        # The user's own wishes hold whether an address is known or not: one that nobody has stands for it.
        possible.append(None if question.channel is None else Address(question.channel, ""))
    for address in possible:
        reason, suppression = _withheld(known, question.user_id, address, question.category, opt_in=False)
        if reason:
            return reason, suppression
    return "", None
