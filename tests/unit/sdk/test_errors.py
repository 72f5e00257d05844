"""A status with its details becomes one error that a program can act on."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import code_pb2, status_pb2

from agent_reach import InternalError, InvalidArgumentError, UnavailableError, Violation
from agent_reach.cli.failures import CommandError, describe
from agent_reach.client.errors import from_status
from services.chassis import errors as chassis


def test_what_the_services_say_arrives_whole() -> None:
    error = from_status(
        chassis.to_status(
            chassis.InvalidFieldsError(
                [chassis.Violation("intent.user_id", "is required")], metadata={"template": "order_shipped"}
            )
        )
    )
    assert isinstance(error, InvalidArgumentError)
    assert error.reason == "FIELD_INVALID"
    assert error.metadata == {"template": "order_shipped"}
    assert error.violations == (Violation("intent.user_id", "is required"),)
    assert error.retry_after_seconds is None


def test_a_retry_delay_arrives_in_seconds() -> None:
    error = from_status(chassis.to_status(chassis.UnavailableError("away", retry_after_seconds=2.5)))
    assert isinstance(error, UnavailableError)
    assert error.retry_after_seconds == 2.5


@pytest.mark.parametrize("code", [code_pb2.UNKNOWN, code_pb2.INTERNAL, code_pb2.DATA_LOSS])
def test_a_code_without_a_class_of_its_own_is_a_fault_of_the_other_side(code: int) -> None:
    assert isinstance(from_status(status_pb2.Status(code=code, message="?")), InternalError)


def test_a_failure_is_told_as_part_why_and_what_to_do() -> None:
    failure = describe(UnavailableError("away", reason="DATABASE_UNAVAILABLE"))
    assert failure is not None
    assert failure.part == "unavailable (DATABASE_UNAVAILABLE)"
    assert failure.why == "away"
    assert failure.advice
    told = describe(CommandError("connection", "nothing runs", "start it"))
    assert told is not None
    assert (told.part, told.why, told.advice) == ("connection", "nothing runs", "start it")


def test_what_nobody_expected_is_not_hidden() -> None:
    assert describe(ZeroDivisionError()) is None
    assert grpc.StatusCode.INTERNAL is InternalError.code
