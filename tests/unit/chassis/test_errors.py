"""Errors survive the way over the wire, and always fit through it."""

from __future__ import annotations

import base64
import inspect
from urllib.parse import quote

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from agent_reach.v1 import error_reason_pb2
from services.chassis import errors
from services.chassis.errors import (
    InvalidFieldsError,
    NotFoundError,
    OverloadedError,
    ServiceError,
    UnavailableError,
    Violation,
    from_status,
    to_status,
)

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ServiceError)]
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=3_000)


def make(kind: type[ServiceError]) -> ServiceError:
    if issubclass(kind, InvalidFieldsError):
        return kind([Violation("intent.scene", "is required")], metadata={"field": "intent.scene"})
    return kind("no", metadata={"id": "0198"}, violations=[Violation("a", "b")], retry_after_seconds=1.5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_back_as_it_was_sent(kind: type[ServiceError]) -> None:
    sent = make(kind)
    received = from_status(status_pb2.Status.FromString(to_status(sent).SerializeToString()))
    assert type(received) is kind
    for attribute in ("message", "reason", "metadata", "violations", "retry_after_seconds", "code"):
        assert getattr(received, attribute) == getattr(sent, attribute)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_code_and_a_reason_of_its_own_contract(kind: type[ServiceError]) -> None:
    status = to_status(make(kind))
    assert code_pb2.Code.Name(status.code) == kind.code.name
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert f"ERROR_REASON_{info.reason}" in error_reason_pb2.ErrorReason.keys()  # noqa: SIM118 - not a dict
    assert (kind is ServiceError) or kind.code is not grpc.StatusCode.INTERNAL


def test_a_caller_that_can_try_again_is_told_when() -> None:
    for error in (OverloadedError("full"), UnavailableError("away")):
        assert error.retry_after_seconds == 1.0
    assert NotFoundError("no").retry_after_seconds is None


def test_a_status_of_somebody_else_becomes_an_error_too() -> None:
    error = from_status(status_pb2.Status(code=code_pb2.NOT_FOUND, message="no"))
    assert (type(error), error.message) == (NotFoundError, "no")
    strange = from_status(status_pb2.Status(code=code_pb2.DATA_LOSS, message="lost"))
    assert (type(strange), strange.code) == (ServiceError, grpc.StatusCode.INTERNAL)


@given(
    message=ANY_TEXT,
    metadata=st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=12),
    violations=st.lists(st.builds(Violation, ANY_TEXT, ANY_TEXT), max_size=20),
    copies=st.sampled_from([1, 50]),
)
def test_whatever_an_error_holds_its_trailers_stay_under_8_kib(
    message: str, metadata: dict[str, str], violations: list[Violation], copies: int
) -> None:
    error = ServiceError(message, metadata=metadata, violations=violations * copies, retry_after_seconds=1.0)
    status = to_status(error)
    shown = quote(status.message, safe=" ")
    assert len(shown) + len(base64.b64encode(status.SerializeToString())) < 8_100


def test_violations_that_find_no_room_are_counted() -> None:
    status = to_status(InvalidFieldsError([Violation(f"intents[{n}].scene", "is required") for n in range(1_000)]))
    error = from_status(status)
    assert 40 < len(error.violations) < 1_000
    assert int(error.metadata["violations_left_out"]) == 1_000 - len(error.violations)
