"""Writing what becomes of rows: every statement set-based, and fenced by ``(id, owner, claim_no)``."""
# ruff: noqa: S608 - names are checked by `check_name`, the fragments are the programmer's, values are parameters

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from .claims import Claim, ClaimKey, Later, Release, Settlement
from .recordset import Recordset

if TYPE_CHECKING:
    from .queue import TableQueue

# With the owner, by these a write is refused to whoever lost the row.
_FENCE = {"id": "uuid", "claim_no": "integer"}
_HELD = Recordset(_FENCE)
_RELEASED = Recordset({**_FENCE, "after_seconds": "float8", "given_back": "boolean"})
# Neither of the two moments says that it is done. NULLs cost less than values here.
_VERDICT = {**_FENCE, "later_at": "timestamptz", "after_seconds": "float8", "given_back": "boolean"}
_DONE = "s.later_at IS NULL AND s.after_seconds IS NULL"


def verdict_rows(columns: Mapping[str, str]) -> Recordset:
    """Returns the form of verdicts that bring these columns of the domain's along."""
    return Recordset({**_VERDICT, **columns})


async def write_starts(
    connection: AsyncConnection[Any], queue: TableQueue, owner: UUID, claims: Sequence[Claim]
) -> dict[UUID, int]:
    """Notes that work starts; returns the attempts, this one included, by id of those that passed the fence."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        f"""
        UPDATE {queue.table} AS t
        SET {queue.started}
        FROM {_HELD.source("s")}
        WHERE t.id = s.id AND t.owner = %(owner)s AND t.claim_no = s.claim_no
        RETURNING t.id, t.attempts
        """,
        {**queue.parameters, "owner": owner, "s": _HELD.encode((claim.id, claim.claim_no) for claim in claims)},
    )
    return dict(await cursor.fetchall())


async def write_verdicts(
    connection: AsyncConnection[Any], queue: TableQueue, owner: UUID, settlements: Sequence[Settlement]
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
                run_at = coalesce(s.later_at, clock_timestamp() + make_interval(secs => s.after_seconds), t.run_at),
                finished_at = CASE WHEN {_DONE} THEN clock_timestamp() END,
                attempts = t.attempts - {_one_if(queue, "s.given_back IS TRUE AND t.started_at IS NOT NULL")},
                suspect = t.suspect AND NOT ({_DONE}) AND (t.started_at IS NULL OR s.given_back IS TRUE),
                started_at = NULL
                {queue.verdict_extra}
            FROM {queue.verdict_rows.source("s")}
            WHERE t.id = s.id AND t.owner = %(owner)s AND t.claim_no = s.claim_no
            RETURNING t.id, s.claim_no, t.run_at{own}
        ){f", beside AS ({beside})" if beside else ""}
        SELECT id, claim_no FROM settled
        """,
        {
            **queue.parameters,
            "owner": owner,
            "s": queue.verdict_rows.encode(_verdict(queue, each) for each in settlements),
        },
    )
    return set(await cursor.fetchall())


async def write_releases(
    connection: AsyncConnection[Any], queue: TableQueue, owner: UUID, settlements: Sequence[Settlement]
) -> set[ClaimKey]:
    """Puts rows back without a verdict; returns the claims that passed the fence."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(
        f"""
        WITH held AS MATERIALIZED (
            SELECT t.id, s.after_seconds, t.started_at IS NOT NULL AND NOT s.given_back AS started,
                {_one_if(queue, "t.started_at IS NOT NULL AND s.given_back")} AS given_back
            FROM {queue.table} AS t, {_RELEASED.source("s")}
            WHERE t.id = s.id AND t.owner = %(owner)s AND t.claim_no = s.claim_no
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
        {**queue.parameters, "owner": owner, "s": _RELEASED.encode(_releases(settlements))},
    )
    released = await cursor.fetchall()
    if started := [row_id for row_id, _, was_started in released if was_started]:
        await queue.returned(connection, started)
    return {(row_id, claim_no) for row_id, claim_no, _ in released}


def _verdict(queue: TableQueue, settlement: Settlement) -> tuple[object, ...]:
    claim, action = settlement.claim, settlement.action
    later_at = after = None
    if isinstance(action, Later):
        later_at, after = action.run_at, action.after_seconds
        if later_at is None and after is None:
            after = 0.0
    given_back = None if action.counted else True
    return claim.id, claim.claim_no, later_at, after, given_back, *queue.verdict(settlement)


def _releases(settlements: Sequence[Settlement]) -> Iterable[tuple[object, ...]]:
    for settlement in settlements:
        claim, action = settlement.claim, settlement.action
        after = action.after_seconds if isinstance(action, Release) else 0.0
        yield claim.id, claim.claim_no, after, not action.counted


def _one_if(queue: TableQueue, condition: str) -> str:
    """Returns SQL for the attempt that is given back on a condition, of a queue that counts them."""
    return f"({condition})::integer" if queue.counts_attempts else "0"
