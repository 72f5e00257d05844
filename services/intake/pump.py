"""Pumps stored intents through the policy into the dispatcher, in batches, until each has its task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypedDict

import structlog
from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.durable import Batch, Claim, Done, Later
from agent_reach.v1 import dispatcher_pb2, message_pb2, policy_pb2
from services.catalog.rules import Channel
from services.catalog.wire import channel_to_wire
from services.chassis.batch_stream import BatchClient
from services.chassis.errors import OverloadedError, ServiceError, UnavailableError
from services.chassis.moments import moment, timestamp

# How long intents wait for a policy or a dispatcher that is away.
_AWAY_SECONDS = 1.0
# An intent that the others refuse is a defect of ours: it stays, is tried again this seldom, and is seen in the log.
_REFUSED_SECONDS = 60.0

EvaluateClient = BatchClient[policy_pb2.EvaluateRequest, policy_pb2.EvaluateResponse]
AcceptClient = BatchClient[dispatcher_pb2.AcceptRequest, dispatcher_pb2.AcceptResponse]

_log = structlog.get_logger(__name__)


class Pump:
    """Handles batches of intents. Repeating one is harmless: the dispatcher keeps the first task of an intent."""

    def __init__(self, evaluate: EvaluateClient, accept: AcceptClient) -> None:
        self._evaluate = evaluate
        self._accept = accept

    async def __call__(self, batch: Batch) -> None:
        """Handles one batch."""
        await self._pump(batch, batch.claims)

    async def _pump(self, batch: Batch, claims: Sequence[Claim]) -> None:
        try:
            request = policy_pb2.EvaluateRequest(items=[_evaluate_item(claim) for claim in claims])
            decisions = (await self._evaluate.call(request)).decisions
            items = [_accept_item(claim, decision) for claim, decision in zip(claims, decisions, strict=True)]
            await self._accept.call(dispatcher_pb2.AcceptRequest(items=items))
        except (UnavailableError, OverloadedError) as error:
            _log.warning("pump_waits", count=len(claims), error=error.message)
            for claim in claims:
                batch.settle(claim, Later(after_seconds=_AWAY_SECONDS))
        except ServiceError as error:
            if len(claims) > 1:
                # One of them is at fault; halving finds it and passes the others on.
                middle = len(claims) // 2
                await self._pump(batch, claims[:middle])
                await self._pump(batch, claims[middle:])
                return
            _log.error("intent_refused", intent_id=str(claims[0].id), error=error.message)
            batch.settle(claims[0], Later(after_seconds=_REFUSED_SECONDS))
        else:
            for claim in claims:
                batch.settle(claim, Done())


def _evaluate_item(claim: Claim) -> policy_pb2.EvaluateItem:
    row = claim.row
    return policy_pb2.EvaluateItem(
        intent_id=str(claim.id),
        tenant=row["tenant"],
        user_id=row["user_id"],
        address=_bare_address(claim),
        scene=row["scene"],
        template=row["template"],
        channels=[channel_to_wire(Channel(name)) for name in row["wishes"]],
        expires_at=timestamp(row["expires_at"]),
        **_times(claim),
    )


def _accept_item(claim: Claim, decision: message_pb2.Decision) -> dispatcher_pb2.AcceptItem:
    row = claim.row
    return dispatcher_pb2.AcceptItem(
        intent_id=str(claim.id),
        tenant=row["tenant"],
        user_id=row["user_id"],
        address=_bare_address(claim),
        scene=row["scene"],
        template=row["template"],
        variables_json=row["variables_json"],
        priority=claim.priority,
        expires_at=_expires_at(claim, decision),
        channels=[channel_to_wire(Channel(name)) for name in row["wishes"]],
        decision=decision,
        traceparent=row["traceparent"],
        **_times(claim),
    )


def _expires_at(claim: Claim, decision: message_pb2.Decision) -> Timestamp:
    """Returns when an intent is worthless. One that named no expiry lives from its moment on, which is known by now."""
    latest, lifetime = claim.row["expires_at"], claim.row["lifetime_seconds"]
    if lifetime is None:
        return timestamp(latest)
    waits = decision.held_by == message_pb2.GATE_SCHEDULE and decision.HasField("until")
    begins = decision.until if waits else decision.decided_at
    if not begins.ListFields():
        return timestamp(latest)
    return timestamp(min(latest, moment(begins) + timedelta(seconds=lifetime)))


class _Times(TypedDict):
    submitted_at: Timestamp
    send_at: Timestamp | None
    send_at_local: message_pb2.LocalTime | None


def _times(claim: Claim) -> _Times:
    """Returns when an intent was submitted, and when it may leave."""
    send_at, local = claim.row["send_at"], claim.row["send_at_local"]
    return {
        "submitted_at": timestamp(claim.row["created_at"]),
        "send_at": None if send_at is None else timestamp(send_at),
        "send_at_local": None if local is None else message_pb2.LocalTime.FromString(local),
    }


def _bare_address(claim: Claim) -> message_pb2.Address | None:
    row = claim.row
    if not row["bare_address"]:
        return None
    return message_pb2.Address(channel=channel_to_wire(Channel(row["bare_channel"])), value=row["bare_address"])
