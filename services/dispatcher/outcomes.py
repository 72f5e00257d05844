"""The stream of outcomes: every change of state once, in order, from a cursor on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from psycopg.rows import dict_row

from services.chassis.errors import InvalidFieldsError, Violation
from services.chassis.postgres import Connection, Pool

CHECKPOINT_SECONDS = 5.0
_POLL_SECONDS = 0.2
_PAGE = 500
_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place between two outcomes: all with a smaller or equal (xid, seq) have been read.

    `epoch` is the database's life: transaction numbers start anew when it is restored from a dump.
    """

    epoch: int
    xid: int
    seq: int

    @classmethod
    def below(cls, epoch: int, horizon: int) -> Self:
        """Returns the last place below a transaction number."""
        return cls(epoch, max(0, horizon - 1), _LAST)

    def __str__(self) -> str:
        return f"{self.epoch}.{self.xid}.{self.seq}"

    @classmethod
    def of(cls, epoch: int, row: Mapping[str, Any]) -> Self:
        """Returns the place right after an outcome of a page."""
        return cls(epoch, row["xid_number"], row["seq"])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a cursor.

        Raises:
            InvalidFieldsError: it is none of ours.
        """
        try:
            epoch, xid, seq = (int(part) for part in text.split("."))
        except ValueError:
            epoch, xid, seq = -1, -1, -1
        if min(epoch, xid, seq) < 0 or max(xid, seq) >= 2**63:
            raise InvalidFieldsError(
                [Violation("cursor", "is no cursor of this system; pass back one that a stream gave, or none")]
            )
        return cls(epoch, xid, seq)


class OutcomeReader:
    """Reads outcomes page by page, for any number of streams."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def start(self, cursor: str, *, from_now: bool) -> Cursor:
        """Returns the place at which a stream starts.

        Raises:
            InvalidFieldsError: the cursor is unreadable, or from before the database was restored.
        """
        async with self._pool.connection() as connection:
            epoch = await _epoch(connection)
            if from_now:
                return Cursor.below(epoch, await _horizon(connection))
        if not cursor:
            return Cursor(epoch, 0, 0)
        parsed = Cursor.parse(cursor)
        if parsed.epoch != epoch:
            raise InvalidFieldsError(
                [Violation("cursor", "is from before the database was restored; start without a cursor")]
            )
        return parsed

    async def page(
        self, cursor: Cursor, tenant: str, intent_ids: Sequence[UUID], limit: int = _PAGE
    ) -> tuple[list[dict[str, Any]], Cursor]:
        """Returns up to `limit` outcomes after a cursor, and the cursor after them.

        Only what lies below the oldest running transaction is read: nothing can commit before it any more. So the
        cursor moves up to there also past the outcomes that the filters leave out.
        """
        filters = ""
        if tenant:
            filters += " AND tenant = %(tenant)s"
        if intent_ids:
            filters += " AND intent_id = ANY(%(intents)s)"
        async with self._pool.connection() as connection:
            # Asked ahead of the rows: what ran then may have ended since, but nothing can have begun below it.
            horizon = await _horizon(connection)
            rows = connection.cursor(row_factory=dict_row)
            await rows.execute(
                f"""
                SELECT xid::text::bigint AS xid_number, * FROM dispatcher.outcomes
                WHERE (xid, seq) > (%(xid)s::text::xid8, %(seq)s)
                    AND xid < %(horizon)s::text::xid8 {filters}
                ORDER BY xid, seq LIMIT %(limit)s
                """,  # noqa: S608 - the filters are the two above
                {
                    "xid": str(cursor.xid),
                    "seq": cursor.seq,
                    "horizon": str(horizon),
                    "tenant": tenant,
                    "intents": list(intent_ids),
                    "limit": limit,
                },
            )
            outcomes = await rows.fetchall()
        if len(outcomes) == limit:
            return outcomes, Cursor(cursor.epoch, outcomes[-1]["xid_number"], outcomes[-1]["seq"])
        return outcomes, max(cursor, Cursor.below(cursor.epoch, horizon))

    async def follow(
        self, cursor: Cursor, tenant: str, intent_ids: Sequence[UUID], stopping: asyncio.Event
    ) -> AsyncIterator[tuple[list[dict[str, Any]], Cursor]]:
        """Yields pages as outcomes come, and an empty one as a checkpoint when nothing does, until stopping."""
        loop = asyncio.get_running_loop()
        checkpoint_at = loop.time() + CHECKPOINT_SECONDS
        while not stopping.is_set():
            outcomes, cursor = await self.page(cursor, tenant, intent_ids)
            if outcomes or loop.time() >= checkpoint_at:
                yield outcomes, cursor
                checkpoint_at = loop.time() + CHECKPOINT_SECONDS
            if len(outcomes) < _PAGE:
                await _wait(stopping, _POLL_SECONDS)


async def _wait(stopping: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return


async def _horizon(connection: Connection) -> int:
    """Returns the number of the oldest transaction that is still running."""
    row = await (await connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")).fetchone()
    return int(row[0]) if row else 0


async def _epoch(connection: Connection) -> int:
    row = await (await connection.execute("SELECT max(epoch) FROM dispatcher.outcome_epoch")).fetchone()
    return int(row[0]) if row else 0
