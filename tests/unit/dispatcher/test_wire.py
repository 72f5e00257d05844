"""What is asked of the policy again is all that it was asked before, and what came of it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from agent_reach.v1 import message_pb2
from services.chassis.moments import moment
from services.dispatcher.model import Hold
from services.dispatcher.wire import evaluate_item, hold_of

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def row(**fields: Any) -> dict[str, Any]:
    return {
        "intent_id": uuid.uuid4(), "hop": 0, "tenant": "acme", "user_id": "u1", "bare_channel": None,
        "bare_address": "", "scene": "note", "template": "note", "wishes": ["email"], "expires_at": NOON,
        "deferrals": 0, "planned_at": None, "send_at": None, "send_at_local": None, "submitted_at": NOON,
        "scheduled": False, "gathered": False, **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "hold"),
    [
        ({"action": message_pb2.ACTION_SEND_NOW}, None),
        ({"action": message_pb2.ACTION_DROP}, None),
        ({"action": message_pb2.ACTION_DEFER, "held_by": message_pb2.GATE_SCHEDULE}, Hold.SCHEDULE),
        ({"action": message_pb2.ACTION_DEFER, "held_by": message_pb2.GATE_DIGEST}, Hold.DIGEST),
        ({"action": message_pb2.ACTION_DEFER, "held_by": message_pb2.GATE_QUIET_HOURS}, Hold.QUIET_HOURS),
        ({"action": message_pb2.ACTION_DEFER}, Hold.QUIET_HOURS),
    ],
)
def test_what_holds_a_message_is_the_gate_that_deferred_it(fields: dict[str, Any], hold: Hold | None) -> None:
    assert hold_of(message_pb2.Decision(**fields)) is hold


def test_the_question_repeats_when_it_may_leave_and_what_held_it() -> None:
    local = message_pb2.LocalTime(time="08:00", weekday=message_pb2.WEEKDAY_MONDAY)
    item = evaluate_item(row(send_at_local=local.SerializeToString(), scheduled=True, deferrals=2, planned_at=NOON))
    assert (item.send_at_local, item.scheduled, item.deferrals) == (local, True, 2)
    assert (moment(item.planned_at), moment(item.submitted_at)) == (NOON, NOON)
    assert not item.HasField("send_at")
    assert not evaluate_item(row()).HasField("planned_at"), "it was never put off"
    assert moment(evaluate_item(row(send_at=NOON)).send_at) == NOON


def test_a_digest_and_a_second_hop_are_not_gathered() -> None:
    assert not evaluate_item(row()).gathered
    assert evaluate_item(row(gathered=True)).gathered
    assert evaluate_item(row(hop=1)).gathered
