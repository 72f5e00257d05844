"""The dispatcher's words as the contract writes them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_reach.v1 import dispatcher_pb2, message_pb2, outcome_pb2, policy_pb2, timeline_pb2
from services.catalog.rules import Channel
from services.catalog.wire import channel_from_wire, channel_to_wire
from services.chassis.moments import timestamp

from .model import Hold, Recipient
from .states import ReceiptKind, State


def state_to_wire(state: str) -> message_pb2.State.ValueType:
    """Returns the contract's number of a state."""
    return message_pb2.State.Value(f"STATE_{state}")


def kind_from_wire(number: timeline_pb2.ReceiptKind.ValueType) -> ReceiptKind | None:
    """Returns the kind of a receipt; None for one that this version does not know."""
    try:
        name = timeline_pb2.ReceiptKind.Name(number)
    except ValueError:
        return None
    lowered = name.removeprefix("RECEIPT_KIND_").lower()
    return ReceiptKind(lowered) if lowered in set(ReceiptKind) else None


def recipient_of(item: dispatcher_pb2.AcceptItem) -> Recipient:
    """Returns whom an accepted intent is for."""
    if item.HasField("address"):
        return Recipient(item.tenant, item.user_id, channel_from_wire(item.address.channel), item.address.value)
    return Recipient(item.tenant, item.user_id)


def channels_from_wire(numbers: Any) -> tuple[Channel, ...]:
    """Returns the known channels among some."""
    return tuple(channel for number in numbers if (channel := channel_from_wire(number)) is not None)


def hold_of(decision: message_pb2.Decision) -> Hold | None:
    """Returns what a decision lets a message wait for; None where it does not."""
    if decision.action != message_pb2.ACTION_DEFER:
        return None
    # A decision from before the gate was named is one of quiet hours: there was no other.
    return _HOLDS.get(decision.held_by, Hold.QUIET_HOURS)


_HOLDS = {message_pb2.GATE_SCHEDULE: Hold.SCHEDULE, message_pb2.GATE_DIGEST: Hold.DIGEST}


def evaluate_item(row: Mapping[str, Any]) -> policy_pb2.EvaluateItem:
    """Returns the question to the policy about a task: all that it was asked before, and what came of that."""
    item = policy_pb2.EvaluateItem(
        intent_id=str(row["intent_id"]),
        hop=row["hop"],
        tenant=row["tenant"],
        user_id=row["user_id"],
        scene=row["scene"],
        template=row["template"],
        channels=[channel_to_wire(Channel(name)) for name in row["wishes"]],
        expires_at=timestamp(row["expires_at"]),
        deferrals=row["deferrals"],
        planned_at=None if row["planned_at"] is None else timestamp(row["planned_at"]),
        send_at=None if row["send_at"] is None else timestamp(row["send_at"]),
        submitted_at=timestamp(row["submitted_at"]),
        scheduled=row["scheduled"],
        # A second hop leaves by itself, whatever the first one did.
        gathered=row["gathered"] or row["hop"] > 0,
    )
    if row["send_at_local"] is not None:
        item.send_at_local.MergeFromString(row["send_at_local"])
    if row["bare_address"]:
        item.address.channel = channel_to_wire(Channel(row["bare_channel"]))
        item.address.value = row["bare_address"]
    return item


def outcome_to_wire(row: Mapping[str, Any], cursor: str = "") -> outcome_pb2.Outcome:
    """Returns an outcome row as a message, with the cursor after it where it goes out on a stream."""
    return outcome_pb2.Outcome(
        intent_id=str(row["intent_id"]),
        task_id=str(row["task_id"]),
        hop=row["hop"],
        state=state_to_wire(row["state"]),
        reason=row["reason"],
        channel=channel_to_wire(Channel(row["channel"]) if row["channel"] else None),
        attempts=row["attempts"],
        occurred_at=timestamp(row["occurred_at"]),
        user_id=row["user_id"],
        scene=row["scene"],
        tenant=row["tenant"],
        cursor=cursor,
    )


def task_to_wire(row: Mapping[str, Any]) -> timeline_pb2.Task:
    """Returns a task row, without attempts and receipts, as a message."""
    task = timeline_pb2.Task(
        task_id=str(row["id"]),
        intent_id=str(row["intent_id"]),
        hop=row["hop"],
        channel=channel_to_wire(Channel(row["channel"]) if row["channel"] else None),
        address=row["address"],
        state=state_to_wire(row["state"]),
        reason=row["reason"],
        subject=row["subject"],
        body=row["body"],
        template=row["template"],
        template_version=row["template_version"],
        decisions=[message_pb2.Decision.FromString(decision) for decision in row["decisions"]],
        idempotency_key=row["idempotency_key"],
        expires_at=timestamp(row["expires_at"]),
        created_at=timestamp(row["created_at"]),
    )
    if State(row["state"]) in {State.PENDING, State.SCHEDULED}:
        task.due_at.CopyFrom(timestamp(row["run_at"]))
    return task


def attempt_to_wire(row: Mapping[str, Any]) -> timeline_pb2.Attempt:
    """Returns an attempt row as a message."""
    return timeline_pb2.Attempt(
        number=row["number"],
        provider=row["provider"],
        started_at=timestamp(row["started_at"]),
        duration_seconds=row["duration_seconds"],
        result=timeline_pb2.AttemptResult.Value(f"ATTEMPT_RESULT_{row['result'].upper()}"),
        code=row["code"],
        provider_message_id=row["provider_message_id"],
    )


def receipt_to_wire(row: Mapping[str, Any]) -> timeline_pb2.AppliedReceipt:
    """Returns a receipt row as a message."""
    return timeline_pb2.AppliedReceipt(
        receipt_id=str(row["receipt_id"]),
        kind=timeline_pb2.ReceiptKind.Value(f"RECEIPT_KIND_{row['kind'].upper()}"),
        occurred_at=timestamp(row["occurred_at"]),
        applied_at=timestamp(row["applied_at"]),
        changed_state=row["changed_state"],
    )
