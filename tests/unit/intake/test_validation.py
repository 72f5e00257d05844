"""What agents send is checked field by field; what passes can be stored."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_reach.v1 import access_pb2, message_pb2, reach_pb2
from services.catalog.catalog import load_catalog
from services.chassis.errors import InvalidFieldsError
from services.chassis.principal import Principal
from services.intake.draft import Draft
from services.intake.validation import draft_of
from tests.support.suite import CONFIG

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
CATALOG = load_catalog(CONFIG)
AGENT = Principal("acme", "agent", access_pb2.ROLE_AGENT)


def draft(spec: reach_pb2.IntentSpec) -> Draft:
    return draft_of(spec, principal=AGENT, catalog=CATALOG, now=NOW, traceparent="")


def spec(**fields: Any) -> reach_pb2.IntentSpec:
    variables = json.dumps({"order_id": 5})
    return reach_pb2.IntentSpec(**{"user_id": "u1", "scene": "order_shipped", "variables_json": variables, **fields})


def refused(**fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidFieldsError) as error:
        draft(spec(**fields))
    return {violation.field.removeprefix("intent."): violation.description for violation in error.value.violations}


def test_numbers_stay_what_they_are() -> None:
    assert json.loads(draft(spec(variables_json='{"order_id": 9007199254740993}')).variables_json) == {
        "order_id": 9007199254740993
    }


@pytest.mark.parametrize(
    "variables",
    [
        "[1]", "nonsense", '{"order_id": NaN}', '{"order_id": 1e999}', '{"order_id": "a\\u0000"}',
        '{"order_id": 1, "a\\ud800": 1}', '{"order_id": {"deep": ["x\\udc00"]}}',
        '{"order_id": ' + "[" * 30_000 + "]" * 30_000 + "}", '{"order_id": "' + "x" * 65_536 + '"}',
    ],
)  # fmt: skip
def test_variables_that_cannot_be_rendered_or_stored_are_refused(variables: str) -> None:
    assert set(refused(variables_json=variables)) == {"variables_json"}


def test_a_verification_needs_a_key() -> None:
    assert set(refused(scene="verify_code", variables_json='{"code": "123456"}')) == {"intent_key"}


def test_an_unknown_template_is_named() -> None:
    assert "no_such" in refused(template="no_such")["template"]


def test_a_user_and_an_address_together_are_refused() -> None:
    address = message_pb2.Address(channel=message_pb2.CHANNEL_EMAIL, value="a@example.com")
    assert set(refused(address=address)) == {"user_id"}


def test_an_address_is_stored_in_normal_form_and_stands_for_one_user() -> None:
    def of(value: str) -> Draft:
        address = message_pb2.Address(channel=message_pb2.CHANNEL_EMAIL, value=value)
        return draft(spec(user_id="", address=address))

    assert of("ann@EXAMPLE.com").user_id == of("ann@example.com").user_id != of("bob@example.com").user_id
    assert of("ann@EXAMPLE.com").bare_address == "ann@example.com"


def test_what_names_no_expiry_gets_the_policys() -> None:
    assert draft(spec()).expires_at == NOW + timedelta(days=1)


def test_priority_is_five_unless_it_is_given_and_zero_is_given() -> None:
    assert (draft(spec()).priority, draft(spec(priority=0)).priority) == (5, 0)


@settings(max_examples=200)
@given(st.text(max_size=300), st.text(max_size=70), st.text(max_size=300), st.text(max_size=80))
def test_whatever_passes_can_be_stored(user_id: str, scene: str, key: str, template: str) -> None:
    try:
        passed = draft(spec(user_id=user_id, scene=scene, intent_key=key, template=template))
    except InvalidFieldsError:
        return
    for text in (passed.user_id, passed.scene, passed.intent_key):
        assert "\x00" not in text
        assert len(text.encode()) <= 1_024
