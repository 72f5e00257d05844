"""A service of four (and a half) kinds of RPC that says what its handler says, and servers to run it on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.wrappers_pb2 import StringValue

from agent_reach.v1 import access_pb2
from services.chassis.api_keys import ApiKey, hash_api_key, write_api_keys
from services.chassis.runtime import Registration, Runtime
from services.chassis.server import Endpoints, serving
from services.chassis.settings import ChassisSettings

NAME = "reach_test.EchoService"
# "Write" streams its responses by `context.write`, "Watch" by yielding them; grpc knows both.
KINDS = ("Unary", "Collect", "Watch", "Write", "Converse")
AGENT_KEY, OPERATOR_KEY, SERVICE_KEY = "reach_agent-key", "reach_operator-key", "reach_service-key"

Handler = Callable[[str, Any], Awaitable[str]]


def _declare() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="reach_test/echo.proto",
        package="reach_test",
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto", "agent_reach/v1/access.proto"],
    )
    service = file.service.add(name="EchoService")
    for kind in (*KINDS, "Closed"):
        method = service.method.add(
            name=kind,
            input_type=".google.protobuf.StringValue",
            output_type=".google.protobuf.StringValue",
            client_streaming=kind in {"Collect", "Converse"},
            server_streaming=kind in {"Watch", "Write", "Converse"},
        )
        if kind != "Closed":
            method.options.Extensions[access_pb2.access].roles.extend([access_pb2.ROLE_AGENT, access_pb2.ROLE_SERVICE])
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


_declare()


class EchoServicer:
    """Answers every kind of RPC by asking one handler."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    async def unary(self, request: StringValue, context: Any) -> StringValue:
        return StringValue(value=await self._handle(request.value, context))

    async def collect(self, requests: AsyncIterator[StringValue], context: Any) -> StringValue:
        return StringValue(value=await self._handle(",".join([request.value async for request in requests]), context))

    async def watch(self, request: StringValue, context: Any) -> AsyncIterator[StringValue]:
        yield StringValue(value=await self._handle(request.value, context))

    async def write(self, request: StringValue, context: Any) -> None:
        await context.write(StringValue(value=await self._handle(request.value, context)))

    async def converse(self, requests: AsyncIterator[StringValue], context: Any) -> AsyncIterator[StringValue]:
        async for request in requests:
            yield StringValue(value=await self._handle(request.value, context))


def _add(servicer: Any, server: grpc.aio.Server) -> None:
    coding = (StringValue.FromString, StringValue.SerializeToString)
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(servicer.unary, *coding),
        "Closed": grpc.unary_unary_rpc_method_handler(servicer.unary, *coding),
        "Collect": grpc.stream_unary_rpc_method_handler(servicer.collect, *coding),
        "Watch": grpc.unary_stream_rpc_method_handler(servicer.watch, *coding),
        "Write": grpc.unary_stream_rpc_method_handler(servicer.write, *coding),
        "Converse": grpc.stream_stream_rpc_method_handler(servicer.converse, *coding),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


def echo(handle: Handler) -> Registration:
    return Registration(add=_add, servicer=EchoServicer(handle), name=NAME)


def start_call(channel: grpc.aio.Channel, kind: str, text: str = "hello", **options: Any) -> Any:
    """Starts an RPC of one kind; the agent's key goes along unless `metadata` says otherwise."""
    options.setdefault("metadata", (("authorization", f"Bearer {AGENT_KEY}"),))
    path, coding = f"/{NAME}/{kind}", (StringValue.SerializeToString, StringValue.FromString)
    request = StringValue(value=text)
    match kind:
        case "Collect":
            return channel.stream_unary(path, *coding)(iter([request]), **options)
        case "Watch" | "Write":
            return channel.unary_stream(path, *coding)(request, **options)
        case "Converse":
            return channel.stream_stream(path, *coding)(iter([request]), **options)
        case _:
            return channel.unary_unary(path, *coding)(request, **options)


async def call(channel: grpc.aio.Channel, kind: str, text: str = "hello", **options: Any) -> str:
    """Runs an RPC of one kind to its end and returns its one answer."""
    running = start_call(channel, kind, text, **options)
    if kind in {"Watch", "Write", "Converse"}:
        [response] = [response async for response in running]
    else:
        response = await running
    value: str = response.value
    return value


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs, and a plain channel to it."""

    endpoints: Endpoints
    runtime: Runtime
    channel: grpc.aio.Channel

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.endpoints.grpc_port}"


def settings_for(directory: Path, **values: Any) -> ChassisSettings:
    keys = directory / "keys.json"
    write_api_keys(
        keys,
        [
            ApiKey(sha256=hash_api_key(AGENT_KEY), tenant="acme", subject="bot", role="agent"),
            ApiKey(sha256=hash_api_key(OPERATOR_KEY), tenant="acme", subject="ops", role="operator"),
        ],
    )
    return ChassisSettings(**{"api_keys_file": keys, "service_key": SERVICE_KEY, "drain_seconds": 30.0, **values})


@asynccontextmanager
async def running(directory: Path, *registrations: Registration, **values: Any) -> AsyncIterator[Running]:
    """Runs the real server of the chassis with these services."""
    settings = settings_for(directory, **values)
    runtime = Runtime(settings)

    @asynccontextmanager
    async def open_service(_settings: ChassisSettings, _runtime: Runtime) -> AsyncIterator[list[Registration]]:
        yield list(registrations)

    async with contextlib.AsyncExitStack() as stack:
        endpoints = await stack.enter_async_context(serving(settings, open_service, runtime))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}"))
        yield Running(endpoints, runtime, channel)
