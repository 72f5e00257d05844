"""All SQL of the library outside the durable engine's own."""
# ruff: noqa: S608 - the schema's name is checked by `check_name`, values are parameters

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from agent_reach.durable.ddl import check_name

from .model import Attempt, State, Task
from .queue import CLAIMED_COLUMNS

_TASK_COLUMNS = (
    "id, code, payload, state, priority, attempts, max_attempts, run_at, created_at, finished_at, expires_at,"
    " max_execution_seconds, strategy, interval_seconds, first_delay_seconds, jitter_ratio, unique_key, description,"
    " creator, last_error"
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A task to be inserted; everything in it was checked."""

    id: UUID
    code: str
    payload: str
    priority: int
    first_delay_seconds: float
    max_attempts: int
    strategy: str
    interval_seconds: float | None
    jitter_ratio: float
    unique_key: str | None
    expires_after_seconds: float | None
    max_execution_seconds: float | None
    description: str | None
    creator: str | None
    origin: str | None


class Statements:
    """The statements on one schema's tables, each with its parameters.

    Raises:
        ValueError: the schema's name is not a plain lower-case one.
    """

    def __init__(self, schema: str) -> None:
        self.schema = check_name(schema)
        self.channel = f"{schema}.tasks"

    def insert(self, draft: Draft, *, notify: bool) -> tuple[str, dict[str, Any]]:
        """Inserts a task, unless a live one has its key: then there is no row. Returns id, transaction, moment.

        The notification is PostgreSQL's: it is sent when the caller's transaction commits, or never. It carries the
        planned moment, which by then may lie in the past, in milliseconds since the epoch, but to the second, so that
        many in a transaction are one.
        """
        names = (
            "id, code, payload, priority, first_delay_seconds, max_attempts, strategy, interval_seconds,"
            " jitter_ratio, unique_key, max_execution_seconds, description, creator, origin"
        )
        values = ", ".join(f"%({name.strip()})s" for name in names.split(",")).replace(
            "(payload)s", "(payload)s::jsonb"
        )
        told = ", pg_notify(%(channel)s, moment::text)" if notify else ""
        parameters = {name: getattr(draft, name) for name in Draft.__slots__}
        return (
            f"""
            WITH at AS MATERIALIZED (
                SELECT clock_timestamp() AS now
            ), inserted AS (
                INSERT INTO {self.schema}.tasks ({names}, created_at, run_at, expires_at)
                SELECT {values}, at.now, at.now + make_interval(secs => %(first_delay_seconds)s),
                    at.now + make_interval(secs => %(expires_after_seconds)s::float8)
                FROM at
                ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
                RETURNING id, floor(extract(epoch FROM run_at))::bigint * 1000 AS moment
            )
            SELECT id, pg_current_xact_id()::text, moment{told} FROM inserted
            """,
            {**parameters, "channel": self.channel},
        )

    def live(self, unique_key: str) -> tuple[str, dict[str, Any]]:
        """Finds the live task with a key; as text, since the application may read ids its own way."""
        return (
            f"SELECT id::text FROM {self.schema}.tasks WHERE unique_key = %(key)s AND finished_at IS NULL",
            {"key": unique_key},
        )

    def expire(self, codes: Sequence[str], grace_seconds: float, limit: int) -> tuple[str, dict[str, Any]]:
        """Ends tasks whose time is over and that nobody works on; names them by id, code and attempts.

        Those of other codes a while later: a process that has their handler can tell its callbacks of the end.
        """
        return (
            f"""
            WITH late AS MATERIALIZED (
                SELECT id FROM {self.schema}.tasks
                WHERE expires_at < clock_timestamp() AND finished_at IS NULL AND state = 'WAITING'
                    AND (code = ANY(%(codes)s) OR expires_at < clock_timestamp() - make_interval(secs => %(grace)s))
                ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
            )
            UPDATE {self.schema}.tasks AS t
            SET state = 'EXPIRED', finished_at = clock_timestamp(), claim_no = claim_no + 1, owner = NULL
            FROM late WHERE t.id = late.id
            RETURNING t.id, t.code, t.attempts
            """,
            {"codes": list(codes), "grace": grace_seconds, "limit": limit},
        )

    def revive(self, limit_seconds: float, grace_seconds: float) -> tuple[str, dict[str, Any]]:
        """Puts tasks back that run beyond their limit; the attempt stays counted, its result will be refused."""
        return (
            f"""
            WITH dead AS MATERIALIZED (
                SELECT id, owner, started_at FROM {self.schema}.tasks
                WHERE owner IS NOT NULL AND finished_at IS NULL AND state = 'RUNNING'
                    AND started_at < clock_timestamp()
                        - make_interval(secs => coalesce(max_execution_seconds, %(limit)s) + %(grace)s)
                FOR UPDATE SKIP LOCKED
            ), freed AS (
                UPDATE {self.schema}.tasks AS t
                SET owner = NULL, claim_no = t.claim_no + 1, started_at = NULL, state = 'WAITING',
                    run_at = clock_timestamp(), last_error = 'dead: it ran beyond its limit'
                FROM dead WHERE t.id = dead.id
                RETURNING t.id, t.attempts, dead.owner, dead.started_at
            )
            INSERT INTO {self.schema}.attempts
                (task_id, attempt, planned_at, started_at, ended_at, duration_seconds, owner, error)
            SELECT id, attempts, started_at, started_at, clock_timestamp(),
                extract(epoch FROM clock_timestamp() - started_at), owner, 'dead: it ran beyond its limit'
            FROM freed
            RETURNING task_id
            """,
            {"limit": limit_seconds, "grace": grace_seconds},
        )

    def take(self, task_id: UUID, owner: UUID, codes: Sequence[str]) -> tuple[str, dict[str, Any]]:
        """Claims one task for an instance, whenever it is planned; from another's memory too, if not started."""
        columns = ", ".join(f"t.{name}" for name in CLAIMED_COLUMNS)
        return (
            f"""
            UPDATE {self.schema}.tasks AS t
            SET owner = %(owner)s, claim_no = t.claim_no + 1, run_at = least(t.run_at, clock_timestamp())
            WHERE t.id = %(id)s AND t.state = 'WAITING' AND t.code = ANY(%(codes)s)
                AND EXISTS (SELECT FROM {self.schema}.instance WHERE id = %(owner)s)
            RETURNING t.claim_no, t.attempts, t.run_at, t.priority, t.suspect, {columns}
            """,
            {"id": task_id, "owner": owner, "codes": list(codes)},
        )

    def to_front(self, ids: Sequence[UUID]) -> tuple[str, dict[str, Any]]:
        """Puts tasks before all others: waiting ones, and ended ones that did not succeed, with fresh attempts.

        Nobody who holds one in memory keeps it (``claim_no``). The front is the moment of the oldest task that waits,
        in the highest priority.
        """
        return (
            f"""
            WITH front AS MATERIALIZED (
                SELECT least(min(run_at), clock_timestamp()) AS moment FROM {self.schema}.tasks
                WHERE owner IS NULL AND finished_at IS NULL AND NOT suspect
            ), moved AS (
                UPDATE {self.schema}.tasks AS t
                SET run_at = front.moment, priority = 9, owner = NULL, claim_no = t.claim_no + 1,
                    attempts = CASE WHEN t.finished_at IS NULL THEN t.attempts ELSE 0 END,
                    expires_at = CASE WHEN t.finished_at IS NULL THEN t.expires_at END,
                    suspect = t.suspect AND t.finished_at IS NULL, finished_at = NULL, state = 'WAITING'
                FROM front
                WHERE t.id = ANY(%(ids)s) AND t.state NOT IN ('RUNNING', 'SUCCEEDED')
                RETURNING t.id, t.run_at
            )
            SELECT id, pg_notify(%(channel)s, (floor(extract(epoch FROM run_at))::bigint * 1000)::text) FROM moved
            """,
            {"ids": list(ids), "channel": self.channel},
        )

    def cancel(self, ids: Sequence[UUID], reason: str) -> tuple[str, dict[str, Any]]:
        """Ends tasks; the result of one that runs will be refused, and its handler is told."""
        return (
            f"""
            UPDATE {self.schema}.tasks
            SET state = 'CANCELLED', finished_at = clock_timestamp(), owner = NULL, claim_no = claim_no + 1,
                started_at = NULL, last_error = %(reason)s
            WHERE id = ANY(%(ids)s) AND finished_at IS NULL
            RETURNING id
            """,
            {"ids": list(ids), "reason": reason},
        )

    def purge(
        self, older_than_seconds: float, limit: int, states: Sequence[str] | None, code: str | None
    ) -> tuple[str, dict[str, Any]]:
        """Deletes ended tasks with their attempts, the oldest first; an array, since a subquery may run twice."""
        return (
            f"""
            DELETE FROM {self.schema}.tasks WHERE id = ANY(ARRAY(
                SELECT id FROM {self.schema}.tasks
                WHERE finished_at < clock_timestamp() - make_interval(secs => %(age)s)
                    AND (%(states)s::text[] IS NULL OR state = ANY(%(states)s))
                    AND (%(code)s::text IS NULL OR code = %(code)s)
                ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
            ))
            """,
            {"age": older_than_seconds, "limit": limit, "states": states and list(states), "code": code},
        )

    def find(
        self,
        code: str | None,
        state: str | None,
        age_seconds: tuple[float | None, float | None],
        error: str | None,
        limit: int,
        after: tuple[datetime, UUID] | None,
    ) -> tuple[str, dict[str, Any]]:
        """Finds tasks, the newest first; their age is more than the one bound and less than the other."""
        return (
            f"""
            SELECT {_TASK_COLUMNS} FROM {self.schema}.tasks
            WHERE (%(code)s::text IS NULL OR code = %(code)s)
                AND (%(state)s::text IS NULL OR state = %(state)s)
                AND (%(least)s::float8 IS NULL OR created_at < now() - make_interval(secs => %(least)s::float8))
                AND (%(most)s::float8 IS NULL OR created_at > now() - make_interval(secs => %(most)s::float8))
                AND (%(error)s::text IS NULL OR position(lower(%(error)s) IN lower(last_error)) > 0)
                AND (%(at)s::timestamptz IS NULL OR (created_at, id) < (%(at)s::timestamptz, %(id)s::uuid))
            ORDER BY created_at DESC, id DESC LIMIT %(limit)s
            """,
            {
                "code": code,
                "state": state,
                "least": age_seconds[0],
                "most": age_seconds[1],
                "error": error,
                "limit": limit,
                "at": after and after[0],
                "id": after and after[1],
            },
        )

    def one(self, task_id: UUID) -> tuple[str, dict[str, Any]]:
        """Reads one task."""
        return f"SELECT {_TASK_COLUMNS} FROM {self.schema}.tasks WHERE id = %(id)s", {"id": task_id}

    def claim_no(self, task_id: UUID) -> tuple[str, dict[str, Any]]:
        """Reads which claim of a task is the last."""
        return f"SELECT claim_no FROM {self.schema}.tasks WHERE id = %(id)s", {"id": task_id}

    def attempts(self, task_id: UUID) -> tuple[str, dict[str, Any]]:
        """Reads a task's log, in order."""
        return (
            f"""
            SELECT attempt, planned_at, started_at, ended_at, duration_seconds, owner, error, waits
            FROM {self.schema}.attempts WHERE task_id = %(id)s ORDER BY ended_at, id
            """,
            {"id": task_id},
        )

    def counts(self) -> tuple[str, dict[str, Any]]:
        """Counts tasks by code and state."""
        return f"SELECT code, state, count(*) FROM {self.schema}.tasks GROUP BY code, state ORDER BY 1, 2", {}

    def live_counts(self) -> tuple[str, dict[str, Any]]:
        """Counts the tasks that are alive; by the queue's three indexes, whatever lies finished in the table."""
        alive = f"SELECT code, state FROM {self.schema}.tasks WHERE finished_at IS NULL AND"
        return (
            f"""
            SELECT code, state, count(*) FROM (
                {alive} owner IS NULL AND NOT suspect
                UNION ALL {alive} owner IS NULL AND suspect
                UNION ALL {alive} owner IS NOT NULL
            ) AS live
            GROUP BY code, state
            """,
            {},
        )

    def oldest_due(self) -> tuple[str, dict[str, Any]]:
        """Says how long the oldest due task has been waiting, in seconds; NULL if none is due."""
        return (
            f"""
            SELECT extract(epoch FROM clock_timestamp() - min(run_at))::float8 FROM {self.schema}.tasks
            WHERE owner IS NULL AND finished_at IS NULL AND run_at <= clock_timestamp()
            """,
            {},
        )

    def versions(self) -> tuple[str, dict[str, Any]]:
        """Reads which versions of the tables are installed."""
        return f"SELECT version FROM {self.schema}.versions", {}

    def instances(self) -> tuple[str, dict[str, Any]]:
        """Names the processes that live."""
        return f"SELECT name FROM {self.schema}.instance WHERE expires_at > clock_timestamp() ORDER BY started_at", {}


def task_of(row: Sequence[Any]) -> Task:
    """Makes a task of a row."""
    return Task(row[0], row[1], row[2], State(row[3]), *row[4:])


def attempt_of(row: Sequence[Any]) -> Attempt:
    """Makes a line of the log of a row."""
    return Attempt(*row)


def fetch(connection: psycopg.Connection[Any], statement: tuple[str, dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Executes a statement that has rows; returns them."""
    # A plain cursor, whatever the application has made the connection's own.
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    cursor.execute(*statement, prepare=False)
    return cursor.fetchall()


async def fetch_async(
    connection: psycopg.AsyncConnection[Any], statement: tuple[str, dict[str, Any]]
) -> list[tuple[Any, ...]]:
    """Executes a statement that has rows; returns them."""
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(*statement, prepare=False)
    return await cursor.fetchall()
