"""All SQL of intake. Every statement works on a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from agent_reach.durable import Recordset
from services.chassis.postgres import Connection, Pool

from .draft import Draft

_NEW = Recordset(
    {
        "id": "uuid",
        "tenant": "text",
        "agent": "text",
        "user_id": "text",
        "bare_channel": "text",
        "bare_address": "text",
        "scene": "text",
        "category": "text",
        "template": "text",
        "template_version": "text",
        "variables_json": "text",
        "wishes": "text[]",
        "priority": "smallint",
        "expires_at": "timestamptz",
        "intent_key": "text",
        "key_hash": "bytea",
        "content_hash": "bytea",
        "created_at": "timestamptz",
        "traceparent": "text",
        "send_at": "timestamptz",
        "send_at_local": "bytea",
        "lifetime_seconds": "float8",
        "owner": "uuid",
    }
)
_SHOWN = (
    "id, tenant, agent, user_id, bare_channel, bare_address, scene, category, template, variables_json, wishes,"
    " priority, expires_at, intent_key, created_at, traceparent, send_at, send_at_local, lifetime_seconds, state,"
    " state_reason, state_at, fallback_after"
)


@dataclass(frozen=True, slots=True)
class Standing:
    """The intent that stands for a key."""

    id: UUID
    content_hash: bytes


async def insert_intents(pool: Pool, drafts: Sequence[Draft], owners: Mapping[UUID, UUID]) -> dict[UUID, datetime]:
    """Inserts intents whose key is free, in the order of their keys so that overlapping batches cannot deadlock.

    Args:
        pool: role engine.
        drafts: any; of several with one key the first is taken.
        owners: by intent id, the instance that holds a place for it and owns it from the start.

    Returns:
        When each that was inserted is due, by id.
    """
    rows = (
        (
            draft.id, draft.tenant, draft.agent, draft.user_id, draft.bare_channel, draft.bare_address, draft.scene,
            draft.category, draft.template, draft.template_version, draft.variables_json, draft.wishes, draft.priority,
            draft.expires_at, draft.intent_key, draft.key_hash, draft.content_hash, draft.created_at,
            draft.traceparent, draft.send_at, draft.send_at_local, draft.lifetime_seconds,
            owners.get(draft.id),
        )
        for draft in sorted(drafts, key=lambda draft: (draft.tenant, draft.key_hash))
    )  # fmt: skip
    columns = ", ".join(_NEW.names)
    async with pool.connection() as connection:
        cursor = await connection.execute(
            f"""
            INSERT INTO intake.intents ({columns}, state_at, claim_no)
            SELECT {columns}, created_at, (owner IS NOT NULL)::integer FROM {_NEW.source("new")}
            ON CONFLICT (tenant, key_hash) DO NOTHING
            RETURNING id, run_at
            """,  # noqa: S608 - the names are this module's own
            {"new": _NEW.encode(rows)},
        )
        return dict(await cursor.fetchall())


async def standing_intents(pool: Pool, keys: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], Standing]:
    """Returns the intents that stand for (tenant, key hash).

    A statement of its own, after the insert: only a new snapshot sees what a concurrent call inserted first.
    """
    async with pool.connection() as connection:
        cursor = await connection.execute(
            """
            SELECT i.tenant, i.key_hash, i.id, i.content_hash FROM intake.intents AS i
            JOIN unnest(%s::text[], %s::bytea[]) AS k(tenant, key_hash) USING (tenant, key_hash)
            """,
            ([tenant for tenant, _ in keys], [key for _, key in keys]),
        )
        return {(row[0], row[1]): Standing(row[2], row[3]) for row in await cursor.fetchall()}


async def earlier_intents(pool: Pool, drafts: Sequence[Draft]) -> dict[tuple[str, bytes], UUID]:
    """Returns, for derived keys, the intents of the bucket before that are still within the window.

    Returns:
        Intent ids by (tenant, earlier key hash).
    """
    async with pool.connection() as connection:
        cursor = await connection.execute(
            """
            SELECT i.tenant, i.key_hash, i.id FROM intake.intents AS i
            JOIN unnest(%s::text[], %s::bytea[], %s::timestamptz[], %s::float8[]) AS k(tenant, key_hash, at, seconds)
                USING (tenant, key_hash)
            WHERE i.created_at > k.at - make_interval(secs => k.seconds)
            """,
            (
                [draft.tenant for draft in drafts],
                [draft.earlier_key_hash for draft in drafts],
                [draft.created_at for draft in drafts],
                [draft.window_seconds for draft in drafts],
            ),
        )
        return {(row[0], row[1]): row[2] for row in await cursor.fetchall()}


async def get_intent(connection: Connection, intent_id: UUID) -> dict[str, Any] | None:
    """Returns one intent of the connection's tenant."""
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(f"SELECT {_SHOWN} FROM intake.intents WHERE id = %s", (intent_id,))  # noqa: S608
    return await cursor.fetchone()


async def list_intents(
    connection: Connection,
    filters: Mapping[str, object],
    *,
    created_from: datetime | None,
    created_before: datetime | None,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[dict[str, Any]]:
    """Returns intents of the connection's tenant, newest first.

    Args:
        filters: equal values by column: user_id, agent, scene, state.
        after: (created_at, id) of the last intent of the page before.
    """
    conditions = [f"{column} = %({column})s" for column in filters]
    parameters: dict[str, object] = {**filters, "limit": limit}
    if created_from is not None:
        conditions.append("created_at >= %(created_from)s")
        parameters["created_from"] = created_from
    if created_before is not None:
        conditions.append("created_at < %(created_before)s")
        parameters["created_before"] = created_before
    if after is not None:
        conditions.append("(created_at, id) < (%(after_at)s, %(after_id)s)")
        parameters["after_at"], parameters["after_id"] = after
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(
        f"SELECT {_SHOWN} FROM intake.intents {where} ORDER BY created_at DESC, id DESC LIMIT %(limit)s",  # noqa: S608
        parameters,
    )
    return await cursor.fetchall()


async def outcome_cursor(pool: Pool) -> str:
    """Returns up to where outcomes have been followed."""
    async with pool.connection() as connection:
        row = await (await connection.execute("SELECT cursor FROM intake.outcome_cursor")).fetchone()
        return str(row[0]) if row else ""


@dataclass(frozen=True, slots=True)
class IntentState:
    """The state that an intent has reached.

    Attributes:
        hop: 0, or 1 after a fallback.
        fallback_after: why the hop before failed, where that was told on the same page; else empty.
    """

    hop: int
    state: str
    reason: str
    at: datetime
    fallback_after: str = ""


async def follow_outcomes(
    pool: Pool, before: str, after: str, states: Mapping[UUID, IntentState], settled: Sequence[str]
) -> bool:
    """Writes states and moves the cursor, unless another replica has moved it meanwhile.

    A later hop goes before an earlier one; on one hop, what was sent or has ended moves by rank only.

    Args:
        settled: states by rank, from the first that is not left again for a lesser one.

    Returns:
        Whether the cursor was where the caller thought it was.
    """
    async with pool.connection() as connection, connection.transaction():
        moved = await connection.execute(
            "UPDATE intake.outcome_cursor SET cursor = %s WHERE cursor = %s", (after, before)
        )
        if not moved.rowcount:
            return False
        ordered = sorted(states)
        await connection.execute(
            """
            UPDATE intake.intents AS i
            SET state = n.state, state_reason = n.reason, state_hop = n.hop, state_at = n.at,
                fallback_after = CASE
                    WHEN n.fallback_after <> '' THEN n.fallback_after
                    WHEN n.hop > i.state_hop THEN i.state_reason
                    ELSE i.fallback_after
                END
            FROM unnest(%(ids)s::uuid[], %(hops)s::smallint[], %(states)s::text[], %(reasons)s::text[],
                %(at)s::timestamptz[], %(fallbacks)s::text[]) AS n(id, hop, state, reason, at, fallback_after)
            WHERE i.id = n.id AND (
                n.hop > i.state_hop
                OR n.hop = i.state_hop AND coalesce(array_position(%(settled)s::text[], n.state), 0)
                    >= coalesce(array_position(%(settled)s::text[], i.state), 0)
            )
            """,
            {
                "ids": ordered,
                "hops": [states[key].hop for key in ordered],
                "states": [states[key].state for key in ordered],
                "reasons": [states[key].reason for key in ordered],
                "at": [states[key].at for key in ordered],
                "fallbacks": [states[key].fallback_after for key in ordered],
                "settled": list(settled),
            },
        )
        return True
