"""Looks up what is known of recipients over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from services.catalog.rules import Channel

from .decision import Address, Person, UserKey
from .hindsight import DatedPreference, DatedSuppression, Dossier

_NOBODY = Person()


@dataclass(frozen=True, slots=True)
class Recipient:
    """Whom a message is for, and addresses at which it could arrive beside those of the profile."""

    user: UserKey
    addresses: tuple[Address, ...] = ()


class People(Protocol):
    """Knows users as they are now."""

    async def people(self, users: Sequence[UserKey]) -> dict[UserKey, Person]:
        """Returns what is known of these users; unknown ones are left out."""
        ...


class Past(Protocol):
    """Knows what stood at earlier moments."""

    async def past_suppressions(
        self, users: Sequence[UserKey], addresses: Sequence[tuple[str, Address]], since: datetime
    ) -> list[tuple[str, DatedSuppression]]:
        """Returns the suppressions that stood at a moment or later, each with its tenant."""
        ...

    async def past_preferences(self, users: Sequence[UserKey]) -> list[tuple[UserKey, DatedPreference]]:
        """Returns what these users chose, and since when."""
        ...


class Dossiers:
    """Makes dossiers, a batch in three questions.

    Args:
        people: users as they are now.
        past: what stood at earlier moments.
    """

    def __init__(self, people: People, past: Past) -> None:
        self._people = people
        self._past = past

    async def load(self, recipients: Sequence[Recipient], since: datetime) -> list[Dossier]:
        """Returns what is known of recipients, from a moment on."""
        users = list(dict.fromkeys(recipient.user for recipient in recipients))
        people = await self._people.people(users)
        persons = [people.get(recipient.user, _NOBODY) for recipient in recipients]
        addresses = [_addresses(recipient, person) for recipient, person in zip(recipients, persons, strict=True)]
        asked = dict.fromkeys(
            (recipient.user.tenant, address)
            for recipient, own in zip(recipients, addresses, strict=True)
            for address in own
        )
        by_user: dict[UserKey, list[DatedSuppression]] = {}
        by_address: dict[tuple[str, Address], list[DatedSuppression]] = {}
        for tenant, dated in await self._past.past_suppressions(users, list(asked), since):
            address = dated.suppression.address
            if address is None:
                by_user.setdefault(UserKey(tenant, dated.suppression.user_id), []).append(dated)
            else:
                by_address.setdefault((tenant, address), []).append(dated)
        chosen: dict[UserKey, list[DatedPreference]] = {}
        for user, preference in await self._past.past_preferences(users):
            chosen.setdefault(user, []).append(preference)
        return [
            Dossier(
                person,
                (
                    *by_user.get(recipient.user, ()),
                    *(dated for address in own for dated in by_address.get((recipient.user.tenant, address), ())),
                ),
                tuple(chosen.get(recipient.user, ())),
            )
            for recipient, person, own in zip(recipients, persons, addresses, strict=True)
        ]


def _addresses(recipient: Recipient, person: Person) -> Iterable[Address]:
    """Returns every address at which a message could arrive. A user's inbox is always there."""
    of_profile = (Address(channel, value) for channel, value in person.addresses.items())
    return dict.fromkeys((*of_profile, Address(Channel.INBOX, recipient.user.user_id), *recipient.addresses))
