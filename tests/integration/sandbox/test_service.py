"""The sandbox as its callers see it: over gRPC, with the chassis around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agent_reach.v1 import sandbox_pb2, sandbox_pb2_grpc
from services.chassis.runtime import Runtime
from services.chassis.server import serving
from services.chassis.startup import StartupError
from services.sandbox.app import open_sandbox
from services.sandbox.settings import SandboxSettings

from .support import alive, left_in, until
from .test_trees import ENDLESS

PYTHON, SHELL = sandbox_pb2.LANGUAGE_PYTHON, sandbox_pb2.LANGUAGE_SHELL


def settings_of(**options: Any) -> SandboxSettings:
    return SandboxSettings(**{"service_key": "of-the-test", "drain_seconds": 0.5, **options})


@asynccontextmanager
async def service(tmp_path: Path, runtime: Runtime | None = None, **options: Any) -> AsyncIterator[Any]:
    settings = settings_of(sandbox_dir=tmp_path, **options)
    async with (
        serving(settings, open_sandbox, runtime or Runtime(settings)) as endpoints,
        grpc.aio.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel,
    ):
        execute = sandbox_pb2_grpc.SandboxServiceStub(channel).Execute

        def call(**fields: Any) -> Any:
            request = sandbox_pb2.ExecuteRequest(**fields)
            return execute(request, timeout=60, metadata=(("authorization", "Bearer of-the-test"),))

        yield call


async def test_output_is_streamed_and_the_result_is_last(tmp_path: Path) -> None:
    async with service(tmp_path) as execute:
        responses = [
            r
            async for r in execute(
                language=SHELL, code="cat; echo $WHO >&2; exit 3", stdin=b"in", environment={"WHO": "me"}
            )
        ]

    assert [response.WhichOneof("event") for response in responses][-1] == "result"
    assert b"".join(response.stdout for response in responses) == b"in"
    assert b"".join(response.stderr for response in responses) == b"me\n"
    result = responses[-1].result
    assert (result.end, result.exit_code) == (sandbox_pb2.EXECUTE_END_EXITED, 3)
    assert (result.stdout_bytes, result.stderr_bytes) == (2, 3)


@pytest.mark.parametrize(
    ("fields", "end", "exit_code"),
    [
        ({"code": "while True: pass", "timeout_seconds": 0.3}, sandbox_pb2.EXECUTE_END_TIMED_OUT, -9),
        ({"code": "while True: print('x')", "max_output_bytes": 10}, sandbox_pb2.EXECUTE_END_OUTPUT_LIMIT, -9),
        ({"code": "import os; os.abort()"}, sandbox_pb2.EXECUTE_END_SIGNALLED, -6),
    ],
)
async def test_every_end_has_its_name(
    tmp_path: Path, fields: dict[str, Any], end: sandbox_pb2.ExecuteEnd, exit_code: int
) -> None:
    async with service(tmp_path) as execute:
        responses = [response async for response in execute(language=PYTHON, **fields)]

    assert (responses[-1].result.end, responses[-1].result.exit_code) == (end, exit_code)


async def test_wrong_fields_are_named(tmp_path: Path) -> None:
    async with service(tmp_path) as execute:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(execute(code="", timeout_seconds=301)))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    bad_request = error_details_pb2.BadRequest()
    status = rpc_status.from_call(caught.value)
    assert any(detail.Unpack(bad_request) for detail in status.details)
    assert [v.field for v in bad_request.field_violations] == ["language", "code", "timeout_seconds"]


async def test_a_call_that_is_broken_off_ends_the_tree(tmp_path: Path) -> None:
    async with service(tmp_path) as execute:
        call = execute(language=PYTHON, code=ENDLESS)
        daemon = int((await anext(aiter(call))).stdout)

        call.cancel()

        await until(lambda: not alive(daemon) and left_in(tmp_path) == [])


async def test_a_caller_that_stops_reading_and_goes_ends_the_tree(tmp_path: Path) -> None:
    async with service(tmp_path, sandbox_places=1) as execute:
        code = "import os\nos.write(1, b'%d\\n' % os.getpid())\nwhile True: os.write(1, bytes(10_000))"
        call = execute(language=PYTHON, code=code, max_output_bytes=16 * 1024**2)
        pid = int((await anext(aiter(call))).stdout.split(b"\n")[0])
        # Long enough for every buffer on the way to fill, the server's handler to wait, and the code behind it.
        await until(lambda: sleeping(pid))

        call.cancel()
        del call

        await until(lambda: not alive(pid) and left_in(tmp_path) == [])
        # The place comes back a moment after the last process has gone.
        while (after := await exit_code(execute, "exit 5")) is None:
            pass
        assert after == 5


async def test_one_run_more_than_there_are_places_is_refused_with_a_delay(tmp_path: Path) -> None:
    async with service(tmp_path, sandbox_places=1) as execute:
        first = execute(language=SHELL, code="echo up; sleep 1000")
        await anext(aiter(first))

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(execute(language=SHELL, code="true")))

        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()


async def test_a_server_that_stops_ends_its_runs(tmp_path: Path) -> None:
    async with service(tmp_path) as execute:
        call = execute(language=PYTHON, code=ENDLESS)
        daemon = int((await anext(aiter(call))).stdout)

    assert not alive(daemon)
    assert left_in(tmp_path) == []


async def test_a_server_that_drains_takes_no_new_run(tmp_path: Path) -> None:
    runtime = Runtime(settings_of())
    async with service(tmp_path, runtime) as execute:
        runtime.stopping.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(execute(language=SHELL, code="true")))

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    async with service(tmp_path) as execute:

        async def one(number: int) -> bytes:
            return b"".join([r.stdout async for r in execute(language=SHELL, code=f"echo {number}")])

        assert await asyncio.gather(*(one(number) for number in range(6))) == [b"%d\n" % n for n in range(6)]


@pytest.mark.parametrize("options", [{"sandbox_dir": "nowhere"}, {"sandbox_python": "/nowhere/python"}])
async def test_a_path_that_is_wrong_stops_the_start_and_says_what_to_do(options: dict[str, str]) -> None:
    settings = settings_of(**options)

    with pytest.raises(StartupError) as caught:
        async with open_sandbox(settings, Runtime(settings)):
            raise AssertionError("it must not start")

    assert "REACH_SANDBOX_" in caught.value.advice


def sleeping(pid: int) -> bool:
    return "S" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def exit_code(execute: Any, code: str) -> int | None:
    """Runs code; None where every place is taken."""
    try:
        responses = [response async for response in execute(language=SHELL, code=code)]
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return None
    return int(responses[-1].result.exit_code)
