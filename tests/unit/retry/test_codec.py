"""Parameters: what goes in comes out, or is refused before it gets anywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from agent_reach.retry import HandlerError, ParameterError
from agent_reach.retry.codec import Codec, any_json, arguments_codec, dumps

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=json_values)
def test_any_json_value_comes_out_as_it_went_in_or_is_refused(value: Any) -> None:
    codec = Codec(JsonValue, "value")
    try:
        text = dumps(codec.encode(value))
    except ParameterError:
        shown = json.dumps(value)
        assert any(sign in shown for sign in ("NaN", "Infinity", "\\u0000", "\\ud"))
        return
    assert "\\u0000" not in text.replace("\\\\", "")
    assert codec.decode(json.loads(text)) == value


@dataclass
class Order:
    id: UUID
    at: datetime
    price: Decimal
    lines: list[str] = field(default_factory=list)


class Customer(BaseModel):
    name: str
    orders: list[Order] = []


@given(
    customer=st.builds(
        Customer,
        name=st.text("abcü", max_size=5),
        orders=st.lists(
            st.builds(
                Order,
                id=st.uuids(),
                at=st.datetimes(timezones=st.just(UTC)),
                price=st.decimals(-1000, 1000, places=2),
                lines=st.lists(st.text("ab", max_size=3), max_size=3),
            ),
            max_size=3,
        ),
    )
)
def test_models_and_dataclasses_come_out_as_they_went_in(customer: Customer) -> None:
    codec = Codec(Customer, "customer")
    stored = json.loads(dumps(codec.encode(customer)))
    assert codec.decode(stored) == customer
    assert any_json(customer) == stored


def test_messages_name_the_place_and_never_the_value() -> None:
    with pytest.raises(ParameterError) as told:
        Codec(Customer, "customer").decode({"name": "Ada", "orders": [{"id": "secret"}]})
    assert "orders.0.id" in str(told.value)
    assert "secret" not in str(told.value)


def test_a_version_with_other_parameters_is_found_out() -> None:
    def old(order: int, *, note: str) -> None: ...
    def new(order: int, *, note: str, currency: str) -> None: ...
    def shorter(order: int) -> None: ...

    stored = arguments_codec(old).encode((7,), {"note": "x"})
    assert stored == {"order": 7, "note": "x"}
    with pytest.raises(ParameterError, match="currency"):
        arguments_codec(new).decode(stored)
    with pytest.raises(ParameterError, match="no parameter note any more"):
        arguments_codec(shorter).decode(stored)
    with pytest.raises(ParameterError, match="no object"):
        arguments_codec(old).decode([7])


def test_what_cannot_be_stored_is_no_parameter() -> None:
    for kind in (memoryview, type(print)):
        with pytest.raises(HandlerError, match="cannot be stored as JSON"):
            Codec(kind, "it")
