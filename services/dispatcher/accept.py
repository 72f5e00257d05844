"""Accepts decided intents: renders, makes tasks, inserts them once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any
from uuid import UUID

import structlog
from uuid6 import uuid7

from agent_reach.durable import Claim, Engine
from agent_reach.v1 import dispatcher_pb2, message_pb2
from services.catalog.catalog import Catalog
from services.catalog.holder import CatalogHolder
from services.catalog.wire import channel_from_wire
from services.chassis.clock import Clock
from services.chassis.moments import moment
from services.chassis.postgres import Pool, past_deadlocks

from .compose import Composed, compose
from .digests import GATHERED, gather, gathering_of
from .model import Gathering, Hold, NewTask
from .render import RenderError
from .reservations import Reservations
from .states import State
from .store import Inserted, insert_tasks
from .task_queue import TASKS
from .wire import channels_from_wire, hold_of, recipient_of

_log = structlog.get_logger(__name__)


class Acceptor:
    """Turns decisions into tasks.

    Args:
        pool: role engine.
        catalog: templates are taken from what is in force when a batch comes.
        clock: dates what the policy left undated.
        engine: woken, and given what it has free places for.
        reservations: gets the places back of messages that will never leave.
        max_rendered_bytes: size of one rendered message, at most.
    """

    def __init__(
        self,
        pool: Pool,
        catalog: CatalogHolder,
        clock: Clock,
        engine: Engine,
        reservations: Reservations,
        max_rendered_bytes: int,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._catalog = catalog
        self._engine = engine
        self._reservations = reservations
        self._max_rendered_bytes = max_rendered_bytes

    async def accept(self, items: Sequence[dispatcher_pb2.AcceptItem]) -> list[Inserted]:
        """Inserts a task for every item that has none; the first task of an intent stands."""
        catalog = self._catalog.current
        tasks = [self._task(catalog, item) for item in items]
        ready = [task for task in tasks if not task.finished and task.hold is None]
        with self._engine.reserve(TASKS, len(ready)) as places:
            owned = ready[: places.granted]
            owners = {task.id: places.owner for task in owned}
            inserted = await past_deadlocks(lambda: self._insert(tasks, owners))
            new = {result.task_id: result.run_at for result in inserted if not result.existed}
            places.adopt([_claim(task, places.owner, new[task.id]) for task in owned if task.id in new])
            if len(owned) < len(tasks):
                self._engine.wake(TASKS)
        dead = [task for task in tasks if task.state is State.FAILED and task.id in new]
        await self._reservations.release_new(dead)
        return inserted

    async def _insert(self, tasks: Sequence[NewTask], owners: dict[UUID, UUID]) -> list[Inserted]:
        async with self._pool.connection() as connection, connection.transaction():
            inserted = await insert_tasks(connection, tasks, owners)
            new = {result.task_id for result in inserted if not result.existed}
            parts = {task.id: task.gathering for task in tasks if task.gathering is not None and task.id in new}
            if not parts:
                return inserted
            digests = (await gather(connection, parts)).digests
            return [replace(result, task_id=digests.get(result.task_id, result.task_id)) for result in inserted]

    def _task(self, catalog: Catalog, item: dispatcher_pb2.AcceptItem) -> NewTask:
        decision, now = item.decision, self._clock.now()
        hold = hold_of(decision)
        scene = catalog.scene(item.scene, item.tenant)
        until = None if hold is None else moment(decision.until)
        gathering: Gathering | None = None
        channel = channel_from_wire(decision.channel)
        variables: dict[str, Any] = json.loads(item.variables_json or "{}")
        composed: Composed | None = None
        state, reason = (State.PENDING, "") if hold is None else (State.SCHEDULED, decision.reason)
        if decision.action == message_pb2.ACTION_DROP:
            state, reason = State.SUPPRESSED, decision.reason
        elif hold is Hold.DIGEST and until is not None:
            reason, gathering = GATHERED, gathering_of(scene, until)
        elif hold is not Hold.SCHEDULE:
            # What waits for its moment has no channel yet.
            try:
                composed = compose(
                    catalog,
                    item.template,
                    channel,
                    variables,
                    # A digest's template finds its list, also where one message leaves by itself.
                    parts=[variables] if scene.digest is not None else None,
                    intent_id=item.intent_id,
                    user_id=item.user_id,
                    max_bytes=self._max_rendered_bytes,
                )
            except RenderError as error:
                _log.warning("render_failed", intent_id=item.intent_id, template=item.template, reason=error.reason)
                state, reason = State.FAILED, error.reason
        return NewTask(
            id=uuid7(),
            intent_id=UUID(item.intent_id),
            hop=0,
            recipient=recipient_of(item),
            scene=item.scene,
            category=scene.category,
            template=item.template,
            variables=variables,
            wishes=channels_from_wire(item.channels),
            priority=item.priority,
            expires_at=moment(item.expires_at),
            traceparent=item.traceparent,
            state=state,
            reason=reason,
            channel=channel,
            address=decision.address,
            locale=decision.locale,
            content=composed.content if composed else None,
            idempotency_key=composed.key if composed else "",
            decision=decision.SerializeToString(),
            decided_at=moment(decision.decided_at) if decision.HasField("decided_at") else now,
            submitted_at=moment(item.submitted_at) if item.HasField("submitted_at") else now,
            cap_date=date.fromisoformat(decision.cap_date) if decision.cap_date else None,
            hold=hold,
            run_at=until,
            finished=gathering is not None or state in {State.SUPPRESSED, State.FAILED},
            gathering=gathering,
            send_at=moment(item.send_at) if item.HasField("send_at") else None,
            send_at_local=item.send_at_local.SerializeToString() if item.HasField("send_at_local") else None,
        )


def _claim(task: NewTask, owner: UUID, run_at: datetime) -> Claim:
    """Returns the claim of a task that was inserted as ours, because nothing holds it."""
    content = task.content
    assert content is not None
    row: dict[str, Any] = {
        "intent_id": task.intent_id, "hop": task.hop, "tenant": task.recipient.tenant,
        "user_id": task.recipient.user_id, "bare_channel": task.recipient.bare_channel,
        "bare_address": task.recipient.bare_address, "scene": task.scene, "category": task.category,
        "template": task.template, "variables": task.variables, "wishes": list(task.wishes),
        "expires_at": task.expires_at, "traceparent": task.traceparent, "state": task.state, "channel": task.channel,
        "address": task.address, "locale": task.locale, "subject": content.subject, "body": content.body,
        "html": content.html, "template_version": content.template_version, "fingerprint": content.fingerprint,
        "idempotency_key": task.idempotency_key, "cap_date": task.cap_date, "deferrals": 0, "evaluate": False,
        "scheduled": False, "gathered": False, "submitted_at": task.submitted_at, "send_at": task.send_at,
        "send_at_local": task.send_at_local, "decided_at": task.decided_at, "planned_at": None,
    }  # fmt: skip
    return Claim(task.id, owner, 1, 0, run_at, task.priority, row=row)
