"""The same text, to the same user, on the same channel, goes out once: a row per text says which task may send it.

A task takes the row before each attempt. It keeps it once it may have left, until the scene's window ends; in the
transaction that ends it unsent, the row goes away, so that a duplicate which waits can take its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

import structlog

from agent_reach.durable import Claim, Recordset
from services.chassis.faults import is_database_outage
from services.chassis.postgres import Connection, Pool

# Past windows only take room.
_SWEEP_SECONDS = 60.0
_SWEEP_ROWS = 5_000

_WANTED = Recordset(
    {
        "tenant": "text",
        "user_id": "text",
        "channel": "text",
        "fingerprint": "bytea",
        "task_id": "uuid",
        "seconds": "float8",
    }
)

_log = structlog.get_logger(__name__)

_Text = tuple[str, str, str, bytes]


@dataclass(frozen=True, slots=True)
class Twin:
    """The task that has the right to send the same text.

    Attributes:
        left: it may have left; else it still waits, or is being sent.
        due_seconds: until it is due, while it waits.
    """

    left: bool
    due_seconds: float


def may_have_left(task: str) -> str:
    """Returns SQL that says whether a task that ended may have reached the person all the same."""
    return f"""({task}.reason = 'unknown' OR EXISTS (
        SELECT FROM dispatcher.attempts AS a WHERE a.task_id = {task}.id AND a.result IN ('accepted', 'unknown')
    ))"""


async def take(connection: Connection, wanted: Iterable[tuple[Claim, timedelta]]) -> dict[UUID, Twin]:
    """Takes the right to send for tasks that are about to leave, the first of equals before the others.

    Args:
        connection: in a transaction.
        wanted: the tasks and the windows of their scenes, the most urgent first.

    Returns:
        By task id, who has the right instead; whoever is not in it has taken it.
    """
    firsts: dict[_Text, tuple[Claim, timedelta]] = {}
    others: list[Claim] = []
    for claim, window in wanted:
        if _text(claim) in firsts:
            others.append(claim)
        else:
            firsts[_text(claim)] = claim, window
    # In one order everywhere, so that batches that share texts cannot deadlock.
    rows = [(*text, claim.id, window.total_seconds()) for text, (claim, window) in sorted(firsts.items())]
    cursor = await connection.execute(
        f"""
        INSERT INTO dispatcher.fingerprints AS f (tenant, user_id, channel, fingerprint, task_id, until)
        SELECT tenant, user_id, channel, fingerprint, task_id, clock_timestamp() + make_interval(secs => seconds)
        FROM {_WANTED.source("wanted")}
        ON CONFLICT (tenant, user_id, channel, fingerprint) DO UPDATE
            SET task_id = excluded.task_id, until = excluded.until
            WHERE f.task_id = excluded.task_id OR f.until <= clock_timestamp()
        RETURNING task_id
        """,  # noqa: S608 - the names are this module's own
        {"wanted": _WANTED.encode(rows)},
    )
    taken = {row[0] for row in await cursor.fetchall()}
    others += [claim for claim, _ in firsts.values() if claim.id not in taken]
    if not others:
        return {}
    twins = await _twins(connection, others)
    # One that is gone by now has just lost the right: whoever asks next gets it.
    return {claim.id: twins.get(_text(claim), Twin(left=False, due_seconds=0.0)) for claim in others}


async def _twins(connection: Connection, claims: Sequence[Claim]) -> dict[_Text, Twin]:
    cursor = await connection.execute(
        f"""
        SELECT f.tenant, f.user_id, f.channel, f.fingerprint, t.finished_at IS NOT NULL,
            greatest(extract(epoch FROM t.run_at - clock_timestamp()), 0)::float8
        FROM {_WANTED.source("wanted")}
        JOIN dispatcher.fingerprints AS f USING (tenant, user_id, channel, fingerprint)
        JOIN dispatcher.tasks AS t ON t.id = f.task_id
        """,  # noqa: S608 - the names are this module's own
        {"wanted": _WANTED.encode((*_text(claim), claim.id, 0.0) for claim in claims)},
    )
    return {(row[0], row[1], row[2], bytes(row[3])): Twin(row[4], row[5]) for row in await cursor.fetchall()}


async def let_go(connection: Connection, task_ids: Sequence[UUID]) -> None:
    """Gives up the right of tasks that do not send now what they meant to send."""
    await connection.execute("DELETE FROM dispatcher.fingerprints WHERE task_id = ANY(%s)", (list(task_ids),))


async def let_go_unsent(connection: Connection, task_ids: Sequence[UUID]) -> None:
    """Gives up the right of those tasks among some that have ended and certainly never left."""
    await connection.execute(
        f"""
        DELETE FROM dispatcher.fingerprints AS f USING dispatcher.tasks AS t
        WHERE f.task_id = ANY(%s) AND t.id = f.task_id AND t.state IN ('FAILED', 'SUPPRESSED', 'EXPIRED')
            AND NOT {may_have_left("t")}
        """,  # noqa: S608 - see `may_have_left`
        (list(task_ids),),
    )


async def sweep(pool: Pool) -> NoReturn:
    """Deletes rows whose window has ended, for ever."""
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        try:
            while await _sweep_some(pool) == _SWEEP_ROWS:
                pass
        except Exception as error:  # noqa: BLE001 - old rows do no harm, and the next round comes
            if not is_database_outage(error):
                _log.exception("fingerprints_not_swept")


async def _sweep_some(pool: Pool) -> int:
    async with pool.connection() as connection:
        cursor = await connection.execute(
            """
            DELETE FROM dispatcher.fingerprints WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM dispatcher.fingerprints WHERE until < clock_timestamp()
                LIMIT %s FOR UPDATE SKIP LOCKED
            ))
            """,
            (_SWEEP_ROWS,),
        )
        return cursor.rowcount


def _text(claim: Claim) -> _Text:
    row: Mapping[str, Any] = claim.row
    return row["tenant"], row["user_id"], row["channel"], bytes(row["fingerprint"])
