"""Writing what becomes of rows: every statement set-based, and fenced by ``(id, owner, claim_no)``."""
# ruff: noqa: S608 - names are checked by `check_name`, the fragments are the programmer's, values are parameters

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from .claims import Claim, Done, Later, Release, Settlement

if TYPE_CHECKING:
    from .queue import TableQueue


async def write_verdicts(
    connection: AsyncConnection[Any], queue: TableQueue, settlements: Sequence[Settlement]
) -> set[UUID]:
    """Finishes rows, or puts them back for later; returns the ids that passed the fence."""
    actions = [settlement.action for settlement in settlements]
    laters = [action if isinstance(action, Later) else None for action in actions]
    own = zip(*(queue.verdict(settlement) for settlement in settlements), strict=True)
    extra = {f"own_{name}": list(values) for name, values in zip(queue.verdict_columns, own, strict=True)}
    names = "".join(f", {name}" for name in queue.verdict_columns)
    arrays = "".join(f", %(own_{name})s::{kind}[]" for name, kind in queue.verdict_columns.items())
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        f"""
        UPDATE {queue.table} AS t
        SET owner = NULL,
            run_at = CASE WHEN s.done THEN t.run_at
                ELSE coalesce(s.run_at, clock_timestamp() + make_interval(secs => s.after_seconds)) END,
            finished_at = CASE WHEN s.done THEN clock_timestamp() END,
            attempts = t.attempts - (s.given_back AND t.started_at IS NOT NULL)::integer,
            suspect = t.suspect AND NOT s.done AND (t.started_at IS NULL OR s.given_back),
            started_at = NULL
            {queue.verdict_extra}
        FROM unnest(
            %(ids)s::uuid[], %(owners)s::uuid[], %(claim_nos)s::integer[], %(done)s::boolean[],
            %(run_at)s::timestamptz[], %(after_seconds)s::float8[], %(given_back)s::boolean[]{arrays}
        ) AS s(id, owner, claim_no, done, run_at, after_seconds, given_back{names})
        WHERE t.id = s.id AND t.owner = s.owner AND t.claim_no = s.claim_no
        RETURNING t.id
        """,
        {
            **queue.parameters,
            **extra,
            **fence([settlement.claim for settlement in settlements]),
            "done": [isinstance(action, Done) for action in actions],
            "run_at": [later and later.run_at for later in laters],
            "after_seconds": [(later and later.after_seconds) or 0.0 for later in laters],
            "given_back": [queue.counts_attempts and later is not None and not later.counted for later in laters],
        },
    )
    return {row[0] for row in await cursor.fetchall()}


async def write_releases(
    connection: AsyncConnection[Any], queue: TableQueue, settlements: Sequence[Settlement]
) -> set[UUID]:
    """Puts rows back without a verdict; returns the ids that passed the fence."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        f"""
        WITH held AS MATERIALIZED (
            SELECT t.id, s.after_seconds, t.started_at IS NOT NULL AS started
            FROM {queue.table} AS t, unnest(
                %(ids)s::uuid[], %(owners)s::uuid[], %(claim_nos)s::integer[], %(after_seconds)s::float8[]
            ) AS s(id, owner, claim_no, after_seconds)
            WHERE t.id = s.id AND t.owner = s.owner AND t.claim_no = s.claim_no
            FOR UPDATE OF t
        )
        UPDATE {queue.table} AS t
        SET owner = NULL,
            run_at = CASE WHEN s.after_seconds > 0
                THEN greatest(t.run_at, clock_timestamp() + make_interval(secs => s.after_seconds))
                ELSE t.run_at END,
            suspect = t.suspect AND NOT s.started,
            started_at = NULL
            {queue.release_extra}
        FROM held AS s WHERE t.id = s.id
        RETURNING t.id, s.started
        """,
        {
            **queue.parameters,
            **fence([settlement.claim for settlement in settlements]),
            "after_seconds": [
                settlement.action.after_seconds if isinstance(settlement.action, Release) else 0.0
                for settlement in settlements
            ],
        },
    )
    released = await cursor.fetchall()
    if started := [row_id for row_id, was_started in released if was_started]:
        await queue.returned(connection, started)
    return {row_id for row_id, _ in released}


def fence(claims: Sequence[Claim]) -> dict[str, list[Any]]:
    """Returns the parameters `ids`, `owners` and `claim_nos`, by which a write is refused to whoever lost the row."""
    return {
        "ids": [claim.id for claim in claims],
        "owners": [claim.owner for claim in claims],
        "claim_nos": [claim.claim_no for claim in claims],
    }
