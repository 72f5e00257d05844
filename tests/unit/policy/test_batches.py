"""What comes in is checked item by item, and what goes out says all that was decided."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest

from agent_reach.v1 import message_pb2, policy_pb2
from services.catalog.rules import Channel
from services.chassis.errors import InvalidFieldsError
from services.chassis.moments import timestamp
from services.policy.batches import read_items
from services.policy.decision import Action, Address, Facts, Gate, Item, LocalTime, Usage
from services.policy.evaluate import evaluate
from services.policy.translate import decision_to_wire, decisions_to_wire

from .world import ANN, NIGHT, NOON, item, rules


def wire_item(**changes: Any) -> policy_pb2.EvaluateItem:
    values: dict[str, Any] = {"intent_id": "i-1", "tenant": "acme", "user_id": "ann", "scene": "order_shipped"}
    return policy_pb2.EvaluateItem(**{**values, **changes})


def read(*items: policy_pb2.EvaluateItem) -> list[Item]:
    return read_items(policy_pb2.EvaluateRequest(items=items))


def test_a_message_is_read_with_all_that_it_has() -> None:
    later = NOON + timedelta(days=1, microseconds=5)
    (read_one,) = read(
        wire_item(
            hop=1,
            address=message_pb2.Address(channel=message_pb2.CHANNEL_EMAIL, value="a@example.com"),
            channels=[message_pb2.CHANNEL_SMS, message_pb2.CHANNEL_INBOX],
            expires_at=timestamp(later),
            deferrals=2,
            planned_at=timestamp(NOON),
            template="shipped",
            send_at=timestamp(NIGHT),
            send_at_local=message_pb2.LocalTime(time="08:05", weekday=message_pb2.WEEKDAY_SUNDAY),
            submitted_at=timestamp(NOON),
            scheduled=True,
            gathered=True,
        )
    )
    assert read_one == Item(
        "i-1",
        1,
        "acme",
        "ann",
        "order_shipped",
        Address(Channel.EMAIL, "a@example.com"),
        (Channel.SMS, Channel.INBOX),
        later,
        2,
        NOON,
        "shipped",
        NIGHT,
        LocalTime(time(8, 5), weekday=6),
        NOON,
        scheduled=True,
        gathered=True,
    )
    (plain,) = read(wire_item())
    assert plain == Item("i-1", 0, "acme", "ann", "order_shipped")


def test_a_local_date_is_read() -> None:
    (read_one,) = read(wire_item(send_at_local=message_pb2.LocalTime(time="23:59", date="2026-03-08")))
    assert read_one.send_at_local == LocalTime(time(23, 59), day=date(2026, 3, 8))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tenant": ""}, "items[1].tenant"),
        ({"tenant": "a" * 129}, "items[1].tenant"),
        ({"user_id": ""}, "items[1].user_id"),
        ({"user_id": "a\0b"}, "items[1].user_id"),
        ({"user_id": "a" * 257}, "items[1].user_id"),
        ({"scene": "s" * 65}, "items[1].scene"),
        ({"template": "t\0"}, "items[1].template"),
        ({"intent_id": "no id"}, "items[1].intent_id"),
        ({"intent_id": ""}, "items[1].intent_id"),
        ({"hop": 2}, "items[1].hop"),
        ({"address": message_pb2.Address(value="a@example.com")}, "items[1].address.channel"),
        ({"address": message_pb2.Address(channel=message_pb2.CHANNEL_EMAIL)}, "items[1].address.value"),
        ({"send_at_local": message_pb2.LocalTime(time="24:00")}, "items[1].send_at_local.time"),
        ({"send_at_local": message_pb2.LocalTime(time="08:00", date="2026-02-30")}, "items[1].send_at_local.date"),
        ({"send_at_local": message_pb2.LocalTime(time="08:00", date="9999-12-31")}, "items[1].send_at_local.date"),
        (
            {
                "send_at_local": message_pb2.LocalTime(
                    time="08:00", date="2026-02-03", weekday=message_pb2.WEEKDAY_FRIDAY
                )
            },
            "items[1].send_at_local.weekday",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFieldsError) as caught:
        read(wire_item(), wire_item(**changes))
    assert [violation.field for violation in caught.value.violations] == [field]


def test_a_moment_that_is_none_is_refused() -> None:
    asked = wire_item()
    asked.expires_at.seconds = 1 << 50
    with pytest.raises(InvalidFieldsError) as caught:
        read(asked)
    assert caught.value.violations[0].field == "items[0].expires_at"


def test_a_batch_is_neither_empty_nor_endless() -> None:
    for count in (0, 501):
        with pytest.raises(InvalidFieldsError):
            read(*(wire_item() for _ in range(count)))


def test_a_decision_is_written_with_all_that_it_has() -> None:
    decisions = [
        evaluate(item(), Facts(ANN, usage={Channel.SMS: Usage(1, 1)}), rules(), NOON),
        evaluate(item(), Facts(ANN), rules(), NIGHT),
        evaluate(item(), Facts(ANN), rules(), NOON),
    ]
    written = decisions_to_wire(decisions).decisions
    for decision, wire in zip(decisions, written, strict=True):
        assert wire == decision_to_wire(decision)
        assert message_pb2.Action.Name(wire.action) == f"ACTION_{decision.action.name}"
        assert [
            (
                message_pb2.Gate.Name(gate.gate),
                message_pb2.GateOutcome.Name(gate.outcome),
                gate.reason,
                dict(gate.inputs),
            )
            for gate in wire.trace
        ] == [
            (f"GATE_{entry.gate.name}", f"GATE_OUTCOME_{entry.outcome.name}", entry.reason, entry.inputs)
            for entry in decision.trace
        ]
        assert (wire.reason, wire.address, wire.locale) == (decision.reason, decision.address, decision.locale)
        assert (wire.cap_date, wire.policy_version) == (decision.cap_date, decision.policy_version)
        assert wire.decided_at.ToDatetime(tzinfo=UTC) == decision.decided_at
        until: datetime | None = wire.until.ToDatetime(tzinfo=UTC) if wire.HasField("until") else None
        assert until == (None if decision.until is None else decision.until)
    assert [message_pb2.Gate.Name(wire.held_by) for wire in written] == [
        "GATE_UNSPECIFIED",
        f"GATE_{Gate.QUIET_HOURS.name}",
        "GATE_UNSPECIFIED",
    ]
    assert decisions[1].action is Action.DEFER
