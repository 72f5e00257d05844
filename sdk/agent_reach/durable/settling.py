"""Writing what becomes of rows: every statement set-based, and fenced by ``(id, owner, claim_no)``."""
# ruff: noqa: S608 - names are checked by `check_name`, the fragments are the programmer's, values are parameters

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from .claims import Claim, ClaimKey, Done, Later, Release, Settlement
from .recordset import Recordset

if TYPE_CHECKING:
    from .queue import TableQueue

# By these a write is refused to whoever lost the row.
_FENCE = {"id": "uuid", "owner": "uuid", "claim_no": "integer"}
_HELD = Recordset(_FENCE)
_RELEASED = Recordset({**_FENCE, "after_seconds": "float8", "given_back": "boolean"})
_VERDICT = {**_FENCE, "done": "boolean", "later_at": "timestamptz", "after_seconds": "float8", "given_back": "boolean"}


def verdict_rows(columns: Mapping[str, str]) -> Recordset:
    """Returns the form of verdicts that bring these columns of the domain's along."""
    return Recordset({**_VERDICT, **columns})


async def write_starts(
    connection: AsyncConnection[Any], queue: TableQueue, claims: Sequence[Claim]
) -> dict[UUID, int]:
    """Notes that work starts; returns the attempts, this one included, by id of those that passed the fence."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        f"""
        UPDATE {queue.table} AS t
        SET {queue.started}
        FROM {_HELD.source("s")}
        WHERE t.id = s.id AND t.owner = s.owner AND t.claim_no = s.claim_no
        RETURNING t.id, t.attempts
        """,
        {**queue.parameters, "s": _HELD.encode(_fence(claim) for claim in claims)},
    )
    return dict(await cursor.fetchall())


async def write_verdicts(
    connection: AsyncConnection[Any], queue: TableQueue, settlements: Sequence[Settlement]
) -> set[ClaimKey]:
    """Finishes rows, or puts them back for later; returns the claims that passed the fence."""
    own = "".join(f", s.{name}" for name in queue.verdict_columns)
    beside = queue.beside(settlements)
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        f"""
        WITH settled AS (
            UPDATE {queue.table} AS t
            SET owner = NULL,
                run_at = CASE WHEN s.done THEN t.run_at
                    ELSE coalesce(s.later_at, clock_timestamp() + make_interval(secs => s.after_seconds)) END,
                finished_at = CASE WHEN s.done THEN clock_timestamp() END,
                attempts = t.attempts - (s.given_back AND t.started_at IS NOT NULL)::integer,
                suspect = t.suspect AND NOT s.done AND (t.started_at IS NULL OR s.given_back),
                started_at = NULL
                {queue.verdict_extra}
            FROM {queue.verdict_rows.source("s")}
            WHERE t.id = s.id AND t.owner = s.owner AND t.claim_no = s.claim_no
            RETURNING t.id, s.owner, s.claim_no{own}
        ){f", beside AS ({beside})" if beside else ""}
        SELECT id, claim_no FROM settled
        """,
        {**queue.parameters, "s": queue.verdict_rows.encode(_verdict(queue, each) for each in settlements)},
    )
    return set(await cursor.fetchall())


async def write_releases(
    connection: AsyncConnection[Any], queue: TableQueue, settlements: Sequence[Settlement]
) -> set[ClaimKey]:
    """Puts rows back without a verdict; returns the claims that passed the fence."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        f"""
        WITH held AS MATERIALIZED (
            SELECT t.id, s.after_seconds, t.started_at IS NOT NULL AND NOT s.given_back AS started,
                (t.started_at IS NOT NULL AND s.given_back)::integer AS given_back
            FROM {queue.table} AS t, {_RELEASED.source("s")}
            WHERE t.id = s.id AND t.owner = s.owner AND t.claim_no = s.claim_no
            FOR UPDATE OF t
        )
        UPDATE {queue.table} AS t
        SET owner = NULL,
            run_at = CASE WHEN s.after_seconds > 0
                THEN greatest(t.run_at, clock_timestamp() + make_interval(secs => s.after_seconds))
                ELSE t.run_at END,
            attempts = t.attempts - s.given_back,
            suspect = t.suspect AND NOT s.started,
            started_at = NULL
            {queue.release_extra}
        FROM held AS s WHERE t.id = s.id
        RETURNING t.id, t.claim_no, s.started
        """,
        {**queue.parameters, "s": _RELEASED.encode(_releases(queue, settlements))},
    )
    released = await cursor.fetchall()
    if started := [row_id for row_id, _, was_started in released if was_started]:
        await queue.returned(connection, started)
    return {(row_id, claim_no) for row_id, claim_no, _ in released}


def _fence(claim: Claim) -> tuple[UUID, UUID, int]:
    return claim.id, claim.owner, claim.claim_no


def _verdict(queue: TableQueue, settlement: Settlement) -> tuple[object, ...]:
    claim, action = settlement.claim, settlement.action
    later_at, after = (action.run_at, action.after_seconds or 0.0) if isinstance(action, Later) else (None, 0.0)
    given_back = queue.counts_attempts and not action.counted
    how = (isinstance(action, Done), later_at, after, given_back)
    return claim.id, claim.owner, claim.claim_no, *how, *queue.verdict(settlement)


def _releases(queue: TableQueue, settlements: Sequence[Settlement]) -> Iterable[tuple[object, ...]]:
    for settlement in settlements:
        action = settlement.action
        after = action.after_seconds if isinstance(action, Release) else 0.0
        yield (*_fence(settlement.claim), after, queue.counts_attempts and not action.counted)
