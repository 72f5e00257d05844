"""All SQL of the policy service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import uuid6
from psycopg.rows import namedtuple_row

from agent_reach.durable import Recordset
from services.catalog.rules import Category, Channel
from services.chassis.errors import UnavailableError
from services.chassis.postgres import Connection, Pool, tenant_transaction

from .decision import Address, Person, Preference, Suppression, SuppressionSource, UserKey
from .records import Activity, Profile, StoredSuppression, SuppressionPage, Wish

_Identity = tuple[str, str, str, str, str, str]

# Someone would have to lift the same suppressions between our two statements this often.
_MAX_ROUNDS = 5

_PEOPLE = """
SELECT asked.tenant, asked.user_id, profile.locale, profile.time_zone,
       activity.time_zone AS active_zone, activity.seen_at AS active_at, profile.addresses
FROM unnest(%(tenants)s::text[], %(users)s::text[]) AS asked (tenant, user_id)
LEFT JOIN policy.profiles profile USING (tenant, user_id)
LEFT JOIN policy.activity activity USING (tenant, user_id)
WHERE profile.user_id IS NOT NULL OR activity.user_id IS NOT NULL
"""

_PROFILES = Recordset({"user_id": "text", "locale": "text", "time_zone": "text", "addresses": "jsonb"})

# Sorted, so that overlapping batches take their row locks in one order.
_UPSERT_PROFILES = f"""
INSERT INTO policy.profiles (tenant, user_id, locale, time_zone, addresses)
SELECT %(tenant)s, user_id, locale, time_zone, addresses FROM {_PROFILES.source("profiles")} ORDER BY user_id
ON CONFLICT (tenant, user_id) DO UPDATE
SET locale = excluded.locale, time_zone = excluded.time_zone, addresses = excluded.addresses,
    updated_at = clock_timestamp()
"""  # noqa: S608 - a constant of ours

_GET_PROFILES = """
SELECT user_id, locale, time_zone, addresses FROM policy.profiles
WHERE tenant = %(tenant)s AND user_id = ANY(%(users)s::text[])
ORDER BY user_id
"""

_REPORT_ACTIVITY = """
INSERT INTO policy.activity (tenant, user_id, time_zone, seen_at)
SELECT DISTINCT ON (user_id) %(tenant)s, user_id, time_zone, seen_at
FROM unnest(%(users)s::text[], %(zones)s::text[], %(moments)s::timestamptz[]) AS given (user_id, time_zone, seen_at)
ORDER BY user_id, seen_at DESC
ON CONFLICT (tenant, user_id) DO UPDATE SET time_zone = excluded.time_zone, seen_at = excluded.seen_at
WHERE policy.activity.seen_at < excluded.seen_at
"""

_WISHES = Recordset(
    {
        "id": "uuid",
        "user_id": "text",
        "address_channel": "text",
        "address": "text",
        "channel": "text",
        "category": "text",
        "source": "text",
        "note": "text",
    }
)

_SUPPRESS = f"""
INSERT INTO policy.suppressions
    (id, tenant, user_id, address_channel, address, channel, category, source, note, created_by)
SELECT id, %(tenant)s, user_id, address_channel, address, channel, category, source, note, %(created_by)s
FROM {_WISHES.source("wishes")}
ORDER BY user_id, address_channel, address, channel, category, source
ON CONFLICT (tenant, user_id, address_channel, address, channel, category, source) WHERE lifted_at IS NULL DO NOTHING
RETURNING id, created_at
"""  # noqa: S608 - a constant of ours

# A statement of its own: it sees what another transaction committed while ours waited for it.
_READ_WISHES = f"""
SELECT standing.*
FROM {_WISHES.source("wishes")}
JOIN policy.suppressions standing
    ON standing.tenant = %(tenant)s AND standing.lifted_at IS NULL
    AND (standing.user_id, standing.address_channel, standing.address, standing.channel, standing.category,
         standing.source)
      = (wishes.user_id, wishes.address_channel, wishes.address, wishes.channel, wishes.category, wishes.source)
"""  # noqa: S608 - a constant of ours

_LIFT = """
UPDATE policy.suppressions SET lifted_at = clock_timestamp(), lifted_by = %(lifted_by)s
WHERE id IN (
    SELECT id FROM policy.suppressions
    WHERE tenant = %(tenant)s AND id = ANY(%(ids)s::uuid[]) AND lifted_at IS NULL
    ORDER BY id FOR UPDATE
)
"""

_FIND_SUPPRESSIONS = "SELECT * FROM policy.suppressions WHERE tenant = %(tenant)s AND id = ANY(%(ids)s::uuid[])"

# Ids are UUIDs of version 7: their order is that of storing. Every filter names its partial index by `lifted_at`.
_LIST_SUPPRESSIONS = """
SELECT * FROM policy.suppressions
WHERE tenant = %(tenant)s
  AND (%(user_id)s = '' OR (lifted_at IS NULL AND user_id = %(user_id)s)
                        OR (lifted_at IS NOT NULL AND user_id = %(user_id)s))
  AND (%(address)s = '' OR (lifted_at IS NULL AND address_channel = %(address_channel)s AND address = %(address)s)
                        OR (lifted_at IS NOT NULL AND address_channel = %(address_channel)s AND address = %(address)s))
  AND (%(source)s = '' OR source = %(source)s)
  AND (%(include_lifted)s OR lifted_at IS NULL)
  AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
ORDER BY id DESC LIMIT %(limit)s
"""

_LIST_PROFILES = """
SELECT user_id, locale, time_zone, addresses FROM policy.profiles
WHERE tenant = %(tenant)s AND user_id > %(after)s
ORDER BY user_id LIMIT %(limit)s
"""


class PolicyStore:
    """Profiles, activities, preferences and suppressions in PostgreSQL.

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

    async def upsert_profiles(self, tenant: str, profiles: Sequence[Profile]) -> None:
        """Creates or replaces profiles with their addresses, all or none; each user at most once."""
        rows = (
            (
                each.user_id,
                each.locale,
                each.time_zone,
                {channel.value: own for channel, own in each.addresses.items()},
            )
            for each in profiles
        )
        async with tenant_transaction(self._api, tenant) as connection:
            await connection.execute(_UPSERT_PROFILES, {"tenant": tenant, "profiles": _PROFILES.encode(rows)})

    async def get_profiles(self, tenant: str, user_ids: Sequence[str]) -> list[Profile]:
        """Returns the profiles that exist, by user."""
        async with tenant_transaction(self._api, tenant) as connection:
            rows = await _rows(connection, _GET_PROFILES, {"tenant": tenant, "users": list(user_ids)})
        return [_profile(row) for row in rows]

    async def list_profiles(self, tenant: str, after: str, limit: int) -> list[Profile]:
        """Returns the profiles after a user, by user; from the first on for an empty one."""
        async with tenant_transaction(self._api, tenant) as connection:
            rows = await _rows(connection, _LIST_PROFILES, {"tenant": tenant, "after": after, "limit": limit})
        return [_profile(row) for row in rows]

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
        missing = dict(zip(identities, wishes, strict=True))
        stored: dict[_Identity, StoredSuppression] = {}
        for _ in range(_MAX_ROUNDS):
            named = {uuid6.uuid7(): identity for identity in missing}
            values = {
                "tenant": tenant,
                "created_by": created_by,
                "wishes": _WISHES.encode((id_, *identity, missing[identity].note) for id_, identity in named.items()),
            }
            async with tenant_transaction(self._api, tenant) as connection:
                for row in await _rows(connection, _SUPPRESS, values):
                    identity = named[row.id]
                    stored[identity] = StoredSuppression(
                        str(row.id), missing.pop(identity), created_by, row.created_at
                    )
                if missing:
                    for entry in map(_stored, await _rows(connection, _READ_WISHES, values)):
                        stored[_identity(entry.wish)] = entry
            missing = {identity: wish for identity, wish in missing.items() if identity not in stored}
            if not missing:
                return [stored[identity] for identity in identities]
        raise UnavailableError("the same suppressions are being lifted at the moment")

    async def lift(self, tenant: str, ids: Sequence[UUID], lifted_by: str) -> int:
        """Lifts suppressions; they stay for the audit. Returns how many stood."""
        async with tenant_transaction(self._api, tenant) as connection:
            cursor = await connection.execute(_LIFT, {"tenant": tenant, "ids": list(ids), "lifted_by": lifted_by})
            return cursor.rowcount

    async def find_suppressions(self, tenant: str, ids: Sequence[UUID]) -> list[StoredSuppression]:
        """Returns suppressions by their ids, lifted ones too."""
        if not ids:
            return []
        async with tenant_transaction(self._api, tenant) as connection:
            rows = await _rows(connection, _FIND_SUPPRESSIONS, {"tenant": tenant, "ids": list(ids)})
        return [_stored(row) for row in rows]

    async def list_suppressions(self, tenant: str, page: SuppressionPage, limit: int) -> list[StoredSuppression]:
        """Returns suppressions, newest first, `limit` at most."""
        values = {
            "tenant": tenant,
            "user_id": page.user_id,
            "address_channel": page.address.channel.value if page.address else "",
            "address": page.address.value if page.address else "",
            "source": page.source.value if page.source else "",
            "include_lifted": page.include_lifted,
            "before": page.before,
            "limit": limit,
        }
        async with tenant_transaction(self._api, tenant) as connection:
            return [_stored(row) for row in await _rows(connection, _LIST_SUPPRESSIONS, values)]


async def _rows(connection: Connection, statement: str, values: Mapping[str, Any]) -> list[Any]:
    async with connection.cursor(row_factory=namedtuple_row) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchall()


def _identity(wish: Wish) -> _Identity:
    """Returns what makes two wishes the same, as the columns of the unique index."""
    address = wish.address
    return (
        wish.user_id,
        address.channel if address else "",
        address.value if address else "",
        wish.channel or "",
        wish.category or "",
        wish.source,
    )


def _addresses(stored: Mapping[str, str] | None) -> Mapping[Channel, str]:
    return MappingProxyType({Channel(channel): value for channel, value in (stored or {}).items()})


def _profile(row: Any) -> Profile:
    return Profile(row.user_id, _addresses(row.addresses), row.locale, row.time_zone)


def _address(row: Any) -> Address | None:
    return Address(Channel(row.address_channel), row.address) if row.address else None


def preference_of(row: Any) -> Preference:
    """Returns the choice in a row of `policy.preferences`."""
    return Preference(
        category=Category(row.category) if row.category else None,
        channel=Channel(row.channel) if row.channel else None,
        opt_in=row.opt_in,
    )


def suppression_of(row: Any) -> Suppression:
    """Returns the suppression in a row of `policy.suppressions`."""
    return Suppression(
        suppression_id=str(row.id),
        source=SuppressionSource(row.source),
        user_id=row.user_id,
        address=_address(row),
        channel=Channel(row.channel) if row.channel else None,
        category=Category(row.category) if row.category else None,
    )


def _stored(row: Any) -> StoredSuppression:
    wish = Wish(
        source=SuppressionSource(row.source),
        user_id=row.user_id,
        address=_address(row),
        channel=Channel(row.channel) if row.channel else None,
        category=Category(row.category) if row.category else None,
        note=row.note,
    )
    return StoredSuppression(str(row.id), wish, row.created_by, row.created_at, row.lifted_by or "", row.lifted_at)
