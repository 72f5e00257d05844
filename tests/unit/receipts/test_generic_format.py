"""What a post of the generic format may look like, and how it is told what is wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.errors import InvalidFieldsError
from services.receipts.facts import Fact, Kind
from services.receipts.providers.generic import read_post

GOOD = {"event_id": "e-1", "kind": "delivered", "idempotency_key": "k"}


def read(document: object) -> list[Any]:
    return read_post(json.dumps(document).encode())


def faults(document: object) -> list[str]:
    return [violation.field for item in read(document) if not isinstance(item, Fact) for violation in item]


def test_one_event_and_a_list_of_events_are_read_alike() -> None:
    fact = Fact("e-1", Kind.DELIVERED, idempotency_key="k")

    assert read(GOOD) == [fact]
    assert read([GOOD, GOOD]) == [fact, fact]
    assert read([]) == []


def test_every_field_arrives() -> None:
    document = {
        "event_id": "e-1",
        "kind": "bounced",
        "idempotency_key": None,
        "provider_message_id": "<m@x>",
        "occurred_at": "2026-03-07T18:00:00+01:00",
        "code": "5.1.1",
        "whatever_they_add_later": {"is": "left alone"},
    }

    assert read(document) == [
        Fact("e-1", Kind.BOUNCED, "", "<m@x>", "5.1.1", datetime(2026, 3, 7, 17, tzinfo=UTC)),
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"event_id": None}, "event_id"),
        ({"event_id": ""}, "event_id"),
        ({"event_id": 7}, "event_id"),
        ({"event_id": "x" * 257}, "event_id"),
        ({"event_id": "a\x00b"}, "event_id"),
        ({"event_id": "\ud800"}, "event_id"),
        ({"kind": "teleported"}, "kind"),
        ({"occurred_at": "2026-03-07T18:00:00"}, "occurred_at"),
        ({"occurred_at": "yesterday"}, "occurred_at"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"code": ["5"]}, "code"),
        ({"provider_message_id": "x" * 513}, "provider_message_id"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, object], field: str) -> None:
    assert faults({**GOOD, **changes}) == [field]
    assert faults([GOOD, {**GOOD, **changes}]) == [f"[1].{field}"]


def test_one_bad_event_does_not_hide_the_good_ones() -> None:
    items = read([GOOD, 5, {**GOOD, "event_id": "e-2"}])

    assert [isinstance(item, Fact) for item in items] == [True, False, True]


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\xff\xfe", b"[" * 100_000, b"5", b'"x"', b"1" * 5_000])
def test_a_body_that_cannot_be_read_is_refused_as_such(body: bytes) -> None:
    with pytest.raises(InvalidFieldsError) as caught:
        read_post(body)

    assert [violation.field for violation in caught.value.violations] == ["body"]


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.sampled_from(sorted(GOOD)), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*GOOD, "occurred_at", "code"]) | st.text(), inner)))  # fmt: skip
def test_no_json_brings_the_reader_down(document: object) -> None:
    try:
        items = read(document)
    except InvalidFieldsError:
        return
    assert all(isinstance(item, Fact) or item for item in items)
