"""All SQL of the policy service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

import uuid6
from psycopg.rows import namedtuple_row

from services.catalog.rules import Category, Channel
from services.chassis.errors import UnavailableError
from services.chassis.postgres import Connection, Pool, tenant_transaction

from .decision import Address, Person, Suppression, SuppressionSource, UserKey
from .records import Activity, Profile, StoredSuppression, Wish

# Someone would have to lift the same suppressions between our two statements this often.
_MAX_ROUNDS = 5

_PEOPLE = """
SELECT asked.tenant, asked.user_id, profile.locale, profile.time_zone,
       activity.time_zone AS active_zone, activity.seen_at AS active_at,
       (SELECT jsonb_object_agg(address.channel, address.value) FROM policy.addresses address
        WHERE address.tenant = asked.tenant AND address.user_id = asked.user_id) AS addresses
FROM unnest(%(tenants)s::text[], %(users)s::text[]) AS asked (tenant, user_id)
LEFT JOIN policy.profiles profile USING (tenant, user_id)
LEFT JOIN policy.activity activity USING (tenant, user_id)
WHERE profile.user_id IS NOT NULL OR activity.user_id IS NOT NULL
"""

_STANDING = """
SELECT standing.* FROM unnest(%(tenants)s::text[], %(users)s::text[]) AS asked (tenant, user_id)
JOIN policy.suppressions standing ON standing.tenant = asked.tenant AND standing.user_id = asked.user_id
WHERE standing.lifted_at IS NULL AND standing.user_id <> ''
UNION ALL
SELECT standing.*
FROM unnest(%(address_tenants)s::text[], %(channels)s::text[], %(addresses)s::text[])
    AS asked (tenant, channel, address)
JOIN policy.suppressions standing ON standing.tenant = asked.tenant
    AND standing.address_channel = asked.channel AND standing.address = asked.address
WHERE standing.lifted_at IS NULL AND standing.address <> ''
"""

# Sorted, so that overlapping batches take their row locks in one order.
_UPSERT_PROFILES = """
INSERT INTO policy.profiles (tenant, user_id, locale, time_zone)
SELECT %(tenant)s, user_id, locale, time_zone
FROM unnest(%(users)s::text[], %(locales)s::text[], %(zones)s::text[]) AS given (user_id, locale, time_zone)
ORDER BY user_id
ON CONFLICT (tenant, user_id) DO UPDATE
SET locale = excluded.locale, time_zone = excluded.time_zone, updated_at = clock_timestamp()
"""

# The rows of the profiles are locked by the statement before: nobody else touches these addresses.
_DELETE_ADDRESSES = "DELETE FROM policy.addresses WHERE tenant = %(tenant)s AND user_id = ANY(%(users)s::text[])"

_INSERT_ADDRESSES = """
INSERT INTO policy.addresses (tenant, user_id, channel, value)
SELECT %(tenant)s, * FROM unnest(%(owners)s::text[], %(channels)s::text[], %(values)s::text[])
"""

_GET_PROFILES = """
SELECT profile.user_id, profile.locale, profile.time_zone,
       (SELECT jsonb_object_agg(address.channel, address.value) FROM policy.addresses address
        WHERE address.tenant = profile.tenant AND address.user_id = profile.user_id) AS addresses
FROM policy.profiles profile
WHERE profile.tenant = %(tenant)s AND profile.user_id = ANY(%(users)s::text[])
ORDER BY profile.user_id
"""

_REPORT_ACTIVITY = """
INSERT INTO policy.activity (tenant, user_id, time_zone, seen_at)
SELECT DISTINCT ON (user_id) %(tenant)s, user_id, time_zone, seen_at
FROM unnest(%(users)s::text[], %(zones)s::text[], %(moments)s::timestamptz[]) AS given (user_id, time_zone, seen_at)
ORDER BY user_id, seen_at DESC
ON CONFLICT (tenant, user_id) DO UPDATE SET time_zone = excluded.time_zone, seen_at = excluded.seen_at
WHERE policy.activity.seen_at < excluded.seen_at
"""

_WISHES = """
unnest(%(ids)s::uuid[], %(users)s::text[], %(address_channels)s::text[], %(addresses)s::text[], %(channels)s::text[],
       %(categories)s::text[], %(sources)s::text[], %(notes)s::text[])
    AS wish (id, user_id, address_channel, address, channel, category, source, note)
"""

_SUPPRESS = f"""
INSERT INTO policy.suppressions
    (id, tenant, user_id, address_channel, address, channel, category, source, note, created_by)
SELECT id, %(tenant)s, user_id, address_channel, address, channel, category, source, note, %(created_by)s
FROM {_WISHES}
ORDER BY user_id, address_channel, address, channel, category, source
ON CONFLICT (tenant, user_id, address_channel, address, channel, category, source) WHERE lifted_at IS NULL DO NOTHING
"""  # noqa: S608 - a constant of ours

# A statement of its own: it sees what another transaction committed while ours waited for it.
_READ_WISHES = f"""
SELECT standing.*
FROM {_WISHES}
JOIN policy.suppressions standing
    ON standing.tenant = %(tenant)s AND standing.lifted_at IS NULL
    AND (standing.user_id, standing.address_channel, standing.address, standing.channel, standing.category,
         standing.source)
      = (wish.user_id, wish.address_channel, wish.address, wish.channel, wish.category, wish.source)
"""  # noqa: S608 - a constant of ours

_LIFT = """
UPDATE policy.suppressions SET lifted_at = clock_timestamp(), lifted_by = %(lifted_by)s
WHERE id IN (
    SELECT id FROM policy.suppressions
    WHERE tenant = %(tenant)s AND id = ANY(%(ids)s::uuid[]) AND lifted_at IS NULL
    ORDER BY id FOR UPDATE
)
"""

# Ids are UUIDs of version 7: their order is that of storing.
_LIST_SUPPRESSIONS = """
SELECT * FROM policy.suppressions
WHERE tenant = %(tenant)s AND lifted_at IS NULL
  AND (%(user_id)s = '' OR user_id = %(user_id)s)
  AND (%(address)s = '' OR (address_channel = %(address_channel)s AND address = %(address)s))
  AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
ORDER BY id DESC LIMIT %(limit)s
"""


class PolicyStore:
    """Profiles, activities and suppressions in PostgreSQL.

    Args:
        engine: pool of the role engine, for batches across tenants.
        api: pool of the role api, for what one tenant does under row-level security.
    """

    def __init__(self, engine: Pool, api: Pool) -> None:
        self._engine = engine
        self._api = api

    async def people(self, users: Sequence[UserKey]) -> dict[UserKey, Person]:
        """Returns what is known of these users, of any tenants; unknown ones are left out."""
        values = {"tenants": [user.tenant for user in users], "users": [user.user_id for user in users]}
        async with self._engine.connection() as connection:
            rows = await _rows(connection, _PEOPLE, values)
        return {
            UserKey(row.tenant, row.user_id): Person(
                addresses=_addresses(row.addresses),
                locale=row.locale or "",
                time_zone=row.time_zone or "",
                active_zone=row.active_zone or "",
                active_at=row.active_at,
            )
            for row in rows
        }

    async def suppressions(
        self, users: Sequence[UserKey], addresses: Sequence[tuple[str, Address]]
    ) -> list[tuple[str, Suppression]]:
        """Returns the standing suppressions of these users and (tenant, address) pairs, each with its tenant."""
        values = {
            "tenants": [user.tenant for user in users],
            "users": [user.user_id for user in users],
            "address_tenants": [tenant for tenant, _ in addresses],
            "channels": [address.channel.value for _, address in addresses],
            "addresses": [address.value for _, address in addresses],
        }
        async with self._engine.connection() as connection:
            rows = await _rows(connection, _STANDING, values)
        return [(row.tenant, _suppression(row)) for row in rows]

    async def upsert_profiles(self, tenant: str, profiles: Sequence[Profile]) -> None:
        """Creates or replaces profiles with their addresses, all or none; each user at most once."""
        owned = [
            (profile.user_id, channel.value, value)
            for profile in profiles
            for channel, value in profile.addresses.items()
        ]
        values = {
            "tenant": tenant,
            "users": [profile.user_id for profile in profiles],
            "locales": [profile.locale for profile in profiles],
            "zones": [profile.time_zone for profile in profiles],
            "owners": [user_id for user_id, _, _ in owned],
            "channels": [channel for _, channel, _ in owned],
            "values": [value for _, _, value in owned],
        }
        async with tenant_transaction(self._api, tenant) as connection:
            for statement in (_UPSERT_PROFILES, _DELETE_ADDRESSES, _INSERT_ADDRESSES):
                await connection.execute(statement, values)

    async def get_profiles(self, tenant: str, user_ids: Sequence[str]) -> list[Profile]:
        """Returns the profiles that exist, by user."""
        async with tenant_transaction(self._api, tenant) as connection:
            rows = await _rows(connection, _GET_PROFILES, {"tenant": tenant, "users": list(user_ids)})
        return [Profile(row.user_id, _addresses(row.addresses), row.locale, row.time_zone) for row in rows]

    async def report_activity(self, tenant: str, activities: Sequence[Activity]) -> None:
        """Notes activities; an older one never replaces a newer one."""
        values = {
            "tenant": tenant,
            "users": [activity.user_id for activity in activities],
            "zones": [activity.time_zone for activity in activities],
            "moments": [activity.seen_at for activity in activities],
        }
        async with tenant_transaction(self._api, tenant) as connection:
            await connection.execute(_REPORT_ACTIVITY, values)

    async def suppress(self, tenant: str, wishes: Sequence[Wish], created_by: str) -> list[StoredSuppression]:
        """Stores wishes for silence, and commits. One that stands already is left as it is.

        Returns:
            What stands now for each wish, in their order.
        """
        identities = [_identity(wish) for wish in wishes]
        columns: list[list[str]] = [list(column) for column in zip(*identities, strict=True)]
        names = ("users", "address_channels", "addresses", "channels", "categories", "sources")
        values: dict[str, Any] = {
            "tenant": tenant,
            "created_by": created_by,
            "ids": [uuid6.uuid7() for _ in wishes],
            "notes": [wish.note for wish in wishes],
            **dict(zip(names, columns, strict=True)),
        }
        for _ in range(_MAX_ROUNDS):
            async with tenant_transaction(self._api, tenant) as connection:
                await connection.execute(_SUPPRESS, values)
                rows = await _rows(connection, _READ_WISHES, values)
            stored = {_identity(entry.wish): entry for entry in map(_stored, rows)}
            if all(identity in stored for identity in identities):
                return [stored[identity] for identity in identities]
        raise UnavailableError("the same suppressions are being lifted at the moment")

    async def lift(self, tenant: str, ids: Sequence[UUID], lifted_by: str) -> int:
        """Lifts suppressions; they stay for the audit. Returns how many stood."""
        async with tenant_transaction(self._api, tenant) as connection:
            cursor = await connection.execute(_LIFT, {"tenant": tenant, "ids": list(ids), "lifted_by": lifted_by})
            return cursor.rowcount

    async def list_suppressions(
        self, tenant: str, *, user_id: str, address: Address | None, before: UUID | None, limit: int
    ) -> list[StoredSuppression]:
        """Returns standing suppressions, newest first.

        Args:
            tenant: whose.
            user_id: keeps those of this user; empty keeps all.
            address: keeps those of this address; None keeps all.
            before: keeps those stored before this one.
            limit: how many at most.
        """
        values = {
            "tenant": tenant,
            "user_id": user_id,
            "address_channel": address.channel.value if address else "",
            "address": address.value if address else "",
            "before": before,
            "limit": limit,
        }
        async with tenant_transaction(self._api, tenant) as connection:
            return [_stored(row) for row in await _rows(connection, _LIST_SUPPRESSIONS, values)]


async def _rows(connection: Connection, statement: str, values: Mapping[str, Any]) -> list[Any]:
    async with connection.cursor(row_factory=namedtuple_row) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchall()


def _identity(wish: Wish) -> tuple[str, str, str, str, str, str]:
    """Returns what makes two wishes the same, as the columns of the unique index."""
    return (
        wish.user_id,
        wish.address.channel.value if wish.address else "",
        wish.address.value if wish.address else "",
        wish.channel.value if wish.channel else "",
        wish.category.value if wish.category else "",
        wish.source.value,
    )


def _addresses(stored: Mapping[str, str] | None) -> Mapping[Channel, str]:
    return MappingProxyType({Channel(channel): value for channel, value in (stored or {}).items()})


def _address(row: Any) -> Address | None:
    return Address(Channel(row.address_channel), row.address) if row.address else None


def _suppression(row: Any) -> Suppression:
    return Suppression(
        suppression_id=str(row.id),
        source=SuppressionSource(row.source),
        user_id=row.user_id,
        address=_address(row),
        channel=Channel(row.channel) if row.channel else None,
        category=Category(row.category) if row.category else None,
    )


def _stored(row: Any) -> StoredSuppression:
    created_at: datetime = row.created_at
    wish = Wish(
        source=SuppressionSource(row.source),
        user_id=row.user_id,
        address=_address(row),
        channel=Channel(row.channel) if row.channel else None,
        category=Category(row.category) if row.category else None,
        note=row.note,
    )
    return StoredSuppression(str(row.id), wish, row.created_by, created_at)
