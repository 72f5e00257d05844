"""What others ask about tasks: the dispatcher's SQL that only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from services.catalog.rules import Channel
from services.chassis.postgres import Connection

from .fingerprints import may_have_left
from .model import Recipient
from .states import State

# A task that left, or may have: what was never tried has its place confirmed before it leaves, or is judged again, so
# that places given away twice while Redis was emptied are not both kept. A digest counts once, its parts do not.
_LEFT = f"""
    NOT t.evaluate AND (
        t.state IN ('SENDING', 'SENT', 'DELIVERED')
        OR t.state IN ('PENDING', 'SCHEDULED') AND (t.attempts > 0 OR t.suspect)
        OR t.state = 'FAILED' AND {may_have_left("t")}
    )
"""


# Which messages left with the texts of withheld duplicates: task_id of the duplicate, intent_id, left_at. A digest
# stands in nobody's hands: the first intent that it gathered does.
_SAME_TEXTS = f"""
    SELECT w.id AS task_id, coalesce(part.intent_id, t.intent_id) AS intent_id, t.left_at
    FROM dispatcher.tasks AS w
    JOIN LATERAL (
        SELECT t.intent_id, t.gathered, coalesce(
            (SELECT max(a.started_at) FROM dispatcher.attempts AS a WHERE a.task_id = t.id), t.finished_at
        ) AS left_at
        FROM dispatcher.tasks AS t
        WHERE t.tenant = w.tenant AND t.user_id = w.user_id AND t.channel = w.channel
            AND t.fingerprint = w.fingerprint AND t.id <> w.id AND t.finished_at <= w.finished_at
            AND {may_have_left("t")}
        ORDER BY t.finished_at DESC LIMIT 1
    ) AS t ON true
    LEFT JOIN LATERAL (
        SELECT p.intent_id FROM dispatcher.tasks AS p
        WHERE t.gathered AND p.gathered_into = t.intent_id ORDER BY p.created_at LIMIT 1
    ) AS part ON true
    WHERE w.id = ANY(%(ids)s) AND w.state = 'SUPPRESSED' AND w.reason = 'duplicate_content'
"""  # noqa: S608 - see `may_have_left`


async def sending_to(
    connection: Connection, tenant: str, user_ids: Sequence[str], addresses: Sequence[tuple[Channel | None, str]]
) -> set[UUID]:
    """Returns the tasks that are being handed over to these users or addresses, those of dead owners too.

    An address without a channel is meant on every channel.
    """
    cursor = await connection.execute(
        """
        SELECT id FROM dispatcher.tasks
        WHERE state = 'SENDING' AND tenant = %(tenant)s AND user_id = ANY(%(users)s)
        UNION
        SELECT t.id FROM dispatcher.tasks AS t
        JOIN unnest(%(channels)s::text[], %(addresses)s::text[]) AS a(channel, address) USING (address)
        WHERE t.state = 'SENDING' AND t.tenant = %(tenant)s AND (a.channel IS NULL OR a.channel = t.channel)
        """,
        {
            "tenant": tenant,
            "users": list(user_ids),
            "channels": [channel for channel, _ in addresses],
            "addresses": [address for _, address in addresses],
        },
    )
    return {row[0] for row in await cursor.fetchall()}


async def still_sending(connection: Connection, task_ids: Sequence[UUID]) -> set[UUID]:
    """Returns which of these tasks are still being handed over."""
    cursor = await connection.execute(
        "SELECT id FROM dispatcher.tasks WHERE id = ANY(%s) AND state = 'SENDING'", (list(task_ids),)
    )
    return {row[0] for row in await cursor.fetchall()}


async def recent_sends(connection: Connection, users: Sequence[Recipient], since: datetime) -> list[dict[str, Any]]:
    """Returns what counts on the caps of these users: what left, or may have.

    Args:
        since: those whose place in the caps was taken at this moment or later; as far back as a cap can look.

    Returns:
        Rows of tenant, user_id, intent_id, hop, channel, category, cap_date, sent_at (when the place was taken),
        uncertain (it is being handed over, with its place or without).
    """
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(
        f"""
        SELECT t.tenant, t.user_id, t.intent_id, t.hop, t.channel, t.category, t.cap_date, t.decided_at AS sent_at,
            t.state = 'SENDING' OR t.suspect AS uncertain
        FROM dispatcher.tasks AS t
        JOIN unnest(%s::text[], %s::text[]) AS u(tenant, user_id) USING (tenant, user_id)
        WHERE t.decided_at >= greatest(%s, clock_timestamp() - interval '92 days')
            AND t.cap_date IS NOT NULL AND {_LEFT}
        """,  # noqa: S608 - a constant of ours
        ([user.tenant for user in users], [user.user_id for user in users], since),
    )
    return await cursor.fetchall()


async def count_tenant_sends(connection: Connection, tenants: Sequence[str], since: datetime) -> dict[str, int]:
    """Returns how many messages that count on caps left for tenants, whose places were taken since a moment."""
    cursor = await connection.execute(
        f"""
        SELECT t.tenant, count(*) FROM dispatcher.tasks AS t
        WHERE t.decided_at >= %s AND t.tenant = ANY(%s) AND t.cap_date IS NOT NULL AND {_LEFT}
        GROUP BY t.tenant
        """,  # noqa: S608 - a constant of ours
        (since, list(tenants)),
    )
    return dict(await cursor.fetchall())


async def count_channel_sends(
    connection: Connection, channels: Sequence[Channel], since: datetime
) -> dict[Channel, int]:
    """Returns how many messages of all tenants left on channels, whose places were taken since a moment."""
    cursor = await connection.execute(
        f"""
        SELECT t.channel, count(*) FROM dispatcher.tasks AS t
        WHERE t.decided_at >= %s AND t.channel = ANY(%s) AND {_LEFT}
        GROUP BY t.channel
        """,  # noqa: S608 - a constant of ours
        (since, list(channels)),
    )
    return {Channel(channel): count for channel, count in await cursor.fetchall()}


async def timeline(connection: Connection, tenant: str, intent_id: UUID) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows about an intent: `tasks`, `attempts`, `receipts`, `outcomes` and `same_texts`, each in order.

    The tasks of an intent that was gathered are those of its digest; the first of them begins with its own decisions.
    """
    tasks = await _tasks(connection, tenant, intent_id)
    part = tasks[-1] if tasks else None
    if part is not None and part["gathered_into"] is not None and part["state"] == State.SCHEDULED:
        tasks = [_as_part_of(row, part) for row in await _tasks(connection, tenant, part["gathered_into"])]
    ids = [row["id"] for row in tasks]
    found = {"tasks": tasks}
    cursor = connection.cursor(row_factory=dict_row)
    for name, query in (
        (
            "attempts",
            "SELECT * FROM dispatcher.attempts WHERE task_id = ANY(%(ids)s) ORDER BY started_at, number",
        ),
        (
            "receipts",
            "SELECT * FROM dispatcher.task_receipts WHERE task_id = ANY(%(ids)s) ORDER BY applied_at, receipt_id",
        ),
        ("same_texts", _SAME_TEXTS),
        (
            "outcomes",
            "SELECT * FROM dispatcher.outcomes WHERE tenant = %(tenant)s AND intent_id = %(intent)s ORDER BY xid, seq",
        ),
    ):
        await cursor.execute(query, {"ids": ids, "tenant": tenant, "intent": intent_id})
        found[name] = await cursor.fetchall()
    return found


async def _tasks(connection: Connection, tenant: str, intent_id: UUID) -> list[dict[str, Any]]:
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(
        "SELECT * FROM dispatcher.tasks WHERE tenant = %s AND intent_id = %s ORDER BY hop", (tenant, intent_id)
    )
    return await cursor.fetchall()


def _as_part_of(digest: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    before = [] if digest["hop"] else part["decisions"]
    return {**digest, "intent_id": part["intent_id"], "decisions": [*before, *digest["decisions"]]}
