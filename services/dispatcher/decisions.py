"""What was judged, as a simulation replays it: every judgement of every task, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from agent_reach.v1 import dispatcher_pb2, message_pb2
from services.chassis.postgres import Pool

from .wire import evaluate_item

_PAGE = 500
_COLUMNS = """
id, created_at, intent_id, hop, tenant, user_id, bare_channel, bare_address, scene, template, wishes, expires_at,
deferrals, planned_at, submitted_at, send_at, send_at_local, scheduled, gathered, decisions
"""
_QUIET = frozenset({message_pb2.GATE_QUIET_HOURS, message_pb2.GATE_UNSPECIFIED})  # unset: before it was kept


@dataclass(frozen=True, slots=True)
class History:
    """Which judgements are wanted.

    Attributes:
        tenant: whose.
        since: the tasks that were made at this moment or later.
        before: the tasks that were made before this moment.
        scene: the tasks of this scene; empty takes all.
    """

    tenant: str
    since: datetime
    before: datetime
    scene: str


class DecisionReader:
    """Reads judgements. Holds one page in memory, and no connection between two pages.

    A message that was withheld as a duplicate is left out: it did not leave and counted for nobody, whatever the policy
    had said of it, and another policy has no say in that.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def follow(
        self, history: History, stopping: asyncio.Event
    ) -> AsyncIterator[list[dispatcher_pb2.PastDecision]]:
        """Yields pages of judgements, the oldest tasks first, until there are no more, or until stopping."""
        after = history.since, UUID(int=0)
        while not stopping.is_set():
            rows = await self._page(history, after)
            if page := [judgement for row in rows for judgement in judgements(row)]:
                yield page
            if len(rows) < _PAGE:
                return
            after = rows[-1]["created_at"], rows[-1]["id"]

    async def _page(self, history: History, after: tuple[datetime, UUID]) -> list[dict[str, Any]]:
        scene = "AND scene = %(scene)s" if history.scene else ""
        async with self._pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(
                f"""
                SELECT {_COLUMNS} FROM dispatcher.tasks
                WHERE tenant = %(tenant)s AND (created_at, id) > (%(created_at)s, %(id)s) AND created_at < %(before)s
                    AND NOT (state = 'SUPPRESSED' AND reason = 'duplicate_content') {scene}
                ORDER BY created_at, id LIMIT %(limit)s
                """,  # noqa: S608 - the names and the filter are this module's own
                {
                    "tenant": history.tenant,
                    "created_at": after[0],
                    "id": after[1],
                    "before": history.before,
                    "scene": history.scene,
                    "limit": _PAGE,
                },
            )
            return await cursor.fetchall()


def judgements(row: Mapping[str, Any]) -> Iterator[dispatcher_pb2.PastDecision]:
    """Yields each judgement of a task, in order: the message as it was then, and the decision."""
    item = evaluate_item(row)
    item.ClearField("planned_at")
    item.deferrals = 0
    item.scheduled = False
    for serialized in row["decisions"]:
        decision = message_pb2.Decision.FromString(serialized)
        if not decision.policy_version:
            continue  # nobody judged it: it was cancelled before
        yield dispatcher_pb2.PastDecision(item=item, decision=decision)
        if decision.action == message_pb2.ACTION_DEFER:
            item.planned_at.CopyFrom(decision.until)
            item.scheduled |= decision.held_by == message_pb2.GATE_SCHEDULE
            item.gathered |= decision.held_by == message_pb2.GATE_DIGEST
            item.deferrals += decision.held_by in _QUIET
