"""A status with its details becomes one error that a program can act on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc import code_pb2, status_pb2

from agent_reach import AsyncReach, InternalError, InvalidArgumentError, Reach, UnavailableError, Violation, profile
from agent_reach.cli.failures import CommandError, describe
from agent_reach.client.errors import from_status
from agent_reach.client.operator import PolicyOperator
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


def test_an_error_id_is_told_where_there_is_one() -> None:
    told = describe(InternalError("a fault of ours", metadata={"error_id": "e-1"}))
    assert told is not None
    assert told.advice == "look for error e-1 in the log of the service"
    without = describe(InternalError("a fault of ours"))
    assert without is not None
    assert "error id" not in without.advice


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The target of a server that answers none of our questions."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


async def test_a_question_to_the_wrong_service_names_the_setting_to_mend(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REACH_TARGET", "REACH_POLICY_TARGET", "REACH_SANDBOX_TARGET"):
        monkeypatch.delenv(name, raising=False)
    with Reach(elsewhere, api_key="k") as reach, PolicyOperator(elsewhere, api_key="k") as operator:
        for ask, setting in (
            (lambda: reach.upsert_profiles([profile("ada")]), "policy_target"),
            (lambda: list(reach.list_suppressions()), "policy_target"),
            (lambda: list(reach.execute("print()")), "sandbox_target"),
            (lambda: reach.get_intent("x"), "target"),
            (operator.show, "policy_target"),
        ):
            with pytest.raises(InvalidArgumentError) as refused:
                ask()
            assert [violation.field for violation in refused.value.violations] == [setting]
            assert f"set REACH_{setting.upper()}" in refused.value.message
    async with AsyncReach(elsewhere, api_key="k") as reach_async:
        with pytest.raises(InvalidArgumentError, match="pass policy_target or set REACH_POLICY_TARGET"):
            await reach_async.upsert_profiles([profile("ada")])
