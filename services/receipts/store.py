"""All SQL of the receipts service."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from uuid6 import uuid7

from agent_reach.durable import Settlement, TableQueue
from services.chassis.postgres import Connection, Pool

from .facts import Fact

EVENTS = "receipts.events"

_COLUMNS = (
    "provider", "kind", "idempotency_key", "provider_message_id", "code", "occurred_at", "received_at", "result",
)  # fmt: skip


class EventQueue(TableQueue):
    """Stored events that wait to be applied. A settlement's result is what the event did, or None as long as nothing."""

    def __init__(self) -> None:
        super().__init__(EVENTS, _COLUMNS)

    async def apply(self, connection: AsyncConnection[Any], settled: Sequence[Settlement]) -> None:
        """Writes what events did."""
        ended = [(item.claim.id, item.result) for item in settled if item.result is not None]
        if ended:
            await connection.execute(
                """
                UPDATE receipts.events AS t SET result = n.result
                FROM unnest(%s::uuid[], %s::text[]) AS n(id, result) WHERE t.id = n.id
                """,
                ([event_id for event_id, _ in ended], [result for _, result in ended]),
            )


class EventStore:
    """Keeps what providers say.

    Args:
        pool: of the role engine.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(self, provider: str, facts: Sequence[Fact], body: bytes | None = None) -> list[UUID]:
        """Stores facts, with the post that they came in; whatever is known already stays as it is.

        Args:
            provider: who says so.
            facts: what it says; the same event may be in it twice.
            body: the raw post; stored once, however often it comes.

        Returns:
            The ids under which the facts are stored now, in the order given.
        """
        if not facts:
            return []
        async with self._pool.connection() as connection, connection.transaction():
            post_id = None if body is None else await _insert_post(connection, provider, body)
            return await _insert_events(connection, provider, facts, post_id)


async def _insert_post(connection: Connection, provider: str, body: bytes) -> UUID:
    key = (provider, hashlib.sha256(body).digest())
    cursor = await connection.execute(
        """
        INSERT INTO receipts.posts (id, provider, body_sha256, body) VALUES (%s, %s, %s, %s)
        ON CONFLICT (provider, body_sha256) DO NOTHING RETURNING id
        """,
        (uuid7(), *key, body),
    )
    row = await cursor.fetchone()
    if row is None:
        cursor = await connection.execute(
            "SELECT id FROM receipts.posts WHERE provider = %s AND body_sha256 = %s", key
        )
        row = await cursor.fetchone()
    assert row is not None
    post_id: UUID = row[0]
    return post_id


async def _insert_events(
    connection: Connection, provider: str, facts: Sequence[Fact], post_id: UUID | None
) -> list[UUID]:
    # Sorted by key, so that overlapping batches wait for each other instead of deadlocking.
    ordered = sorted(facts, key=lambda fact: fact.event_id)
    await connection.execute(
        """
        INSERT INTO receipts.events
            (id, provider, provider_event_id, post_id, kind, idempotency_key, provider_message_id, code, occurred_at)
        SELECT id, %s, event_id, %s, kind, idempotency_key, provider_message_id, code, occurred_at
        FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::timestamptz[])
            WITH ORDINALITY AS new(id, event_id, kind, idempotency_key, provider_message_id, code, occurred_at, number)
        ORDER BY number
        ON CONFLICT (provider, provider_event_id) DO NOTHING
        """,
        (
            provider,
            post_id,
            [uuid7() for _ in ordered],
            [fact.event_id for fact in ordered],
            [fact.kind.value for fact in ordered],
            [fact.idempotency_key for fact in ordered],
            [fact.provider_message_id for fact in ordered],
            [fact.code for fact in ordered],
            [fact.occurred_at for fact in ordered],
        ),
    )
    # A statement of its own: only it sees what a concurrent transaction inserted first.
    cursor = await connection.execute(
        """
        SELECT provider_event_id, id FROM receipts.events
        WHERE provider = %s AND provider_event_id = ANY(%s::text[])
        """,
        (provider, [fact.event_id for fact in facts]),
    )
    ids: dict[str, UUID] = {row[0]: row[1] for row in await cursor.fetchall()}
    return [ids[fact.event_id] for fact in facts]
