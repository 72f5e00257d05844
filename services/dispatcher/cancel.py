"""Cancels what has not left, also an intent whose task is still to come."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from uuid6 import uuid7

from agent_reach.v1 import dispatcher_pb2
from services.catalog.holder import CatalogHolder
from services.chassis.clock import Clock
from services.chassis.moments import moment
from services.chassis.postgres import Pool, past_deadlocks

from .model import NewTask, Recipient
from .reservations import Reservations
from .states import State
from .store import cancel_tasks, insert_tasks


class Canceller:
    """Withdraws messages.

    Args:
        pool: role engine.
        catalog: tells a scene's category.
        clock: dates what was never decided.
        reservations: gets the places back of messages that will never leave.
    """

    def __init__(self, pool: Pool, catalog: CatalogHolder, clock: Clock, reservations: Reservations) -> None:
        self._pool = pool
        self._clock = clock
        self._catalog = catalog
        self._reservations = reservations

    async def cancel(self, intent_id: UUID, request: dispatcher_pb2.CancelRequest) -> State:
        """Cancels an intent's message if it has not left; returns the state in which it stands."""
        scene = self._catalog.current.scene(request.scene, request.tenant)
        task = _cancelled_task(intent_id, request, scene.category, self._clock.now())

        async def work() -> tuple[State, list[dict[str, Any]]]:
            async with self._pool.connection() as connection, connection.transaction():
                # Where none came before, this one stands for the intent: whatever is accepted later is ignored.
                await insert_tasks(connection, [task])
                return await cancel_tasks(connection, intent_id)

        state, withdrawn = await past_deadlocks(work)
        await self._reservations.release(withdrawn)
        return state


def _cancelled_task(intent_id: UUID, request: dispatcher_pb2.CancelRequest, category: str, now: datetime) -> NewTask:
    """Returns the task that stands for an intent which was cancelled before it had one: nothing can follow it."""
    return NewTask(
        id=uuid7(),
        intent_id=intent_id,
        hop=0,
        recipient=Recipient(request.tenant, request.user_id),
        scene=request.scene,
        category=category,
        template=request.template,
        variables={},
        wishes=(),
        priority=0,
        expires_at=moment(request.expires_at),
        traceparent="",
        state=State.SUPPRESSED,
        reason="cancelled",
        channel=None,
        address="",
        locale="",
        content=None,
        idempotency_key="",
        decision=b"",
        decided_at=now,
        submitted_at=now,
        finished=True,
    )
