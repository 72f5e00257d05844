"""Plain Python becomes the contract's messages; what no message can carry is named."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_reach import IntentFields, InvalidArgumentError, address, profile
from agent_reach.client import requests
from agent_reach.client.settings import DEFAULT_TARGET, read_settings
from agent_reach.v1 import message_pb2

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _fault(fields: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(InvalidArgumentError) as caught:
        requests.intent(cast("IntentFields", fields))
    (violation,) = caught.value.violations
    return violation.field, violation.description


def test_every_field_arrives() -> None:
    moment = datetime(2026, 3, 7, 17, tzinfo=UTC)
    spec = requests.intent(
        {
            "scene": "order_shipped",
            "user_id": "ada",
            "template": "order_shipped_short",
            "variables": {"order_id": 5, "name": "Zoë"},
            "intent_key": "k",
            "priority": 0,
            "expires_at": moment,
            "channels": ["email", "SMS"],
        }
    )
    assert (spec.scene, spec.user_id, spec.template, spec.intent_key) == (
        "order_shipped",
        "ada",
        "order_shipped_short",
        "k",
    )
    assert json.loads(spec.variables_json) == {"order_id": 5, "name": "Zoë"}
    assert spec.HasField("priority")
    assert spec.expires_at.ToDatetime(UTC) == moment
    assert list(spec.channels) == [message_pb2.CHANNEL_EMAIL, message_pb2.CHANNEL_SMS]


@given(st.dictionaries(st.text(), _JSON, max_size=4))
def test_variables_arrive_as_they_are_in_ascii(variables: dict[str, Any]) -> None:
    text = requests.variables_json(variables)
    assert text.isascii()
    assert json.loads(text) == variables


def test_a_lone_surrogate_in_a_variable_is_left_to_the_service() -> None:
    assert requests.variables_json({"name": "a\ud800"}) == '{"name":"a\\ud800"}'


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"bytes"])
def test_a_variable_that_is_not_json_is_named(value: object) -> None:
    field, description = _fault({"scene": "s", "user_id": "u", "variables": {"good": 1, "bad": value}})
    assert field == "intent.variables.bad"
    assert "is not JSON" in description


def test_a_variable_that_contains_itself_is_named() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert _fault({"scene": "s", "user_id": "u", "variables": {"endless": endless}})[0] == "intent.variables.endless"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"scene": "s", "user_id": "a\ud800"}, "intent.user_id"),
        ({"scene": "s", "user_id": 5}, "intent.user_id"),
        ({"scene": "s", "user_id": "u", "priority": 2**40}, "intent.priority"),
        ({"scene": "s", "user_id": "u", "channels": ["pigeon"]}, "intent.channels"),
        ({"scene": "s", "user_id": "u", "expires_at": datetime(2026, 1, 1)}, "intent.expires_at"),  # noqa: DTZ001 - the fault
        ({"scene": "s", "user_id": "u", "expires_at": timedelta(days=10**8)}, "intent.expires_at"),
        ({"scene": "s", "user_id": "u", "expires_at": "tomorrow"}, "intent.expires_at"),
        ({"scene": "s", "user_id": "u", "send_at": datetime(2026, 1, 1)}, "intent.send_at"),  # noqa: DTZ001 - the fault
        ({"scene": "s", "user_id": "u", "send_at_local": "someday 08:00"}, "intent.send_at_local"),
        ({"scene": "s", "user_id": "u", "send_at_local": "8\ud800"}, "intent.send_at_local.time"),
        ({"scene": "s", "address": "ada"}, "intent.address"),
        ({"scene": "s", "user": "u"}, "intent.user"),
    ],
)
def test_what_no_message_can_carry_is_named(fields: dict[str, Any], field: str) -> None:
    assert _fault(fields)[0] == field


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("08:00", message_pb2.LocalTime(time="08:00")),
        ("Monday 09:00", message_pb2.LocalTime(time="09:00", weekday=message_pb2.WEEKDAY_MONDAY)),
        ("2026-03-08  08:00", message_pb2.LocalTime(time="08:00", date="2026-03-08")),
    ],
)
def test_a_time_by_the_recipients_clock_is_read(text: str, local: message_pb2.LocalTime) -> None:
    assert requests.intent({"scene": "s", "user_id": "u", "send_at_local": text}).send_at_local == local
    assert requests.intent({"scene": "s", "user_id": "u", "send_at_local": local}).send_at_local == local


def test_a_moment_to_leave_arrives_and_a_length_of_time_counts_from_now() -> None:
    moment = datetime(2026, 3, 7, 17, tzinfo=UTC)
    assert requests.intent({"scene": "s", "send_at": moment}).send_at.ToDatetime(UTC) == moment
    assert requests.intent({"scene": "s", "send_at": timedelta(hours=2)}).send_at.ToDatetime(UTC) > datetime.now(UTC)


def test_a_length_of_time_counts_from_now() -> None:
    spec = requests.intent({"scene": "s", "user_id": "u", "expires_at": timedelta(hours=2)})
    left = spec.expires_at.ToDatetime(UTC) - datetime.now(UTC)
    assert timedelta(hours=1, minutes=59) < left <= timedelta(hours=2)


@pytest.mark.parametrize(
    ("text", "channel", "value"),
    [
        ("ada@example.com", message_pb2.CHANNEL_EMAIL, "ada@example.com"),
        ("+41446681800", message_pb2.CHANNEL_SMS, "+41446681800"),
        ("https://example.com/hook", message_pb2.CHANNEL_WEBHOOK, "https://example.com/hook"),
        ("chat:room-7", message_pb2.CHANNEL_CHAT, "room-7"),
        ("webhook:http://127.0.0.1:80/x", message_pb2.CHANNEL_WEBHOOK, "http://127.0.0.1:80/x"),
    ],
)
def test_an_address_tells_its_channel(text: str, channel: int, value: str) -> None:
    read = address(text)
    assert (read.channel, read.value) == (channel, value)


def test_a_profile_takes_addresses_as_text() -> None:
    made = profile("ada", addresses=["ada@example.com"], locale="de-CH", time_zone="Europe/Zurich")
    assert made.addresses[0].value == "ada@example.com"
    assert (made.locale, made.time_zone) == ("de-CH", "Europe/Zurich")


def test_one_text_is_no_list_of_users() -> None:
    with pytest.raises(InvalidArgumentError, match="user_ids"):
        requests.named_list("ada", "user_ids")


def test_what_is_not_named_comes_from_the_environment() -> None:
    environment = {"REACH_TARGET": "intake:1", "REACH_API_KEY": "reach_k", "REACH_POLICY_TARGET": "policy:2"}
    settings = read_settings(
        None, None, policy_target=None, sandbox_target=None, deadline_seconds=1, environment=environment
    )
    assert (settings.target, settings.policy_target, settings.sandbox_target) == ("intake:1", "policy:2", "intake:1")
    assert settings.metadata == (("authorization", "Bearer reach_k"),)


@pytest.mark.parametrize("key", ["", "two\nlines", "schlüssel"])
def test_a_key_that_is_none_is_told_before_anything_is_called(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="api_key"):
        read_settings(DEFAULT_TARGET, key, policy_target=None, sandbox_target=None, deadline_seconds=1, environment={})
