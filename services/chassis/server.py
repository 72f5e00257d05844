"""Starts a service's gRPC server and its admin port, and drains both in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from .admin import serving_admin
from .api_keys import KeyRing
from .batch_stream import until_stopping
from .interceptors import (
    AroundInterceptor,
    ReadingInterceptor,
    authenticate,
    limit_deadline,
    map_exceptions,
    observe,
    trace,
)
from .logs import configure_logs
from .runtime import OpenService, Registration, Runtime, SettingsT
from .settings import ChassisSettings
from .startup import StartupError
from .telemetry import configure_tracing, otlp_processor

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running service listens."""

    grpc_port: int
    admin_port: int


class DrainingHealth(health.aio.HealthServicer):  # type: ignore[misc]  # the package has no types
    """The standard health service, whose watchers are told of the end and then do not hold up a server that stops."""

    def __init__(self, stopping: asyncio.Event) -> None:
        super().__init__()
        self._stopping = stopping

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """Streams changes of health until the caller or the server goes."""
        watched = _Watched(context)
        watch = asyncio.ensure_future(super().Watch(request, watched))
        stop = asyncio.ensure_future(self._stop_after_last_word(watched))
        try:
            await asyncio.wait({watch, stop}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
        finally:
            for task in (watch, stop):
                task.cancel()
            await asyncio.gather(watch, stop, return_exceptions=True)

    async def _stop_after_last_word(self, watched: _Watched) -> None:
        await self._stopping.wait()
        await watched.not_serving.wait()


class _Watched:
    """The stream of one watcher, and whether the last that it was told is that the service does not serve."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.not_serving = asyncio.Event()

    async def write(self, response: health_pb2.HealthCheckResponse) -> None:
        await self._context.write(response)
        if response.status == health_pb2.HealthCheckResponse.SERVING:
            self.not_serving.clear()
        else:
            self.not_serving.set()


class DrainingReflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # the package has no types
    """Server reflection, whose open streams do not hold up a server that stops."""

    def __init__(self, services: Sequence[str], stopping: asyncio.Event) -> None:
        super().__init__(services)
        self._stopping = stopping

    async def ServerReflectionInfo(
        self, request_iterator: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Any
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """Answers questions about the services until the caller or the server goes."""
        async with contextlib.aclosing(until_stopping(request_iterator, self._stopping)) as requests:
            async for response in super().ServerReflectionInfo(requests, context):
                yield response


@asynccontextmanager
async def serving(
    settings: SettingsT, open_service: OpenService[SettingsT], runtime: Runtime
) -> AsyncIterator[Endpoints]:
    """Runs a service for as long as the body runs, then drains it.

    Raises:
        StartupError: a part could not be started; what was started before is stopped.
    """
    keys = KeyRing.load(settings.api_keys_file, settings.service_key.get_secret_value())
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(runtime.close)
        admin_port = await stack.enter_async_context(serving_admin(settings.admin_address, runtime))
        registrations = await stack.enter_async_context(open_service(settings, runtime))
        server = grpc.aio.server(
            interceptors=[
                AroundInterceptor(trace),
                AroundInterceptor(observe(runtime.metrics)),
                AroundInterceptor(map_exceptions),
                AroundInterceptor(authenticate(keys)),
                AroundInterceptor(limit_deadline(settings.max_deadline_seconds)),
                ReadingInterceptor(),
            ],
            options=_server_options(settings.max_message_bytes),
        )
        health_servicer = DrainingHealth(runtime.stopping)
        _register(server, registrations, health_servicer, runtime.stopping)
        for name in ("", *(registration.name for registration in registrations)):
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        grpc_port = _listen(server, settings.grpc_address)
        await server.start()
        runtime.serving = True
        _log.info("serving", grpc_port=grpc_port, admin_port=admin_port)
        try:
            yield Endpoints(grpc_port, admin_port)
        finally:
            runtime.serving = False
            await health_servicer.enter_graceful_shutdown()
            await asyncio.sleep(settings.drain_delay_seconds)
            runtime.stopping.set()
            await server.stop(settings.drain_seconds)
            _log.info("stopped")


async def serve_until_signal(
    role: str,
    settings: SettingsT,
    open_service: OpenService[SettingsT],
    on_ready: Callable[[Endpoints], None] = lambda _endpoints: None,
) -> None:
    """Runs a service until SIGTERM or SIGINT, with logs and traces set up."""
    configure_logs(role, settings.log_level, settings.log_format)
    provider = configure_tracing(role, settings.deployment, otlp_processor(settings.otlp_endpoint))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Asks for a reload; a service that has nothing to reload must not die of it. (Ignored, it would be so for children.)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with serving(settings, open_service, Runtime(settings)) as endpoints:
            _tune_collector()
            on_ready(endpoints)
            await stop.wait()
    finally:
        provider.shutdown()


def _tune_collector() -> None:
    """Has the garbage collector run as often as it is of use to a server of batches: a tenth of the CPU otherwise.

    What the start has made stays, and need not be walked through again. A batch makes thousands of objects that live as
    long as it does: by default it would be walked through many times.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _register(
    server: grpc.aio.Server,
    registrations: Sequence[Registration],
    health_servicer: DrainingHealth,
    stopping: asyncio.Event,
) -> None:
    for registration in registrations:
        registration.add(registration.servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    names = [*(registration.name for registration in registrations), health.SERVICE_NAME, reflection.SERVICE_NAME]
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(DrainingReflection(names, stopping), server)


def _listen(server: grpc.aio.Server, address: str) -> int:
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartupError(
            "gRPC server", f"cannot listen on {address}", "another process may have the port; set REACH_GRPC_ADDRESS"
        ) from error


def _server_options(max_message_bytes: int) -> list[tuple[str, Any]]:
    return [
        # A second server on the same port must fail, not share it.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Connections are renewed so that load spreads to replicas that came later.
        ("grpc.max_connection_age_ms", 300_000),
        ("grpc.max_connection_age_grace_ms", 60_000),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    ]


def check_targets(settings: ChassisSettings, *services: str) -> None:
    """Checks that the targets of the named services are set.

    Raises:
        StartupError: one is missing.
    """
    for service in services:
        if not getattr(settings, f"{service}_target"):
            raise StartupError(service, "its address is not known", f"set REACH_{service.upper()}_TARGET")
