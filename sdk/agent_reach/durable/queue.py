"""A table as a queue: all SQL that touches a queue's rows, every statement set-based and fenced."""
# ruff: noqa: S608 - names are checked by `check_name`, the fragments are the programmer's, values are parameters

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from .claims import Claim, Claimed, ClaimKey, Release, Settlement
from .ddl import check_name
from .reading import fetch_readable
from .settling import verdict_rows, write_releases, write_starts, write_verdicts

_Item = TypeVar("_Item")

PRIORITIES = tuple(range(10))
_PRIORITIES = f"'{{{','.join(map(str, PRIORITIES))}}}'::smallint[]"

# PostgreSQL's years reach further than Python's, and a moment may be infinite. Such rows are read as at the edges.
_RUN_AT = "least(greatest({0}.run_at, '1970-01-01Z'), '9999-12-31Z')"
_CLAIM_COLUMNS = (
    *("t.id", "t.claim_no", "t.attempts", _RUN_AT.format("t"), "t.priority", "t.suspect"),
    "t.started_at IS NOT NULL",
)
# A row that cannot be read is looked at again after so long: somebody may have mended it.
_UNREADABLE_SECONDS = 3600.0


class TableQueue:
    """A table with the durable columns (:func:`queue_columns`), seen as a queue.

    Subclass it to write the domain's columns and outcome rows in the transaction that settles (:meth:`apply`), or
    to settle with one statement of your own (:meth:`settle`).

    Args:
        table: with its schema, ``"dispatcher.tasks"``; also the name of its NOTIFY channel.
        columns: the domain's columns that every claim brings along in ``Claim.row``. Where a value does not load (a
            timestamp that is ``infinity``), that row alone is set aside (:meth:`unreadable`).
        counts_attempts: False where attempts mean nothing (a pump that tries for ever).
        start_assignments: SQL for the SET clause when work starts, such as ``"state = 'SENDING'"``. The row's
            columns are named ``t.…``.
        release_assignments: SQL for the SET clause when a row goes back without a verdict, because its owner died
            or handed it back: ``"state = CASE WHEN t.state = 'SENDING' THEN 'PENDING' ELSE t.state END"``.
        verdict_columns: what :meth:`verdict` gives for each settlement, by name with the SQL type.
        verdict_assignments: SQL for the SET clause when a row is settled by a verdict; it names these as ``s.…``, and
            comes after the durable columns, none of which it may set.
        condition: SQL that a row must meet to be claimed by this process, such as ``"t.code = ANY(%(codes)s)"``.
        parameters: the values of the placeholders in the texts above.

    Raises:
        ValueError: a name is not a plain lower-case SQL name.
    """

    def __init__(
        self,
        table: str,
        columns: Sequence[str] = (),
        *,
        counts_attempts: bool = True,
        start_assignments: str = "",
        release_assignments: str = "",
        verdict_columns: Mapping[str, str] | None = None,
        verdict_assignments: str = "",
        condition: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        schema, _, name = table.partition(".")
        self.schema = check_name(schema)
        self.table = f"{schema}.{check_name(name)}"
        self.columns = tuple(check_name(column) for column in columns)
        self.counts_attempts = counts_attempts
        self.parameters = dict(parameters or {})
        counted = "(t.started_at IS NULL)::integer" if counts_attempts else "0"
        self.started = (
            f"attempts = t.attempts + {counted}, started_at = coalesce(t.started_at, clock_timestamp())"
            f"{f', {start_assignments}' if start_assignments else ''}"
        )
        self.release_extra = f", {release_assignments}" if release_assignments else ""
        self.verdict_columns = tuple(check_name(column) for column in verdict_columns or {})
        self.verdict_rows = verdict_rows(verdict_columns or {})
        self.verdict_extra = f", {verdict_assignments}" if verdict_assignments else ""
        self._condition = f"AND ({condition})" if condition else ""

    @property
    def name(self) -> str:
        """The queue's name: its table, with the schema."""
        return self.table

    @property
    def starts_in_one_statement(self) -> bool:
        """Whether :meth:`start` needs no transaction around it."""
        return type(self).start is TableQueue.start

    def settles_in_one_statement(self, settlements: Sequence[Settlement]) -> bool:
        """Says whether :meth:`settle` and :meth:`apply` of these need no transaction around them."""
        own = type(self)
        if own.settle is not TableQueue.settle or own.apply is not TableQueue.apply:
            return False
        owner = settlements[0].claim.owner
        return all(each.claim.owner == owner and not isinstance(each.action, Release) for each in settlements)

    # -- for the domain to override -------------------------------------------------------------------------------

    def verdict(self, settlement: Settlement) -> Sequence[object]:  # noqa: ARG002 - for those who override it
        """Returns the values of ``verdict_columns`` for one settlement, in their order."""
        return ()

    def beside(self, settlements: Sequence[Settlement]) -> str:  # noqa: ARG002 - for those who override it
        """Returns a statement that is done in the one that settles these, such as an INSERT into a log; "" is none.

        It reads what passed the fence from ``settled``, which has ``id``, ``claim_no``, ``run_at`` (as it is from now on)
        and the ``verdict_columns``; their owner is ``%(owner)s``. Where that is enough, it costs less than :meth:`apply`.
        """
        return ""

    async def apply(self, connection: AsyncConnection[Any], settled: Sequence[Settlement]) -> None:
        """Writes the domain's part of settlements that passed the fence, before they commit.

        Called with the :class:`Done` and :class:`Later` ones only, one to 500 at a time. If it raises for one
        settlement, the engine finds that one by bisection and commits the others, so it must do nothing outside
        the transaction.
        """

    async def returned(self, connection: AsyncConnection[Any], ids: Sequence[UUID]) -> None:
        """Writes the domain's part for rows that went back without a verdict after work on them had started.

        Called after ``release_assignments`` were applied, in the same transaction: when the rows were released, and
        when they were swept from a dead owner.
        """

    def unreadable(self, claim: Claim, error: Exception) -> Settlement:  # noqa: ARG002 - for those who override it
        """Says what becomes of a row whose columns cannot be read, and that no handler can be given therefore.

        Here it is put off for an hour, so that it comes up in the log again and again and is in nobody's way. A queue
        whose rows can fail answers ``Done`` with a result that says so.

        Args:
            claim: without ``row``.
            error: what reading it raised. Its text may quote the value.
        """
        return Settlement(claim, Release(_UNREADABLE_SECONDS, counted=False))

    async def settle(self, connection: AsyncConnection[Any], settlements: Sequence[Settlement]) -> set[ClaimKey]:
        """Puts rows back or finishes them, where the fence ``(id, owner, claim_no)`` still holds.

        Runs in the caller's transaction, before :meth:`apply`. An override that does all in one statement sets the
        durable columns as this one does and returns what passed.

        Returns:
            The claims that passed; for the others somebody else has the say by now. Two claims of one row may be
            settled together, of which at most one passes.
        """
        passed: set[ClaimKey] = set()
        for owner, ours in _by_owner(settlements, lambda settlement: settlement.claim):
            verdicts = [settlement for settlement in ours if not isinstance(settlement.action, Release)]
            releases = [settlement for settlement in ours if isinstance(settlement.action, Release)]
            if verdicts:
                passed |= await write_verdicts(connection, self, owner, verdicts)
            if releases:
                passed |= await write_releases(connection, self, owner, releases)
        return passed

    # -- what the engine calls --------------------------------------------------------------------------------------

    async def claim(
        self,
        connection: AsyncConnection[Any],
        owner: UUID,
        limit: int,
        *,
        horizon_seconds: float = 0.0,
        low_water: Sequence[datetime | None] = (None,) * len(PRIORITIES),
        priority_boost_seconds: float = 60.0,
        suspects: bool = False,
        start: bool = False,
    ) -> Claimed:
        """Takes up to ``limit`` rows that are due within the horizon, if the owner's lease is there.

        Priority goes first and age second, but age counts too: the priority whose oldest row has waited the longest,
        with ``priority_boost_seconds`` credited per step of priority, goes first. Rows that another process is
        claiming at this moment are skipped, not waited for.

        Args:
            connection: in a transaction, or in autocommit.
            owner: the instance that claims.
            limit: how many rows at most.
            horizon_seconds: how far ahead of the database's clock ``run_at`` may lie.
            low_water: for each priority, the ``run_at`` below which there is nothing to be found; None is no bound.
                It spares the scan the dead index entries that a long snapshot keeps from being vacuumed.
            priority_boost_seconds: the age that one step of priority is worth.
            suspects: take only the rows whose owner died at work, or only the others.
            start: note that work on the rows starts, as :meth:`start` does.
        """
        started = f", {self.started}" if start else ""
        columns = (*_CLAIM_COLUMNS, *(f"t.{column}" for column in self.columns))
        # The clock is read once, in a CTE of its own: as a volatile function it could not bound an index scan. The
        # levels are tried in order and lazily: the outer LIMIT stops before rows are locked that nobody takes. What
        # the round has seen stands in a row of its own before the claims.
        cursor = connection.cursor(row_factory=tuple_row)
        await cursor.execute(
            f"""
            WITH clock AS MATERIALIZED (
                SELECT now, now + make_interval(secs => %(horizon)s) AS horizon,
                    EXISTS (SELECT FROM {self.schema}.instance WHERE id = %(owner)s) AS live
                FROM (SELECT clock_timestamp() AS now) AS at
            ), level AS MATERIALIZED (
                SELECT l.priority, oldest.run_at
                FROM unnest({_PRIORITIES}, %(low_water)s::timestamptz[]) AS l(priority, low)
                CROSS JOIN LATERAL (
                    SELECT t.run_at FROM {self.table} AS t
                    WHERE {self._waiting("l", suspects=suspects)}
                        AND t.run_at >= coalesce(l.low, '-infinity') AND t.run_at <= (SELECT horizon FROM clock)
                    ORDER BY t.run_at LIMIT 1
                ) AS oldest
                WHERE (SELECT live FROM clock)
                ORDER BY oldest.run_at - l.priority * make_interval(secs => %(boost)s), l.priority DESC
            ), due AS MATERIALIZED (
                SELECT picked.id FROM level CROSS JOIN LATERAL (
                    SELECT t.id FROM {self.table} AS t
                    WHERE {self._waiting("level", suspects=suspects)}
                        AND t.run_at >= level.run_at AND t.run_at <= (SELECT horizon FROM clock)
                    ORDER BY t.run_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
                ) AS picked
                LIMIT %(limit)s
            ), taken AS (
                UPDATE {self.table} AS t SET owner = %(owner)s, claim_no = t.claim_no + 1{started}
                FROM due WHERE t.id = due.id
                RETURNING {", ".join(columns)}
            )
            SELECT now, live, ARRAY(SELECT priority FROM level), ARRAY(SELECT {_RUN_AT.format("level")} FROM level)
                {", NULL" * len(columns)}
            FROM clock
            UNION ALL SELECT NULL, NULL, NULL, NULL, taken.* FROM taken
            """,
            {
                **self.parameters,
                "owner": owner,
                "limit": limit,
                "horizon": horizon_seconds,
                "low_water": _moments(low_water),
                "boost": priority_boost_seconds,
            },
        )
        ((now, live, priorities, moments, *_), *rows), failures = await fetch_readable(cursor, id_column=4)
        return Claimed(
            [self._claim_of(owner, row[4:]) for row in rows],
            now,
            dict(zip(priorities, moments, strict=True)) if live else None,
            [(claim, failures[claim.id]) for claim in await self._bare_claims(connection, owner, failures)],
        )

    async def oldest(
        self, connection: AsyncConnection[Any], below: Sequence[datetime | None]
    ) -> Mapping[int, datetime]:
        """Returns when the oldest waiting row below a moment had to run, by priority; suspects do not count.

        Args:
            connection: in a transaction, or in autocommit.
            below: the moment for each priority; None is the present.
        """
        cursor = connection.cursor(row_factory=tuple_row)
        await cursor.execute(
            f"""
            WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
            SELECT l.priority, {_RUN_AT.format("oldest")}
            FROM unnest({_PRIORITIES}, %(below)s::timestamptz[]) AS l(priority, below)
            CROSS JOIN LATERAL (
                SELECT t.run_at FROM {self.table} AS t
                WHERE {self._waiting("l", suspects=False)}
                    AND t.run_at < coalesce(l.below, (SELECT now FROM clock))
                ORDER BY t.run_at LIMIT 1
            ) AS oldest
            """,
            {**self.parameters, "below": _moments(below)},
        )
        return dict(await cursor.fetchall())

    async def start(self, connection: AsyncConnection[Any], claims: Sequence[Claim]) -> dict[UUID, int]:
        """Notes that work on these claims starts, where the fence still holds.

        Harmless to repeat, as after a connection that broke while it committed.

        Returns:
            The attempts, this one included, by id of those that are still ours.
        """
        attempts: dict[UUID, int] = {}
        for owner, ours in _by_owner(claims, lambda claim: claim):
            attempts |= await write_starts(connection, self, owner, ours)
        return attempts

    async def sweep(self, connection: AsyncConnection[Any], limit: int) -> tuple[int, datetime | None]:
        """Frees up to ``limit`` rows whose owner has no ``instance`` row.

        A row that had been started becomes a suspect and is handed out alone from then on. If it was in company when
        its owner died, nobody knows which row was to blame, so its attempt is given back; a suspect that takes
        its owner along was alone, so its attempt stays. A poison row thus spends only its own attempts.

        Returns:
            How many were freed, and the earliest ``run_at`` among them.
        """
        # The dead are named first, by one snapshot: a row that was freed and claimed anew by a process younger than
        # the snapshot would otherwise look like a dead one's when it is checked again under its lock.
        blameless = "(t.started_at IS NOT NULL AND NOT t.suspect)::integer" if self.counts_attempts else "0"
        cursor = connection.cursor(row_factory=tuple_row)
        await cursor.execute(
            f"""
            WITH dead AS MATERIALIZED (
                SELECT DISTINCT t.owner FROM {self.table} AS t
                WHERE t.owner IS NOT NULL AND t.finished_at IS NULL
                    AND NOT EXISTS (SELECT FROM {self.schema}.instance AS i WHERE i.id = t.owner)
            ), orphan AS MATERIALIZED (
                SELECT t.id, t.started_at IS NOT NULL AS started FROM {self.table} AS t
                WHERE t.owner IN (SELECT owner FROM dead) AND t.finished_at IS NULL
                LIMIT %(limit)s FOR UPDATE SKIP LOCKED
            )
            UPDATE {self.table} AS t
            SET owner = NULL, attempts = t.attempts - {blameless},
                suspect = t.suspect OR orphan.started, started_at = NULL
                {self.release_extra}
            FROM orphan WHERE t.id = orphan.id
            RETURNING t.id, orphan.started, {_RUN_AT.format("t")}
            """,
            {**self.parameters, "limit": limit},
        )
        freed = await cursor.fetchall()
        if started := [row_id for row_id, was_started, _ in freed if was_started]:
            await self.returned(connection, started)
        return len(freed), min((run_at for _, _, run_at in freed), default=None)

    async def held(self, connection: AsyncConnection[Any], owner: UUID) -> list[Claim]:
        """Returns the rows that the database says this owner holds, without the domain's columns."""
        cursor = connection.cursor(row_factory=tuple_row)
        await cursor.execute(
            f"SELECT {', '.join(_CLAIM_COLUMNS)} FROM {self.table} AS t"
            " WHERE t.owner = %(owner)s AND t.finished_at IS NULL",
            {"owner": owner},
        )
        return [Claim(row[0], owner, *row[1:]) for row in await cursor.fetchall()]

    def _waiting(self, level: str, *, suspects: bool) -> str:
        """Returns the condition of a row that waits in the priority of a level."""
        return f"""
            t.priority = {level}.priority
            AND t.owner IS NULL AND t.finished_at IS NULL AND {"" if suspects else "NOT"} t.suspect
            {self._condition}
        """

    def _claim_of(self, owner: UUID, row: Sequence[Any]) -> Claim:
        row_id, claim_no, attempts, run_at, priority, suspect, started, *own = row
        columns = dict(zip(self.columns, own, strict=True))
        return Claim(row_id, owner, claim_no, attempts, run_at, priority, suspect, started, columns)

    async def _bare_claims(
        self, connection: AsyncConnection[Any], owner: UUID, ids: Mapping[UUID, object]
    ) -> list[Claim]:
        """Returns what this transaction has claimed, without the domain's columns."""
        if not ids:
            return []
        return [claim for claim in await self.held(connection, owner) if claim.id in ids]


def _moments(moments: Sequence[datetime | None]) -> str:
    """Returns moments as PostgreSQL writes an array of them."""
    return f"{{{','.join('NULL' if moment is None else moment.isoformat() for moment in moments)}}}"


def _by_owner(items: Iterable[_Item], claim_of: Callable[[_Item], Claim]) -> ItemsView[UUID, list[_Item]]:
    """Returns these by the owner of their claims, which nearly always is one.

    Each in order of id, so that two writers of the same rows tend to wait for each other instead of deadlocking.
    """
    owners: dict[UUID, list[_Item]] = {}
    for item in sorted(items, key=lambda item: claim_of(item).id.int):
        owners.setdefault(claim_of(item).owner, []).append(item)
    return owners.items()
