"""Wishes for silence: stored, waited for, and looked up straight from PostgreSQL before a message leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.chassis.deadline import remaining_seconds

from .decision import Address, Suppression
from .gates import find_suppression
from .records import Departure, StoredSuppression, Wish
from .store import PolicyStore

# What the answer needs to travel back within the caller's deadline.
_MARGIN_SECONDS = 0.25


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
    """Suppressions, strongly consistent.

    Args:
        store: where they are kept.
        departures: knows what is leaving in this moment.
        wait_seconds: longest wait for what is leaving.
    """

    def __init__(self, store: PolicyStore, departures: Departures, wait_seconds: float) -> None:
        self._store = store
        self._departures = departures
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
        users = list(dict.fromkeys(wish.user_id for wish in wishes if wish.user_id))
        addresses = list(dict.fromkeys(wish.address for wish in wishes if wish.address is not None))
        wait_seconds = max(0.1, remaining_seconds(self._wait_seconds) - _MARGIN_SECONDS)
        in_flight = await self._departures.await_sending(tenant, users, addresses, wait_seconds)
        return stored, in_flight

    async def check(self, departures: Sequence[Departure]) -> list[str]:
        """Returns, for each message that is about to leave, why it must not; empty lets it go."""
        users = list(dict.fromkeys(departure.user for departure in departures if departure.user.user_id))
        addresses = list(dict.fromkeys((d.user.tenant, d.address) for d in departures if d.address is not None))
        standing: dict[str, list[Suppression]] = {}
        for tenant, suppression in await self._store.suppressions(users, addresses):
            standing.setdefault(tenant, []).append(suppression)
        return [_reason(departure, standing.get(departure.user.tenant, ())) for departure in departures]


def _reason(departure: Departure, standing: Sequence[Suppression]) -> str:
    found = find_suppression(
        standing,
        user_id=departure.user.user_id,
        address=departure.address,
        category=departure.category,
    )
    return "" if found is None else found[1]
