"""The tasks as a durable queue: what a settlement writes on them, in its own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb
from uuid6 import uuid7

from agent_reach.durable import Claim, Later, Settlement, TableQueue
from services.catalog.rules import Channel

from . import fingerprints
from .digests import gather, leave_behind
from .model import AttemptRecord, Hold, TaskChange
from .states import State
from .store import beyond_sending
from .telling import tell

TASKS = "dispatcher.tasks"

_COLUMNS = (
    "intent_id", "hop", "tenant", "user_id", "bare_channel", "bare_address", "scene", "category", "template",
    "variables", "wishes", "expires_at", "traceparent", "state", "channel", "address", "locale", "subject", "body",
    "html", "template_version", "fingerprint", "idempotency_key", "cap_date", "deferrals", "evaluate",
    "scheduled", "gathered", "submitted_at", "send_at", "send_at_local", "decided_at", "planned_at",
)  # fmt: skip


_MOVED_ON = beyond_sending("t.state")
_ENDS_UNSENT = frozenset({State.FAILED, State.SUPPRESSED, State.EXPIRED})


class TaskQueue(TableQueue):
    """Tasks that wait or are in work. A settlement's result is a `TaskChange`, or None to leave the task as it is.

    A state that a receipt has reached meanwhile stands.
    """

    def __init__(self) -> None:
        super().__init__(
            TASKS,
            _COLUMNS,
            start_assignments=(
                f"state = CASE WHEN {_MOVED_ON} THEN t.state ELSE 'SENDING' END, state_at = clock_timestamp()"
            ),
            # What died, or was handed back, while it was being sent waits again.
            release_assignments="state = CASE WHEN t.state = 'SENDING' THEN 'PENDING' ELSE t.state END",
            verdict_columns={
                "state": "text",
                "reason": "text",
                "decision": "bytea",
                "hold": "text",
                "planned_at": "timestamptz",
            },
            # The transaction's own time marks the rows whose state moved, for `apply`.
            verdict_assignments=f"""
                state = CASE WHEN s.state IS NULL OR {_MOVED_ON} THEN t.state ELSE s.state END,
                reason = CASE WHEN s.state IS NULL OR {_MOVED_ON} THEN t.reason ELSE s.reason END,
                state_at = CASE WHEN s.state IS NULL OR {_MOVED_ON} THEN t.state_at ELSE now() END,
                decisions = CASE WHEN s.decision IS NULL THEN t.decisions ELSE t.decisions || s.decision END,
                deferrals = t.deferrals + (s.hold IS NOT DISTINCT FROM 'quiet_hours')::integer,
                scheduled = t.scheduled OR s.hold IS NOT DISTINCT FROM 'schedule',
                evaluate = t.evaluate OR s.hold IS NOT NULL,
                planned_at = coalesce(s.planned_at, t.planned_at),
                digest_key = NULL
            """,
        )

    def verdict(self, settlement: Settlement) -> tuple[str | None, str, bytes | None, str | None, datetime | None]:
        """Returns state, reason, decision, hold and its end of a change; no state where there is none."""
        change = settlement.result
        if not isinstance(change, TaskChange):
            return None, "", None, None, None
        return change.state, change.reason, change.decision, change.hold, change.planned_at

    async def start(self, connection: AsyncConnection[Any], claims: Sequence[Claim]) -> dict[UUID, int]:
        """Notes that the tasks are being sent, and tells it."""
        started = await super().start(connection, claims)
        await connection.execute(
            tell("dispatcher.tasks AS t", where="t.id = ANY(%s) AND t.state = 'SENDING'", reason="''"),
            (list(started),),
        )
        return started

    async def apply(self, connection: AsyncConnection[Any], settled: Sequence[Settlement]) -> None:
        """Writes outcomes, attempts and fallbacks of what was settled."""
        changes = [(item.claim.id, item.result) for item in settled if isinstance(item.result, TaskChange)]
        # Before anything is told: what ends now does not wait with its digest.
        nights = {
            item.claim.row["intent_id"]: item.result.planned_at
            for item in settled
            if isinstance(item.result, TaskChange)
            and item.result.hold is Hold.QUIET_HOURS
            and item.result.planned_at is not None
            and item.claim.row["gathered"]
        }
        if nights:
            await leave_behind(connection, nights)
        told = [task_id for task_id, change in changes if change.told]
        if told:
            await _tell_moved(connection, told)
        waiting = [item.claim.id for item in settled if isinstance(item.action, Later)]
        if waiting:
            await _finish_moved_on(connection, waiting)
        attempts = [
            (item.claim.id, item.claim.attempts, item.result.attempt)
            for item in settled
            if isinstance(item.result, TaskChange) and item.result.attempt is not None
        ]
        if attempts:
            await _write_attempts(connection, attempts)
        await self._let_go(connection, changes)
        gathered = {task_id: change.gathering for task_id, change in changes if change.gathering is not None}
        if gathered:
            await gather(connection, gathered)
        fallbacks = [
            (task_id, change.fallback)
            for task_id, change in changes
            if change.state is State.FAILED and change.fallback is not None
        ]
        if fallbacks:
            await _write_fallbacks(connection, fallbacks)

    async def _let_go(self, connection: AsyncConnection[Any], changes: Sequence[tuple[UUID, TaskChange]]) -> None:
        """Lets duplicates take the place of what is held again, or has ended without leaving."""
        held = [task_id for task_id, change in changes if change.hold is not None]
        if held:
            await fingerprints.let_go(connection, held)
        ended = [task_id for task_id, change in changes if change.state in _ENDS_UNSENT]
        if ended:
            await fingerprints.let_go_unsent(connection, ended)


async def _tell_moved(connection: AsyncConnection[Any], task_ids: Sequence[UUID]) -> None:
    await connection.execute(tell("dispatcher.tasks AS t", where="t.id = ANY(%s) AND t.state_at = now()"), (task_ids,))


async def _finish_moved_on(connection: AsyncConnection[Any], task_ids: Sequence[UUID]) -> None:
    """Finishes tasks that would be tried again although the provider has told of them meanwhile."""
    await connection.execute(
        f"""
        UPDATE dispatcher.tasks AS t SET finished_at = clock_timestamp()
        WHERE t.id = ANY(%s) AND t.finished_at IS NULL AND {_MOVED_ON}
        """,  # noqa: S608 - the states are the table's own
        (task_ids,),
    )


async def _write_attempts(
    connection: AsyncConnection[Any], attempts: Sequence[tuple[UUID, int, AttemptRecord]]
) -> None:
    await connection.execute(
        """
        INSERT INTO dispatcher.attempts
            (task_id, number, tenant, provider, started_at, duration_seconds, result, code, provider_message_id)
        SELECT n.task_id, n.number, t.tenant, n.provider, n.started_at, n.duration_seconds, n.result, n.code,
            n.provider_message_id
        FROM unnest(
            %s::uuid[], %s::integer[], %s::text[], %s::timestamptz[], %s::float8[], %s::text[], %s::text[], %s::text[]
        ) AS n(task_id, number, provider, started_at, duration_seconds, result, code, provider_message_id)
        JOIN dispatcher.tasks AS t ON t.id = n.task_id
        ON CONFLICT (task_id, number) DO NOTHING
        """,
        (
            [task_id for task_id, _, _ in attempts],
            [number for _, number, _ in attempts],
            [attempt.provider for _, _, attempt in attempts],
            [attempt.started_at for _, _, attempt in attempts],
            [attempt.duration_seconds for _, _, attempt in attempts],
            [attempt.outcome.result for _, _, attempt in attempts],
            [attempt.outcome.code for _, _, attempt in attempts],
            [attempt.outcome.provider_message_id for _, _, attempt in attempts],
        ),
    )


async def _write_fallbacks(connection: AsyncConnection[Any], fallbacks: Sequence[tuple[UUID, Channel]]) -> None:
    """Inserts hop 1 for tasks that failed for good; it is judged and rendered when it is due, which is now."""
    await connection.execute(
        f"""
        WITH hop AS (
            INSERT INTO dispatcher.tasks
                (id, intent_id, hop, tenant, user_id, bare_channel, bare_address, scene, category, template, variables,
                 wishes, priority, expires_at, traceparent, state, evaluate, submitted_at, send_at,
                 send_at_local, scheduled, gathered)
            SELECT n.new_id, t.intent_id, 1, t.tenant, t.user_id, t.bare_channel, t.bare_address, t.scene, t.category,
                t.template, t.variables, ARRAY(SELECT jsonb_array_elements_text(n.wishes)), t.priority, t.expires_at,
                t.traceparent, 'PENDING', true, t.submitted_at, t.send_at, t.send_at_local, t.scheduled, t.gathered
            FROM unnest(%s::uuid[], %s::uuid[], %s::jsonb[]) AS n(id, new_id, wishes)
            JOIN dispatcher.tasks AS t ON t.id = n.id
            WHERE t.hop = 0 AND t.state = 'FAILED'
                -- An earlier attempt that nobody knows of may have reached the person already.
                AND NOT EXISTS (SELECT FROM dispatcher.attempts AS a WHERE a.task_id = t.id AND a.result = 'unknown')
            ON CONFLICT (intent_id, hop) DO NOTHING
            RETURNING *
        )
        {tell("hop AS t", reason="'fallback'")}
        """,  # noqa: S608 - the fragment is our own
        (
            [task_id for task_id, _ in fallbacks],
            [uuid7() for _ in fallbacks],
            [Jsonb([channel.value]) for _, channel in fallbacks],
        ),
    )
