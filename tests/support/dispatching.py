"""The dispatcher's own callers: what intake and receipts ask of it, over gRPC with the service key."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from agent_reach.v1 import dispatcher_pb2, dispatcher_pb2_grpc, message_pb2, timeline_pb2
from tests.support.suite import SERVICE_KEY, Suite, bearer, eventually

TENANT = "acme"


def moment(seconds: float) -> datetime:
    """Returns the moment so many seconds from now."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def send_now(channel: message_pb2.Channel.ValueType, address: str, **fields: Any) -> message_pb2.Decision:
    """Returns the decision to send at once."""
    return message_pb2.Decision(action=message_pb2.ACTION_SEND_NOW, channel=channel, address=address, **fields)


def drop(reason: str) -> message_pb2.Decision:
    """Returns the decision never to send."""
    return message_pb2.Decision(action=message_pb2.ACTION_DROP, reason=reason)


def defer(channel: message_pb2.Channel.ValueType, address: str, until: datetime) -> message_pb2.Decision:
    """Returns the decision to judge again later."""
    decision = message_pb2.Decision(
        action=message_pb2.ACTION_DEFER, channel=channel, address=address, reason="quiet_hours"
    )
    decision.until.FromDatetime(until)
    return decision


def intent(decision: message_pb2.Decision, **fields: Any) -> dispatcher_pb2.AcceptItem:
    """Returns a decided intent: an alert with a text of its own, unless the fields say otherwise."""
    intent_id = str(uuid.uuid4())
    values: dict[str, Any] = {
        "intent_id": intent_id,
        "tenant": TENANT,
        "user_id": "u1",
        "scene": "alert",
        "template": "alert",
        "variables_json": json.dumps({"title": "Disk full", "detail": intent_id}),
        "priority": 5,
        "expires_at": moment(3_600),
        **fields,
    }
    return dispatcher_pb2.AcceptItem(decision=decision, **values)


def alert(url: str, **fields: Any) -> dispatcher_pb2.AcceptItem:
    """Returns an alert that goes to a webhook at once."""
    return intent(send_now(message_pb2.CHANNEL_WEBHOOK, url), **fields)


def receipt(
    task: timeline_pb2.Task, kind: timeline_pb2.ReceiptKind.ValueType, **fields: Any
) -> dispatcher_pb2.AdvanceItem:
    """Returns a receipt that names a task by our key, unless the fields say otherwise."""
    values = {
        "receipt_id": str(uuid.uuid4()),
        "provider": "webhook",
        "idempotency_key": task.idempotency_key,
        "kind": kind,
        **fields,
    }
    return dispatcher_pb2.AdvanceItem(**values)


class Dispatching:
    """Calls what the other services call."""

    def __init__(self, suite: Suite, name: str = "dispatcher") -> None:
        self.metadata = bearer(SERVICE_KEY)
        self.stub: Any = dispatcher_pb2_grpc.DispatcherServiceStub(suite.channel(name))

    async def answer_to(self, items: Sequence[dispatcher_pb2.AcceptItem]) -> dispatcher_pb2.AcceptResponse:
        """Hands over one batch of decided intents, on a stream of its own."""
        call = self.stub.Accept(metadata=self.metadata)
        await call.write(dispatcher_pb2.AcceptRequest(sequence=1, items=items))
        response: dispatcher_pb2.AcceptResponse = await call.read()
        await call.done_writing()
        return response

    async def accept(self, *items: dispatcher_pb2.AcceptItem) -> list[dispatcher_pb2.AcceptResult]:
        """Hands over decided intents that must be taken."""
        response = await self.answer_to(items)
        assert not response.error.code, response.error.message
        return list(response.results)

    async def advance(self, *items: dispatcher_pb2.AdvanceItem) -> list[str]:
        """Hands over receipts; returns what each did, in short."""
        call = self.stub.Advance(metadata=self.metadata)
        await call.write(dispatcher_pb2.AdvanceRequest(sequence=1, items=items))
        response = await call.read()
        await call.done_writing()
        assert not response.error.code, response.error.message
        return [dispatcher_pb2.AdvanceResult.Name(r).removeprefix("ADVANCE_RESULT_") for r in response.results]

    async def cancel(self, item: dispatcher_pb2.AcceptItem) -> tuple[bool, str]:
        """Cancels an intent; returns whether nothing will leave, and the state."""
        request = dispatcher_pb2.CancelRequest(
            intent_id=item.intent_id,
            tenant=item.tenant,
            user_id=item.user_id,
            scene=item.scene,
            template=item.template,
            expires_at=item.expires_at,
        )
        response = await self.stub.Cancel(request, metadata=self.metadata)
        return response.cancelled, short(response.state)

    async def timeline(self, intent_id: str, tenant: str = TENANT) -> dispatcher_pb2.GetTimelineResponse:
        """Returns all that is known of an intent."""
        request = dispatcher_pb2.GetTimelineRequest(tenant=tenant, intent_id=intent_id)
        response: dispatcher_pb2.GetTimelineResponse = await self.stub.GetTimeline(request, metadata=self.metadata)
        return response

    async def task(self, item: dispatcher_pb2.AcceptItem, hop: int = 0) -> timeline_pb2.Task:
        """Returns an intent's task of a hop."""
        return (await self.timeline(item.intent_id)).tasks[hop]

    async def reaches(
        self, item: dispatcher_pb2.AcceptItem, *states: str, hop: int = 0, reason: str | None = None
    ) -> timeline_pb2.Task:
        """Waits until an intent's task is in one of these states."""

        async def probe() -> timeline_pb2.Task | None:
            tasks = (await self.timeline(item.intent_id)).tasks
            if len(tasks) <= hop:
                return None
            task: timeline_pb2.Task = tasks[hop]
            return task if short(task.state) in states and reason in {None, task.reason} else None

        task: timeline_pb2.Task = await eventually(probe, timeout_seconds=40)
        return task

    async def told(self, item: dispatcher_pb2.AcceptItem) -> list[str]:
        """Returns the states that agents were told of an intent, in order, with their reasons."""
        outcomes = (await self.timeline(item.intent_id)).outcomes
        return [f"{short(outcome.state)} {outcome.reason}".strip() for outcome in outcomes]


def short(state: message_pb2.State.ValueType) -> str:
    """Returns a state's name without its prefix."""
    return message_pb2.State.Name(state).removeprefix("STATE_")
