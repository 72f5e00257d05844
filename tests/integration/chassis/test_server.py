"""A server starts whole or not at all, and stops in order. Whatever held a stop up would hold it for an hour."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.chassis.runtime import Registration, Runtime
from services.chassis.server import check_targets, serving
from services.chassis.settings import ChassisSettings
from services.chassis.startup import StartupError
from tests.integration.chassis.echo import NAME, call, echo, running, settings_for, start_call

HOUR = 3_600.0
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def repeat(text: str, _context: object) -> str:
    return text


async def test_any_grpc_tool_can_ask_what_is_served(tmp_path: Path) -> None:
    async with running(tmp_path, echo(repeat), drain_seconds=HOUR) as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        stream = stub.ServerReflectionInfo()
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await stream.read()).list_services_response.service
        assert {service.name for service in listed} == {
            NAME,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        await stream.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=NAME))
        assert (await stream.read()).file_descriptor_response.file_descriptor_proto
        # The stream stays open: it does not hold up the stop.


@pytest.mark.parametrize("service", ["", NAME])
async def test_a_watcher_of_health_is_told_of_the_end_and_does_not_hold_it_up(tmp_path: Path, service: str) -> None:
    told: list[int] = []
    first = asyncio.Event()

    async def listen(target: str) -> None:
        async with grpc.aio.insecure_channel(target) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            async for response in stub.Watch(health_pb2.HealthCheckRequest(service=service)):
                told.append(response.status)
                first.set()

    async with running(tmp_path, echo(repeat), drain_seconds=HOUR) as server:
        listener = asyncio.create_task(listen(server.target))
        await first.wait()
    await listener
    assert told == [SERVING, NOT_SERVING]


async def test_a_watcher_of_an_unknown_service_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with running(tmp_path, echo(repeat), drain_seconds=HOUR) as server:
        watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest(service="nobody"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def test_health_is_down_while_running_calls_end(tmp_path: Path) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def handle(text: str, _context: object) -> str:
        started.set()
        await finish.wait()
        return text

    channel: grpc.aio.Channel

    async def drain() -> None:
        nonlocal channel
        async with running(tmp_path, echo(handle), drain_seconds=HOUR) as server:
            channel = grpc.aio.insecure_channel(server.target)
            slow.set_result(start_call(channel, "Unary", "done"))
            watch.set_result(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
            await started.wait()

    loop = asyncio.get_running_loop()
    slow, watch = loop.create_future(), loop.create_future()
    server_task = asyncio.create_task(drain())
    stream = await watch
    while (await stream.read()).status != NOT_SERVING:
        pass
    finish.set()
    assert (await (await slow)).value == "done"
    await server_task
    await channel.close()


async def test_a_second_server_on_the_same_port_fails_and_stops_what_it_had_started(tmp_path: Path) -> None:
    closed = asyncio.Event()

    @asynccontextmanager
    async def open_service(_settings: ChassisSettings, _runtime: Runtime) -> AsyncIterator[list[Registration]]:
        try:
            yield [echo(repeat)]
        finally:
            closed.set()

    async with running(tmp_path, echo(repeat)) as first:
        settings = settings_for(tmp_path, grpc_address=first.target)
        with pytest.raises(StartupError, match="cannot listen on 127") as caught:
            async with serving(settings, open_service, Runtime(settings)):
                pass
        assert "REACH_GRPC_ADDRESS" in caught.value.advice
        assert closed.is_set()
        assert await call(first.channel, "Unary") == "hello"


@pytest.mark.parametrize("address", ["taken", "127.0.0.1:nonsense", "127.0.0.1:99999"])
async def test_an_admin_port_that_cannot_be_had_says_so(tmp_path: Path, address: str) -> None:
    async with running(tmp_path, echo(repeat)) as first:
        taken = f"127.0.0.1:{first.endpoints.admin_port}" if address == "taken" else address
        with pytest.raises(StartupError, match="admin port: cannot listen on"):
            async with running(tmp_path, echo(repeat), admin_address=taken):
                pass


async def test_metrics_stand_on_the_admin_port(tmp_path: Path) -> None:
    async with running(tmp_path, echo(repeat)) as server:
        await call(server.channel, "Unary")
        address = f"http://127.0.0.1:{server.endpoints.admin_port}/metrics"

        def read() -> str:
            with urllib.request.urlopen(address) as response:
                text: str = response.read().decode()
                return text

        text = await asyncio.to_thread(read)
    assert f'reach_rpc_handled_total{{code="OK",method="/{NAME}/Unary"}} 1.0' in text
    assert "process_cpu_seconds_total" in text


async def test_health_stands_on_the_admin_port_with_what_the_parts_have_to_say(tmp_path: Path) -> None:
    async with running(tmp_path, echo(repeat)) as server:
        address = f"http://127.0.0.1:{server.endpoints.admin_port}/health"

        def read() -> tuple[int, dict[str, object]]:
            try:
                with urllib.request.urlopen(address) as response:
                    return response.status, json.load(response)
            except urllib.error.HTTPError as refusal:
                return refusal.code, json.load(refusal)

        assert await asyncio.to_thread(read) == (200, {"status": "serving", "details": {}})
        server.runtime.details["configuration"] = lambda: "the files are refused"
        details = {"configuration": "the files are refused"}
        assert await asyncio.to_thread(read) == (200, {"status": "serving", "details": details})
        server.runtime.serving = False
        assert await asyncio.to_thread(read) == (503, {"status": "not serving", "details": details})


async def test_a_key_file_that_is_not_valid_says_so_without_showing_it(tmp_path: Path) -> None:
    keys = tmp_path / "wrong.json"
    keys.write_text('[{"sha256": "reach_the-key-itself", "tenant": "acme", "subject": "bot", "role": "agent"}]')
    with pytest.raises(StartupError) as caught:
        async with running(tmp_path, echo(repeat), api_keys_file=keys):
            pass
    assert "the-key-itself" not in str(caught.value)
    assert "sha256" in str(caught.value)


def test_a_service_that_needs_another_names_the_setting_that_is_missing() -> None:
    settings = ChassisSettings(policy_target="127.0.0.1:1")
    check_targets(settings, "policy")
    with pytest.raises(StartupError) as caught:
        check_targets(settings, "policy", "dispatcher")
    assert "REACH_DISPATCHER_TARGET" in caught.value.advice
