"""Looking at tasks and steering them: what `reach retry …` does, as functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, overload
from uuid import UUID

import psycopg

from .connections import check_dsn
from .errors import TaskNotFoundError, TaskStateError
from .model import Attempt, State, Stats, Task
from .outcome import printable
from .store import Statements, attempt_of, fetch, task_of

MAX_LISTED = 1000
# No task is older, and PostgreSQL's dates do not go back for ever.
_MAX_AGE_SECONDS = 1000 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Page:
    """Tasks, the newest first.

    Attributes:
        tasks: the tasks.
        next: give it as ``after`` for those that follow; None when there are no more.
    """

    tasks: Sequence[Task]
    next: tuple[datetime, UUID] | None


class Operations:
    """Every call is a transaction of its own. Handlers need not be known here.

    Args:
        dsn: PostgreSQL, or a pooler.
        schema: where the tables are.

    Raises:
        ValueError: the connection string cannot be read, or the schema's name is not a plain lower-case one.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = check_dsn(dsn)
        self._statements = Statements(schema)

    def find(
        self,
        *,
        code: str | None = None,
        state: State | None = None,
        older_than: timedelta | None = None,
        newer_than: timedelta | None = None,
        error: str | None = None,
        limit: int = 100,
        after: tuple[datetime, UUID] | None = None,
    ) -> Page:
        """Returns tasks, the newest first.

        Args:
            code: only of this code.
            state: only in this state.
            older_than: only those registered longer ago.
            newer_than: only those registered less long ago.
            error: only those whose last error holds this text, in upper or lower case.
            limit: how many at most, up to 1,000.
            after: ``Page.next`` of the page before.
        """
        limit = max(1, min(limit, MAX_LISTED))
        ages = (_seconds(older_than), _seconds(newer_than))
        # Nothing that is stored holds what `printable` takes out.
        code, error = _printable(code), _printable(error)
        rows = self._fetch(self._statements.find(code, state and state.value, ages, error, limit + 1, after))
        tasks = [task_of(row) for row in rows[:limit]]
        last = (tasks[-1].created_at, tasks[-1].id) if len(rows) > limit else None
        return Page(tasks, last)

    def show(self, task_id: UUID) -> tuple[Task, list[Attempt]]:
        """Returns a task and the log of its attempts.

        Raises:
            TaskNotFoundError: there is none.
        """
        with psycopg.connect(self._dsn, prepare_threshold=None) as connection:
            rows = fetch(connection, self._statements.one(task_id))
            if not rows:
                raise TaskNotFoundError(f"there is no task {task_id}")
            attempts = fetch(connection, self._statements.attempts(task_id))
        return task_of(rows[0]), [attempt_of(row) for row in attempts]

    def retry(self, ids: Iterable[UUID]) -> list[UUID]:
        """Puts tasks before all others, now: waiting ones, and ended ones that did not succeed, with fresh attempts.

        Returns:
            Those that were moved; the others run, have succeeded, or are not there.

        Raises:
            TaskStateError: another live task has the unique key of one that has ended; nothing was moved.
        """
        try:
            return [row[0] for row in self._fetch(self._statements.to_front(list(ids)))]
        except psycopg.errors.UniqueViolation as error:
            raise TaskStateError("another live task has the same unique key by now") from error

    def cancel(self, ids: Iterable[UUID], reason: str = "cancelled") -> list[UUID]:
        """Ends tasks for good. One that runs is told to stop, and its result is refused.

        Returns:
            Those that were ended; the others had ended already, or are not there.
        """
        return [row[0] for row in self._fetch(self._statements.cancel(list(ids), printable(reason)))]

    def purge(
        self,
        older_than: timedelta,
        *,
        states: Sequence[State] | None = None,
        code: str | None = None,
        rows_per_round: int = 1000,
    ) -> int:
        """Deletes tasks that ended longer ago than this, with their attempts, in rounds; returns how many."""
        named = None if states is None else [state.value for state in states]
        statement = self._statements.purge(_seconds(older_than), rows_per_round, named, _printable(code))
        total = deleted = 0
        with psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None) as connection:
            while total == 0 or deleted >= rows_per_round:
                deleted = connection.execute(*statement).rowcount
                total += deleted
                if not deleted:
                    break
        return total

    def stats(self) -> Stats:
        """Counts tasks by code and state, and says how late the oldest is."""
        with psycopg.connect(self._dsn, prepare_threshold=None) as connection:
            counts = fetch(connection, self._statements.counts())
            ((oldest,),) = fetch(connection, self._statements.oldest_due())
            instances = fetch(connection, self._statements.instances())
        return Stats(
            {(code, State(state)): count for code, state, count in counts},
            oldest or 0.0,
            tuple(name for (name,) in instances),
        )

    def _fetch(self, statement: tuple[str, dict[str, Any]]) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._dsn, prepare_threshold=None) as connection:
            return fetch(connection, statement)


@overload
def _seconds(length: timedelta) -> float: ...


@overload
def _seconds(length: timedelta | None) -> float | None: ...


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else max(-_MAX_AGE_SECONDS, min(length.total_seconds(), _MAX_AGE_SECONDS))


def _printable(text: str | None) -> str | None:
    return None if text is None else printable(text)
