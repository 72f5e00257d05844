"""What a caller is told when a handler fails, whatever kind of RPC it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from agent_reach.local import LocalPostgres
from services.chassis.deadline import remaining_seconds
from services.chassis.errors import InvalidFieldsError, NotFoundError, ServiceError, UnavailableError, Violation
from services.chassis.postgres import open_pool
from services.chassis.principal import current_principal
from tests.integration.chassis.echo import KINDS, call, echo, running, start_call

DetailT = TypeVar("DetailT", bound=Message)
pytestmark = pytest.mark.parametrize("kind", KINDS)


def detail(status: status_pb2.Status, kind: type[DetailT]) -> DetailT:
    found = kind()
    assert any(packed.Unpack(found) for packed in status.details), f"no {kind.__name__}"
    return found


async def refusal(channel: grpc.aio.Channel, kind: str, **options: Any) -> tuple[grpc.StatusCode, status_pb2.Status]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, kind, **options)
    return caught.value.code(), rpc_status.from_call(caught.value)


async def test_a_refusal_names_its_reason_and_every_field(tmp_path: Path, kind: str) -> None:
    async def handle(_text: str, _context: object) -> str:
        raise InvalidFieldsError([Violation("intent.user_id", "is required"), Violation("scene", "is too long: é")])

    async with running(tmp_path, echo(handle)) as server:
        code, status = await refusal(server.channel, kind)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    info = detail(status, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("FIELD_INVALID", "agent-reach")
    fields = detail(status, error_details_pb2.BadRequest).field_violations
    assert [(item.field, item.description) for item in fields] == [
        ("intent.user_id", "is required"),
        ("scene", "is too long: é"),
    ]


async def test_a_thousand_violations_still_reach_the_caller(tmp_path: Path, kind: str) -> None:
    async def handle(_text: str, _context: object) -> str:
        raise InvalidFieldsError([Violation(f"intents[{n}].name", "是" * 200) for n in range(1_000)])

    async with running(tmp_path, echo(handle)) as server:
        code, status = await refusal(server.channel, kind)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    shown = len(detail(status, error_details_pb2.BadRequest).field_violations)
    left_out = int(detail(status, error_details_pb2.ErrorInfo).metadata["violations_left_out"])
    assert shown > 0
    assert shown + left_out == 1_000


async def test_a_message_of_any_length_and_text_reaches_the_caller(tmp_path: Path, kind: str) -> None:
    async def handle(_text: str, _context: object) -> str:
        raise NotFoundError("no \ud800 such " + "鼠" * 5_000, metadata={"id": "鼠" * 5_000})

    async with running(tmp_path, echo(handle)) as server:
        code, status = await refusal(server.channel, kind)
    assert code is grpc.StatusCode.NOT_FOUND
    assert status.message.startswith("no ? such 鼠")


async def test_an_unexpected_fault_shows_an_id_and_keeps_its_text(tmp_path: Path, kind: str) -> None:
    async def handle(_text: str, _context: object) -> str:
        raise RuntimeError("ada@example.com is not a number")

    async with running(tmp_path, echo(handle)) as server:
        code, status = await refusal(server.channel, kind)
    assert code is grpc.StatusCode.INTERNAL
    assert b"example.com" not in status.SerializeToString()
    info = detail(status, error_details_pb2.ErrorInfo)
    assert info.reason == "INTERNAL"
    assert info.metadata["error_id"] in status.message


async def test_what_failed_inside_a_task_group_is_told_as_itself(tmp_path: Path, kind: str) -> None:
    async def fail() -> None:
        raise NotFoundError("no such intent")

    async def handle(_text: str, _context: object) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
        return "never"

    async with running(tmp_path, echo(handle)) as server:
        code, _ = await refusal(server.channel, kind)
    assert code is grpc.StatusCode.NOT_FOUND


async def test_an_abort_of_the_handler_passes_untouched(tmp_path: Path, kind: str) -> None:
    async def handle(_text: str, context: Any) -> str:
        await context.abort(grpc.StatusCode.DATA_LOSS, "gone")
        return "never"

    async with running(tmp_path, echo(handle)) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server.channel, kind)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.DATA_LOSS, "gone")


async def test_while_postgres_is_away_the_caller_is_told_when_to_come_back(
    tmp_path: Path, kind: str, postgres: LocalPostgres, database: str
) -> None:
    async with open_pool("engine", database, 2) as pool:

        async def handle(_text: str, _context: object) -> str:
            async with pool.connection(timeout=0.2) as connection:
                cursor = await connection.execute("SELECT 'here'")
                return str((await cursor.fetchone() or ("",))[0])

        async with running(tmp_path, echo(handle)) as server:
            assert await call(server.channel, kind) == "here"
            postgres.pause()
            try:
                code, status = await refusal(server.channel, kind)
            finally:
                postgres.resume()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert detail(status, error_details_pb2.ErrorInfo).reason == "DATABASE_UNAVAILABLE"
            assert detail(status, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds() > 0
            await pool.wait(30)
            assert await call(server.channel, kind) == "here"


async def test_the_refusal_of_another_service_is_passed_on(tmp_path: Path, kind: str) -> None:
    async def refuse(_text: str, _context: object) -> str:
        raise InvalidFieldsError([Violation("user_id", "is required")])

    async with running(tmp_path, echo(refuse)) as behind:

        async def relay(text: str, _context: object) -> str:
            return await call(behind.channel, kind, text)

        async with running(tmp_path, echo(relay)) as front:
            code, status = await refusal(front.channel, kind)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert detail(status, error_details_pb2.BadRequest).field_violations[0].field == "user_id"


async def test_that_our_own_key_is_refused_by_another_service_is_no_matter_of_the_caller(
    tmp_path: Path, kind: str
) -> None:
    async def never(_text: str, _context: object) -> str:
        raise AssertionError

    async with running(tmp_path, echo(never)) as behind:

        async def relay(text: str, _context: object) -> str:
            return await call(behind.channel, kind, text, metadata=(("authorization", "Bearer wrong"),))

        async with running(tmp_path, echo(relay)) as front:
            code, _ = await refusal(front.channel, kind)
    assert code is grpc.StatusCode.INTERNAL


async def test_the_handler_knows_its_caller_and_the_time_that_is_left(tmp_path: Path, kind: str) -> None:
    async def handle(_text: str, _context: object) -> str:
        left = remaining_seconds(1_000)
        return f"{current_principal().tenant}/{current_principal().subject} {0 < left <= 40}"

    async with running(tmp_path, echo(handle)) as server:
        assert await call(server.channel, kind, timeout=40) == "acme/bot True"


async def test_a_caller_that_goes_away_ends_the_handler(tmp_path: Path, kind: str) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def handle(_text: str, _context: object) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with running(tmp_path, echo(handle)) as server:
        running_call = start_call(server.channel, kind)
        await started.wait()
        running_call.cancel()
        await ended.wait()


async def test_every_end_is_counted_by_method_and_code(tmp_path: Path, kind: str) -> None:
    errors: dict[str, ServiceError] = {"lost": NotFoundError("lost"), "away": UnavailableError("away")}

    async def handle(text: str, _context: object) -> str:
        if text in errors:
            raise errors[text]
        return text

    async with running(tmp_path, echo(handle)) as server:
        await call(server.channel, kind)
        for text in errors:
            await refusal(server.channel, kind, text=text)
        for code in ("OK", "NOT_FOUND", "UNAVAILABLE"):
            labels = {"method": f"/reach_test.EchoService/{kind}", "code": code}
            assert server.runtime.metrics.get_sample_value("reach_rpc_handled_total", labels) == 1
