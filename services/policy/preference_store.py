"""The SQL by which a tenant stores and reads its users' choices. For a message, `Lookup.known` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.rows import namedtuple_row

from agent_reach.durable import Recordset
from services.catalog.rules import Category, Channel
from services.chassis.postgres import Pool, tenant_transaction

from .records import Choice, StoredChoice

_CHOICES = Recordset({"user_id": "text", "category": "text", "channel": "text", "opt_in": "boolean"})

# Sorted, so that overlapping batches take their row locks in one order. A choice that was taken back stays as a row
# without `opt_in`: who did it is on record, and one statement, which cannot deadlock with itself, does both.
_SET = f"""
INSERT INTO policy.preferences (tenant, user_id, category, channel, opt_in, updated_by)
SELECT %(tenant)s, user_id, category, channel, opt_in, %(updated_by)s
FROM {_CHOICES.source("choices")}
ORDER BY user_id, category, channel
ON CONFLICT (tenant, user_id, category, channel) DO UPDATE
SET opt_in = excluded.opt_in, updated_by = excluded.updated_by, updated_at = clock_timestamp()
RETURNING user_id, category, channel, opt_in, updated_by, updated_at
"""  # noqa: S608 - a constant of ours

_GET = """
SELECT user_id, category, channel, opt_in, updated_by, updated_at FROM policy.preferences
WHERE tenant = %(tenant)s AND user_id = ANY(%(users)s::text[]) AND opt_in IS NOT NULL
ORDER BY user_id, category, channel
"""


class PreferenceStore:
    """What users chose to hear about, in PostgreSQL.

    Args:
        api: pool of the role api.
    """

    def __init__(self, api: Pool) -> None:
        self._api = api

    async def set(self, tenant: str, choices: Sequence[Choice], updated_by: str) -> list[StoredChoice]:
        """Stores choices and commits, all or none; each user, category and channel at most once.

        Returns:
            The choices as stored, in the order given; those that were taken back too.
        """
        values = {
            "tenant": tenant,
            "updated_by": updated_by,
            "choices": _CHOICES.encode((*_key(choice), choice.opt_in) for choice in choices),
        }
        stored = {_key(entry.choice): entry for entry in await self._rows(tenant, _SET, values)}
        return [stored[_key(choice)] for choice in choices]

    async def get(self, tenant: str, user_ids: Sequence[str]) -> list[StoredChoice]:
        """Returns the choices of these users, by user."""
        return await self._rows(tenant, _GET, {"tenant": tenant, "users": list(user_ids)})

    async def _rows(self, tenant: str, statement: str, values: Mapping[str, Any]) -> list[StoredChoice]:
        async with (
            tenant_transaction(self._api, tenant) as connection,
            connection.cursor(row_factory=namedtuple_row) as cursor,
        ):
            await cursor.execute(statement, values)
            return [_stored(row) for row in await cursor.fetchall()]


def _key(choice: Choice) -> tuple[str, str, str]:
    return (choice.user_id, choice.category or "", choice.channel or "")


def _stored(row: Any) -> StoredChoice:
    choice = Choice(
        user_id=row.user_id,
        category=Category(row.category) if row.category else None,
        channel=Channel(row.channel) if row.channel else None,
        opt_in=row.opt_in,
    )
    return StoredChoice(choice, row.updated_by, row.updated_at)
