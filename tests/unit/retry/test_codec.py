"""Parameters: what goes in comes out, or is refused before it gets anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from random import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    PrivateAttr,
    SecretStr,
    computed_field,
    field_serializer,
)
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from agent_reach.retry import HandlerError, ParameterError
from agent_reach.retry.codec import Codec, any_json, arguments_codec, dumps

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)  # a busy machine is no reason to fail
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
    assert codec.decode(text) == value


@dataclass
class Order:
    id: UUID
    at: datetime
    price: Decimal
    lines: list[str] = field(default_factory=list)


class Customer(BaseModel):
    name: str
    orders: list[Order] = []


@settings(deadline=None)
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
    stored = dumps(codec.encode(customer))
    assert codec.decode(stored) == customer
    assert any_json(customer) == json.loads(stored)


def test_messages_name_the_place_and_never_the_value() -> None:
    with pytest.raises(ParameterError) as told:
        Codec(Customer, "customer").decode('{"name": "Ada", "orders": [{"id": "secret"}]}')
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


class Cat(BaseModel):
    name: str = "it"


class Dog(BaseModel):
    name: str = "it"


class Puppy(Dog):
    weeks: int = 3


@dataclass
class Parcel:
    number: int = 1
    checked: bool = field(default=False, init=False)


@dataclass
class Express(Parcel):
    hours: int = 24


@dataclass(eq=False)
class Same:
    number: int = 1


class Plain:
    """A class of the application's that says itself how it is stored, and compares by identity."""

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_after_validator_function(cls, core_schema.int_schema()),
            python_schema=core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda plain: plain.number, return_schema=core_schema.int_schema()
            ),
        )


class Login(BaseModel):
    password: SecretStr


class Shown(Login):
    @field_serializer("password", when_used="json")
    def _shown(self, password: SecretStr) -> str:
        return password.get_secret_value()


class Alias(BaseModel):
    user_id: int = Field(0, alias="userId")


class ReadAlias(BaseModel):
    user_id: int = Field(0, validation_alias="userId")


class WrittenAlias(BaseModel):
    user_id: int = Field(0, serialization_alias="userId")


class Camels(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")
    user_id: int


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int

    @computed_field
    def twice(self) -> int:
        return 2 * self.number


class Hidden(BaseModel):
    number: int = Field(0, exclude=True)


class Numbered(BaseModel):
    number: int
    _drawn: float = PrivateAttr(default_factory=random)


class Loose(BaseModel):
    at: datetime
    marks: tuple[int, ...] = ()
    anything: dict[str, Any]


class Colour(Enum):
    RED = 1


def checked_parcel() -> Parcel:
    parcel = Parcel()
    parcel.checked = True
    return parcel


NOW = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
ID = UUID(int=7)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Alias, Alias(userId=7)),
        (ReadAlias, ReadAlias(userId=7)),
        (Camels, Camels(userId=7)),
        (Computed, Computed(number=7)),
        (Hidden, Hidden()),
        (Numbered, Numbered(number=7)),
        (Parcel, Parcel(7)),
        (Same, Same(7)),
        (Plain, Plain(7)),
        (Shown, Shown(password=SecretStr("a"))),
        (Cat | Dog, Cat(name="a")),
        (list[int] | set[int], [1]),
        (str | UUID, ID),
        (Colour, Colour.RED),
        (dict[UUID, set[int]], {ID: {1}}),
        (int | float, 1.0),
        (datetime | None, NOW),
    ],
    # The same in every process: without addresses in memory.
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_what_is_accepted_comes_back_as_it_was(kind: Any, value: Any) -> None:
    codec = Codec(kind, "it")
    back = codec.decode(dumps(codec.encode(value)))
    assert type(back) is type(value)
    content = vars(back) if isinstance(back, BaseModel | Parcel | Same | Plain) else {}
    assert content or back == value
    assert content == {name: getattr(value, name) for name in content}


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (SecretStr, SecretStr("hush"), "this SecretStr would come back changed"),
        (Login, Login(password=SecretStr("hush")), "password: this SecretStr would come back changed"),
        (Any, {"login": SecretStr("hush")}, "login: a SecretStr would come back as str"),
        (Any, {"login": Login(password=SecretStr("hush"))}, "login: a Login would come back as dict"),
        (Any, (SecretStr("hush"),), "a tuple would come back as list"),
        (WrittenAlias, WrittenAlias(user_id=7), "user_id: this int would come back changed"),
        (Hidden, Hidden(number=7), "number: this int would come back changed"),
        (Parcel, checked_parcel(), "checked: this bool would come back changed"),
        (Cat | Dog, Dog(name="hush"), "a Dog would come back as Cat"),
        (list[Dog], [Dog(), Puppy(name="hush")], "1: a Puppy would come back as Dog"),
        (Parcel, Express(), "a Express would come back as Parcel"),
        (str | UUID, str(ID), "a str would come back as UUID"),
        (datetime | str, NOW.isoformat(), "a str would come back as datetime"),
        (list[int] | set[int], {1}, "a set would come back as list"),
        (list | set, {1}, "a set would come back as list"),
        (datetime | dict[str, Any], {"at": NOW}, "at: a datetime would come back as str"),
    ],
    ids=str,
)
def test_what_would_come_back_changed_is_refused_and_told_where(kind: Any, value: Any, told: str) -> None:
    with pytest.raises(ParameterError, match=f"{told}$") as refused:
        Codec(kind, "it").encode(value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (Any, (1, (2,)), [1, [2]]),
        (dict, {1: {"a": {3}}}, {"1": {"a": [3]}}),
        (list, [Colour.RED, ID, Dog()], [1, str(ID), {"name": "it"}]),
        (
            Loose,
            Loose(at=NOW, marks=(1,), anything={"at": NOW, "marks": (2,)}),
            {
                "at": "2026-01-02T03:04:05.000678Z",
                "marks": [1],
                "anything": {"at": "2026-01-02T03:04:05.000678Z", "marks": [2]},
            },
        ),
    ],
    ids=str,
)
def test_under_any_what_json_has_comes_back(kind: Any, value: Any, stored: Any) -> None:
    assert Codec(kind, "it").encode(value) == stored


def test_what_was_stored_by_names_or_by_aliases_is_read() -> None:
    codec = Codec(Alias, "it")
    assert codec.decode('{"user_id": 7}') == codec.decode('{"userId": 7}') == Alias(userId=7)


def test_what_can_be_gone_through_once_only_is_no_parameter() -> None:
    with pytest.raises(HandlerError, match="say list instead"):
        Codec(Iterable[int], "it")
