"""The tasks as a durable queue, and what an attempt writes when it is settled."""
# ruff: noqa: S608 - the schema's name is checked by `check_name`, values are parameters

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import AsyncConnection

from agent_reach.durable import Claim, Done, Settlement, TableQueue

from .model import State

CLAIMED_COLUMNS = (
    "code",
    "payload",
    "max_attempts",
    "strategy",
    "interval_seconds",
    "first_delay_seconds",
    "jitter_ratio",
    "expires_at",
    "max_execution_seconds",
    "origin",
)


class Verdict(NamedTuple):
    """What an attempt has come to, as the result of a settlement.

    Attributes:
        state: what the task is in from now on.
        error: for ``last_error``; None leaves the last one.
        waits: 1 where the handler had to wait, which is no attempt: such lines of the log are one.
        started_at: of the attempt, on the database's clock; None where the handler was not called (expired, unreadable),
            so that nothing is logged.
        duration_seconds: of the attempt.
    """

    state: State
    error: str | None = None
    waits: int = 0
    started_at: datetime | None = None
    duration_seconds: float = 0.0


_ONE_LINE_OF_WAITING = """
    ON CONFLICT (task_id, attempt) WHERE waits > 0 DO UPDATE
    SET waits = known.waits + 1, ended_at = excluded.ended_at, owner = excluded.owner, error = excluded.error,
        duration_seconds = known.duration_seconds + excluded.duration_seconds
"""


class RetryQueue(TableQueue):
    """The tasks as a durable queue; a process claims only what it has a handler and the strategy for.

    Args:
        schema: where the tables are.
        codes: what this process can do. The list is read at every claim: it may grow.
        strategies: what it can plan by; the same.
    """

    def __init__(self, schema: str, codes: list[str], strategies: list[str]) -> None:
        super().__init__(
            f"{schema}.tasks",
            CLAIMED_COLUMNS,
            start_assignments="state = 'RUNNING'",
            release_assignments="state = 'WAITING'",
            verdict_columns={
                "state": "text",
                "error": "text",
                "attempt": "integer",
                "planned_at": "timestamptz",
                "began_at": "timestamptz",
                "duration_seconds": "float8",
                "waits": "integer",
            },
            verdict_assignments="state = s.state, last_error = coalesce(s.error, t.last_error)",
            condition="t.code = ANY(%(codes)s) AND t.strategy = ANY(%(strategies)s)",
            parameters={"codes": codes, "strategies": strategies},
        )

    def verdict(self, settlement: Settlement) -> Sequence[object]:
        """Returns what becomes of the task, and the line of its log."""
        claim, verdict = settlement.claim, _verdict(settlement)
        if verdict.started_at is None:
            return verdict.state, verdict.error, None, None, None, None, None
        return (
            verdict.state,
            verdict.error,
            claim.attempts,
            # Where it is to run later, the row's own moment is that from now on.
            None if isinstance(settlement.action, Done) else claim.run_at,
            verdict.started_at,
            verdict.duration_seconds,
            verdict.waits or None,
        )

    def beside(self, settlements: Sequence[Settlement]) -> str:
        """Returns the statement that writes the attempts into their log."""
        # Only where somebody waited: a line that might meet another is written twice into the WAL.
        waited = any(_verdict(settlement).waits for settlement in settlements)
        return f"""
            INSERT INTO {self.schema}.attempts AS known
                (task_id, attempt, planned_at, started_at, ended_at, duration_seconds, owner, error, waits)
            SELECT id, attempt, coalesce(planned_at, run_at), began_at, clock_timestamp(), duration_seconds, %(owner)s,
                error, coalesce(waits, 0)
            FROM settled WHERE began_at IS NOT NULL
            {_ONE_LINE_OF_WAITING if waited else ""}
        """

    def unreadable(self, claim: Claim, error: Exception) -> Settlement:
        """Ends a task whose columns cannot be read; its payload is read elsewhere, and never hinders this."""
        reason = f"its row cannot be read: {type(error).__name__}"
        return Settlement(claim, Done(counted=False), Verdict(State.UNREADABLE, reason))

    async def returned(self, connection: AsyncConnection[Any], ids: Sequence[UUID]) -> None:
        """Notes attempts that nobody lived to finish."""
        await connection.execute(
            f"""
            INSERT INTO {self.schema}.attempts (task_id, attempt, planned_at, ended_at, error)
            SELECT id, greatest(attempts, 1), run_at, clock_timestamp(),
                'interrupted: the process that worked on it ended'
            FROM {self.table} WHERE id = ANY(%s)
            """,
            (list(ids),),
        )


def _verdict(settlement: Settlement) -> Verdict:
    assert isinstance(settlement.result, Verdict)
    return settlement.result
