"""Digests: tasks of one user and scene that wait together and leave as one message.

A digest is a task of its own, under an intent of its own. While it gathers, `digest_key` makes it the only one of its
kind. Adding a part locks its row; flushing closes it, by taking the key away, before the parts are read: a part is
either seen, or finds the digest closed and opens the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row
from uuid6 import uuid7

from agent_reach.durable import Claim, Recordset
from services.catalog.rules import SceneRules
from services.chassis.hashing import hash_parts
from services.chassis.postgres import Connection

from .model import Gathering
from .states import WITHDRAWABLE, State
from .telling import LIVE_PART, tell

GATHERED = "gathered"
# The policy's own reason for a message that expires in the night.
_EXPIRES_IN_THE_NIGHT = "expires_before_quiet_end"

_NEW = Recordset(
    {
        "id": "uuid",
        "part_id": "uuid",
        "digest_key": "bytea",
        "priority": "smallint",
        "expires_at": "timestamptz",
        "run_at": "timestamptz",
    }
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Where parts have gone.

    Attributes:
        digests: the digest's id by the part's task id.
        full: whether one of the digests is complete, and so due now.
    """

    digests: Mapping[UUID, UUID]
    full: bool


def gathering_of(scene: SceneRules, until: datetime) -> Gathering:
    """Returns how a scene's task is gathered, until a moment that the policy named."""
    # A scene whose digest was switched off a moment ago sends what is on its way as a digest of one.
    return Gathering(until, scene.digest.max_items if scene.digest is not None else 1)


async def gather(connection: Connection, parts: Mapping[UUID, Gathering]) -> Gathered:
    """Adds tasks to the digests of their kind, and tells it; a digest that is full is closed and due.

    Args:
        connection: in a transaction, in which the tasks were inserted, or settled as theirs.
        parts: by task id; each is finished in state SCHEDULED.
    """
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(
        """
        SELECT id, tenant, user_id, scene, template, wishes, priority, expires_at FROM dispatcher.tasks
        WHERE id = ANY(%s) ORDER BY id
        """,
        (list(parts),),
    )
    waiting: dict[bytes, list[dict[str, Any]]] = {}
    for row in await cursor.fetchall():
        waiting.setdefault(_key(row), []).append(row)
    digests: dict[UUID, UUID] = {}
    full = False
    while waiting:
        opened = await _open(connection, waiting, parts)
        filled = await _filled(connection, list(opened.values()))
        complete: list[UUID] = []
        for key, digest in opened.items():
            rows = waiting.pop(key)
            limit = parts[rows[0]["id"]].max_items
            room = len(rows) if limit is None else max(0, limit - filled.get(digest, 0))
            digests |= {row["id"]: digest for row in rows[:room]}
            if limit is not None and room <= len(rows):
                complete.append(digest)
            if rows[room:]:
                waiting[key] = rows[room:]
        if complete:
            full = True
            await connection.execute(
                "UPDATE dispatcher.tasks SET digest_key = NULL, run_at = clock_timestamp() WHERE id = ANY(%s)",
                (complete,),
            )
    await _add(connection, digests)
    return Gathered(digests, full)


async def _open(
    connection: Connection, waiting: Mapping[bytes, Sequence[Mapping[str, Any]]], parts: Mapping[UUID, Gathering]
) -> dict[bytes, UUID]:
    """Locks the open digest of each kind, or opens one; returns their ids by key."""
    # In one order everywhere, so that batches that share digests cannot deadlock.
    rows = [
        (
            uuid7(), members[0]["id"], key, max(row["priority"] for row in members),
            max(row["expires_at"] for row in members), parts[members[0]["id"]].until,
        )
        for key, members in sorted(waiting.items())
    ]  # fmt: skip
    cursor = await connection.execute(
        f"""
        INSERT INTO dispatcher.tasks AS d
            (id, intent_id, hop, tenant, user_id, bare_channel, bare_address, scene, category, template, variables,
             wishes, traceparent, state, reason, evaluate, gathered, digest_key, priority, expires_at, run_at)
        SELECT n.id, n.id, 0, t.tenant, t.user_id, t.bare_channel, t.bare_address, t.scene, t.category, t.template,
            '{{}}', t.wishes, t.traceparent, 'SCHEDULED', %(gathered)s, true, true, n.digest_key, n.priority,
            n.expires_at, greatest(n.run_at, clock_timestamp())
        FROM {_NEW.source("n")} JOIN dispatcher.tasks AS t ON t.id = n.part_id
        ORDER BY n.digest_key
        ON CONFLICT (digest_key) WHERE digest_key IS NOT NULL DO UPDATE
            SET priority = greatest(d.priority, excluded.priority),
                -- Whatever is due in the past of its priority is where the engine looks last.
                run_at = CASE WHEN excluded.priority > d.priority THEN greatest(d.run_at, clock_timestamp())
                    ELSE d.run_at END,
                expires_at = greatest(d.expires_at, excluded.expires_at)
        RETURNING digest_key, id
        """,  # noqa: S608 - the names are this module's own
        {"n": _NEW.encode(rows), "gathered": GATHERED},
    )
    return {bytes(key): digest for key, digest in await cursor.fetchall()}


async def _filled(connection: Connection, digests: Sequence[UUID]) -> dict[UUID, int]:
    """Counts the parts of locked digests; a statement of its own, because only it sees what was added last."""
    cursor = await connection.execute(
        f"SELECT p.gathered_into, count(*) FROM dispatcher.tasks AS p WHERE p.gathered_into = ANY(%s) AND {LIVE_PART}"  # noqa: S608
        " GROUP BY 1",
        (list(digests),),
    )
    return dict(await cursor.fetchall())


async def _add(connection: Connection, digests: Mapping[UUID, UUID]) -> None:
    values = (list(digests), list(digests.values()))
    await connection.execute(
        """
        UPDATE dispatcher.tasks AS t SET gathered_into = n.digest
        FROM unnest(%s::uuid[], %s::uuid[]) AS n(id, digest) WHERE t.id = n.id
        """,
        values,
    )
    await connection.execute(
        """
        INSERT INTO dispatcher.outcomes
            (tenant, intent_id, task_id, hop, user_id, scene, state, reason, channel, attempts)
        SELECT tenant, intent_id, gathered_into, 0, user_id, scene, state, reason, channel, 0
        FROM dispatcher.tasks WHERE id = ANY(%s)
        """,
        (list(digests),),
    )


async def flush(connection: Connection, claims: Sequence[Claim], now: datetime) -> dict[UUID, list[dict[str, Any]]]:
    """Closes digests that are due and reads their parts; parts that have expired end here, each told of its own.

    Args:
        connection: in a transaction.
        claims: the digests, hop 0 or 1.
        now: what expires by then does not leave.

    Returns:
        By the digest's intent, its parts in the order in which they were submitted: ``variables``, ``expires_at``. A
        digest that is not ours any more has none.
    """
    owned = await connection.execute(
        """
        UPDATE dispatcher.tasks AS t SET digest_key = NULL
        FROM unnest(%s::uuid[], %s::uuid[], %s::integer[]) AS n(id, owner, claim_no)
        WHERE t.id = n.id AND t.owner = n.owner AND t.claim_no = n.claim_no
        RETURNING t.intent_id
        """,
        (
            [claim.id for claim in claims],
            [claim.owner for claim in claims],
            [claim.claim_no for claim in claims],
        ),
    )
    digests = [row[0] for row in await owned.fetchall()]
    await _end_parts(connection, dict.fromkeys(digests, now), State.EXPIRED, "expired")
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(
        f"""
        SELECT p.gathered_into, p.variables, p.expires_at FROM dispatcher.tasks AS p
        WHERE p.gathered_into = ANY(%s) AND {LIVE_PART} ORDER BY p.gathered_into, p.submitted_at, p.intent_id
        """,  # noqa: S608 - the fragment is our own
        (digests,),
    )
    found: dict[UUID, list[dict[str, Any]]] = {}
    for row in await cursor.fetchall():
        found.setdefault(row["gathered_into"], []).append(row)
    return found


async def leave_behind(connection: Connection, held: Mapping[UUID, datetime]) -> None:
    """Ends, and tells of, the parts that would expire while quiet hours hold their digest: they need not wait.

    Args:
        connection: in a transaction.
        held: by the digest's intent, until when it is held.
    """
    await _end_parts(connection, held, State.SUPPRESSED, _EXPIRES_IN_THE_NIGHT)


async def _end_parts(connection: Connection, expiring: Mapping[UUID, datetime], state: State, reason: str) -> None:
    """Ends the parts of digests that expire by a moment, each told of its own."""
    await connection.execute(
        f"""
        WITH ended AS (
            UPDATE dispatcher.tasks AS p
            SET state = %s, reason = %s, state_at = clock_timestamp()
            FROM unnest(%s::uuid[], %s::timestamptz[]) AS n(digest, moment)
            WHERE p.gathered_into = n.digest AND {LIVE_PART} AND p.expires_at <= n.moment
            RETURNING p.*
        )
        {tell("ended AS t")}
        """,  # noqa: S608 - the fragments are our own
        (state, reason, list(expiring), list(expiring.values())),
    )


async def withdraw(connection: Connection, intent_id: UUID) -> State | None:
    """Takes a part out of its digest, if nothing of that has been tried yet.

    Whoever holds the digest loses it: what they have rendered has the part in it, so it is judged and rendered anew.

    Args:
        connection: in a transaction.
        intent_id: the part's intent.

    Returns:
        The state in which the intent stands; None for one that is no part of a digest.
    """
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(
        """
        SELECT id, gathered_into, state FROM dispatcher.tasks
        WHERE intent_id = %s AND gathered_into IS NOT NULL FOR UPDATE
        """,
        (intent_id,),
    )
    part = await cursor.fetchone()
    if part is None:
        return None
    if part["state"] != State.SCHEDULED:
        return State(part["state"])
    await cursor.execute(
        """
        SELECT id, state, finished_at IS NULL AND attempts = 0 AND NOT suspect AS untried FROM dispatcher.tasks
        WHERE intent_id = %s ORDER BY hop DESC LIMIT 1 FOR UPDATE
        """,
        (part["gathered_into"],),
    )
    digest = await cursor.fetchone()
    assert digest is not None, "a digest is older than its parts"
    if not digest["untried"] or State(digest["state"]) not in WITHDRAWABLE:
        return State(digest["state"])
    await cursor.execute(
        f"""
        WITH withdrawn AS (
            UPDATE dispatcher.tasks
            SET state = 'SUPPRESSED', reason = 'cancelled', state_at = clock_timestamp() WHERE id = %s
            RETURNING *
        )
        {tell("withdrawn AS t")}
        """,  # noqa: S608 - the fragment is our own
        (part["id"],),
    )
    await cursor.execute(
        "UPDATE dispatcher.tasks SET owner = NULL, evaluate = true, run_at = greatest(run_at, clock_timestamp())"
        " WHERE id = %s",
        (digest["id"],),
    )
    return State.SUPPRESSED


def _key(row: Mapping[str, Any]) -> bytes:
    return hash_parts(row["tenant"], row["scene"], row["user_id"], row["template"], *row["wishes"])
