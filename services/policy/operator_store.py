"""The SQL of the operator's view: cleared counters, decisions in shadow, and what stood at an earlier moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import uuid6
from psycopg.rows import namedtuple_row

from agent_reach.durable import Recordset
from services.chassis.postgres import Pool, tenant_transaction

from .decision import Address, UserKey
from .hindsight import DatedPreference, DatedSuppression
from .store import preference_of, suppression_of

# Each part names a partial index by `lifted_at`, and leaves the address, or the user, empty.
_PAST_SUPPRESSIONS = """
SELECT past.* FROM unnest(%(tenants)s::text[], %(users)s::text[]) AS asked (tenant, user_id)
JOIN policy.suppressions past ON past.tenant = asked.tenant AND past.user_id = asked.user_id
WHERE past.lifted_at IS NULL AND past.user_id <> ''
UNION ALL
SELECT past.* FROM unnest(%(tenants)s::text[], %(users)s::text[]) AS asked (tenant, user_id)
JOIN policy.suppressions past ON past.tenant = asked.tenant AND past.user_id = asked.user_id
WHERE past.lifted_at IS NOT NULL AND past.lifted_at > %(since)s AND past.user_id <> ''
UNION ALL
SELECT past.*
FROM unnest(%(address_tenants)s::text[], %(channels)s::text[], %(addresses)s::text[])
    AS asked (tenant, channel, address)
JOIN policy.suppressions past ON past.tenant = asked.tenant
    AND past.address_channel = asked.channel AND past.address = asked.address
WHERE past.lifted_at IS NULL AND past.address <> ''
UNION ALL
SELECT past.*
FROM unnest(%(address_tenants)s::text[], %(channels)s::text[], %(addresses)s::text[])
    AS asked (tenant, channel, address)
JOIN policy.suppressions past ON past.tenant = asked.tenant AND past.user_id = ''
    AND past.address_channel = asked.channel AND past.address = asked.address
WHERE past.lifted_at IS NOT NULL AND past.lifted_at > %(since)s AND past.address <> ''
"""

_PAST_PREFERENCES = """
SELECT chosen.tenant, chosen.user_id, chosen.category, chosen.channel, chosen.opt_in, chosen.updated_at
FROM unnest(%(tenants)s::text[], %(users)s::text[]) AS asked (tenant, user_id)
JOIN policy.preferences chosen USING (tenant, user_id)
WHERE chosen.opt_in IS NOT NULL
"""

_CLEAR = """
INSERT INTO policy.counter_clears (id, tenant, user_id, cleared_by, reason)
VALUES (%(id)s, %(tenant)s, %(user_id)s, %(cleared_by)s, %(reason)s)
"""

_CLEARED = "UPDATE policy.counter_clears SET cleared = %(cleared)s WHERE tenant = %(tenant)s AND id = %(id)s"

_CLEARED_SINCE = """
SELECT cleared.tenant, cleared.user_id, max(cleared.cleared_at) AS cleared_at
FROM unnest(%(tenants)s::text[], %(users)s::text[]) AS asked (tenant, user_id)
JOIN policy.counter_clears cleared USING (tenant, user_id)
GROUP BY cleared.tenant, cleared.user_id
"""

_SHADOW = Recordset(
    {
        "id": "uuid",
        "tenant": "text",
        "intent_id": "text",
        "hop": "smallint",
        "user_id": "text",
        "scene": "text",
        "decided_at": "timestamptz",
        "gate": "text",
        "actual": "bytea",
        "other": "bytea",
    }
)

_RECORD_SHADOW = f"""
INSERT INTO policy.shadow_decisions ({", ".join(_SHADOW.names)})
SELECT {", ".join(_SHADOW.names)} FROM {_SHADOW.source("rows")}
"""  # noqa: S608 - the names are this module's own

# In bites, so that no statement holds its locks for long. An array, because IN may run its subquery more than once.
_FORGET_SHADOW = """
DELETE FROM policy.shadow_decisions WHERE id = ANY(ARRAY(
    SELECT id FROM policy.shadow_decisions WHERE decided_at < %(before)s LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
"""

# Ids are UUIDs of version 7: their order is that of recording.
_LIST_SHADOW = """
SELECT * FROM policy.shadow_decisions
WHERE tenant = %(tenant)s
  AND (%(scene)s = '' OR scene = %(scene)s)
  AND (%(since)s::timestamptz IS NULL OR decided_at >= %(since)s::timestamptz)
  AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
ORDER BY id DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """A message about which the policy in shadow decided otherwise.

    Attributes:
        tenant: whose it is.
        intent_id: the intent.
        hop: number of the task.
        user_id: whom it is for.
        scene: why it was written.
        decided_at: the moment of both judgements.
        gate: the gate at which the two part.
        actual: the decision that was acted on, serialized.
        other: the decision of the policy in shadow, serialized.
        record_id: its id; empty before it is stored.
    """

    tenant: str
    intent_id: str
    hop: int
    user_id: str
    scene: str
    decided_at: datetime
    gate: str
    actual: bytes
    other: bytes
    record_id: str = ""


class OperatorStore:
    """What only operators ask for, in PostgreSQL.

    Args:
        engine: pool of the role engine, for batches across tenants.
        api: pool of the role api, for what one tenant does under row-level security.
    """

    def __init__(self, engine: Pool, api: Pool) -> None:
        self._engine = engine
        self._api = api

    async def clear(self, user: UserKey, cleared_by: str, reason: str) -> UUID:
        """Writes that a user's counters are cleared as of now, by whom and why; returns the entry's id."""
        entry = uuid6.uuid7()
        values = {
            "id": entry,
            "tenant": user.tenant,
            "user_id": user.user_id,
            "cleared_by": cleared_by,
            "reason": reason,
        }
        async with tenant_transaction(self._api, user.tenant) as connection:
            await connection.execute(_CLEAR, values)
        return entry

    async def note_cleared(self, tenant: str, entry: UUID, cleared: int) -> None:
        """Adds to an entry of the audit how many messages it was about."""
        async with tenant_transaction(self._api, tenant) as connection:
            await connection.execute(_CLEARED, {"tenant": tenant, "id": entry, "cleared": cleared})

    async def cleared_since(self, users: Sequence[UserKey]) -> dict[UserKey, datetime]:
        """Returns, for those whose counters were ever cleared, up to when: what was sent until then does not count."""
        values = {"tenants": [user.tenant for user in users], "users": [user.user_id for user in users]}
        rows = await self._rows(_CLEARED_SINCE, values)
        return {UserKey(row.tenant, row.user_id): row.cleared_at for row in rows}

    async def past_suppressions(
        self, users: Sequence[UserKey], addresses: Sequence[tuple[str, Address]], since: datetime
    ) -> list[tuple[str, DatedSuppression]]:
        """Returns the suppressions of these users and (tenant, address) pairs that stood at a moment, or later.

        Each comes with its tenant.
        """
        values = {
            "tenants": [user.tenant for user in users],
            "users": [user.user_id for user in users],
            "address_tenants": [tenant for tenant, _ in addresses],
            "channels": [address.channel.value for _, address in addresses],
            "addresses": [address.value for _, address in addresses],
            "since": since,
        }
        rows = await self._rows(_PAST_SUPPRESSIONS, values)
        return [(row.tenant, DatedSuppression(suppression_of(row), row.created_at, row.lifted_at)) for row in rows]

    async def past_preferences(self, users: Sequence[UserKey]) -> list[tuple[UserKey, DatedPreference]]:
        """Returns what these users chose to hear about, as it is now, and since when."""
        values = {"tenants": [user.tenant for user in users], "users": [user.user_id for user in users]}
        rows = await self._rows(_PAST_PREFERENCES, values)
        return [
            (UserKey(row.tenant, row.user_id), DatedPreference(preference_of(row), row.updated_at)) for row in rows
        ]

    async def record_shadow(self, records: Sequence[ShadowRecord]) -> None:
        """Keeps decisions of the policy in shadow."""
        rows = [
            (
                uuid6.uuid7(),
                record.tenant,
                record.intent_id,
                record.hop,
                record.user_id,
                record.scene,
                record.decided_at,
                record.gate,
                record.actual,
                record.other,
            )
            for record in records
        ]
        async with self._engine.connection() as connection:
            await connection.execute(_RECORD_SHADOW, {"rows": _SHADOW.encode(rows)})

    async def forget_shadow(self, before: datetime, limit: int) -> int:
        """Deletes decisions of the policy in shadow from before a moment, at most so many; returns how many."""
        async with self._engine.connection() as connection:
            cursor = await connection.execute(_FORGET_SHADOW, {"before": before, "limit": limit})
            return cursor.rowcount

    async def list_shadow(
        self, tenant: str, *, scene: str, since: datetime | None, before: UUID | None, limit: int
    ) -> list[ShadowRecord]:
        """Returns decisions of the policy in shadow that differ, newest first.

        Args:
            tenant: whose.
            scene: keeps those of this scene; empty keeps all.
            since: keeps those from this moment on; None keeps all.
            before: keeps those recorded before this one.
            limit: how many at most.
        """
        values = {"tenant": tenant, "scene": scene, "since": since, "before": before, "limit": limit}
        async with (
            tenant_transaction(self._api, tenant) as connection,
            connection.cursor(row_factory=namedtuple_row) as cursor,
        ):
            await cursor.execute(_LIST_SHADOW, values)
            return [_record(row) for row in await cursor.fetchall()]

    async def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        async with (
            self._engine.connection() as connection,
            connection.cursor(row_factory=namedtuple_row) as cursor,
        ):
            await cursor.execute(statement, values)
            return await cursor.fetchall()


def _record(row: Any) -> ShadowRecord:
    return ShadowRecord(
        tenant=row.tenant,
        intent_id=row.intent_id,
        hop=row.hop,
        user_id=row.user_id,
        scene=row.scene,
        decided_at=row.decided_at,
        gate=row.gate,
        actual=row.actual,
        other=row.other,
        record_id=str(row.id),
    )
