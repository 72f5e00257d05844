"""What the other services send is checked by item and field, before anything of the batch is stored."""

from __future__ import annotations

import uuid

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import dispatcher_pb2, message_pb2
from services.dispatcher.validation import check_accepted, check_receipts


def intent(**fields: object) -> dispatcher_pb2.AcceptItem:
    good = {"intent_id": str(uuid.uuid4()), "tenant": "t", "user_id": "u", "scene": "s", "template": "t"}
    return dispatcher_pb2.AcceptItem(**{**good, **fields})  # type: ignore[arg-type]


def receipt(**fields: object) -> dispatcher_pb2.AdvanceItem:
    good = {"receipt_id": str(uuid.uuid4()), "provider": "smtp", "idempotency_key": "k"}
    return dispatcher_pb2.AdvanceItem(**{**good, **fields})  # type: ignore[arg-type]


def test_what_is_right_passes() -> None:
    assert check_accepted([intent(), intent(variables_json='{"path": "C:\\\\u0000", "n": [1, {"a": null}]}')]) == []
    assert check_receipts([receipt()]) == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"intent_id": "7"}, "intent_id"),
        ({"tenant": "a b"}, "tenant"),
        ({"variables_json": "{"}, "variables_json"),
        ({"variables_json": "[]"}, "variables_json"),
        ({"variables_json": '{"a": NaN}'}, "variables_json"),
        ({"variables_json": '{"a": {"b": ["\\u0000"]}}'}, "variables_json"),
        ({"variables_json": '{"\\ud800": 1}'}, "variables_json"),
        ({"user_id": "a\0"}, "user_id"),
        ({"priority": 10}, "priority"),
        ({"expires_at": Timestamp(seconds=10**12)}, "expires_at"),
        ({"decision": message_pb2.Decision(cap_date="today")}, "decision.cap_date"),
        ({"decision": message_pb2.Decision(action=message_pb2.ACTION_DEFER)}, "decision.until"),
        ({"decision": message_pb2.Decision(reason="\0")}, "decision.reason"),
    ],
)
def test_an_intent_that_cannot_be_stored_is_named(fields: dict[str, object], named: str) -> None:
    assert [violation.field for violation in check_accepted([intent(), intent(**fields)])] == [f"items[1].{named}"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"receipt_id": "x"}, "receipt_id"),
        ({"provider": "\0"}, "provider"),
        ({"code": "\0"}, "code"),
        ({"provider_message_id": "\0"}, "provider_message_id"),
        ({"idempotency_key": "\0"}, "idempotency_key"),
        ({"occurred_at": Timestamp(seconds=-(10**12))}, "occurred_at"),
    ],
)
def test_a_receipt_that_cannot_be_stored_is_named(fields: dict[str, object], named: str) -> None:
    assert [violation.field for violation in check_receipts([receipt(), receipt(**fields)])] == [f"items[1].{named}"]
