"""Server interceptors, outermost first: trace → log and metrics → exception mapping → auth → deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, cast

import grpc
import prometheus_client
import structlog
from google.protobuf import descriptor_pool

from agent_reach.v1 import access_pb2

from .api_keys import KeyRing
from .deadline import set_deadline
from .errors import PermissionDeniedError, to_status
from .faults import describe_fault
from .principal import set_principal
from .telemetry import server_span
from .undecodable import lenient, refuse_undecodable

_log = structlog.get_logger(__name__)
_OPEN_PREFIXES = ("/grpc.health.v1.", "/grpc.reflection.")
_STATUS_DETAILS = "grpc-status-details-bin"

Context = grpc.aio.ServicerContext[Any, Any]
# Wraps the handling of one RPC: (context, full method name, whether the response is a stream).
Around = Callable[[Context, str, bool], AbstractAsyncContextManager[None]]


class AroundInterceptor(grpc.aio.ServerInterceptor):
    """Runs every RPC, of all four kinds, inside an async context manager."""

    def __init__(self, around: Around) -> None:
        self._around = around
        # Handlers do not change once the server runs, so each method is wrapped once, not once per call.
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the handler with its behaviour wrapped."""
        method = handler_call_details.method
        if (known := self._wrapped.get(method)) is not None:
            return known
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        behavior = self._wrap(_behavior(handler), method, streams=handler.response_streaming)
        self._wrapped[method] = _rebuilt(handler, behavior, handler.request_deserializer)
        return self._wrapped[method]

    def _wrap(self, behavior: Callable[..., Any], method: str, *, streams: bool) -> Callable[..., Any]:
        around = self._around
        if inspect.isasyncgenfunction(behavior):
            # As a coroutine that writes: a generator that grpc drops when its caller goes would be closed by the
            # garbage collector, some time later and in another context.
            async def stream(request: object, context: Context) -> None:
                async with around(context, method, streams), aclosing(behavior(request, context)) as responses:
                    async for response in responses:
                        await context.write(response)

            return stream

        async def single(request: object, context: Context) -> object:
            async with around(context, method, streams):
                return await behavior(request, context)

        return single


class ReadingInterceptor(grpc.aio.ServerInterceptor):
    """Refuses requests that cannot be read, in the place of gRPC: to be the innermost, so after authentication.

    Streams get them as `Undecodable`: what can be saved of a batch is their handlers' business.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the handler with a deserializer that does not fail."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return cast("grpc.RpcMethodHandler[Any, Any] | None", handler)
        behavior = _behavior(handler)
        if not handler.request_streaming:
            behavior = _refusing(behavior)
        return _rebuilt(handler, behavior, lenient(handler.request_deserializer))


def _refusing(behavior: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(behavior):

        async def stream(request: object, context: Context) -> AsyncIterator[Any]:
            refuse_undecodable(request)
            async with aclosing(behavior(request, context)) as responses:
                async for response in responses:
                    yield response

        return stream

    async def single(request: object, context: Context) -> object:
        refuse_undecodable(request)
        return await behavior(request, context)

    return single


def _behavior(handler: Any) -> Callable[..., Any]:
    """Returns the function behind a handler, of whichever of the four kinds."""
    behavior: Callable[..., Any] = getattr(handler, _kind(handler))
    return behavior


def _rebuilt(
    handler: Any, behavior: Callable[..., Any], deserializer: Callable[[bytes], Any]
) -> grpc.RpcMethodHandler[Any, Any]:
    factory = getattr(grpc, f"{_kind(handler)}_rpc_method_handler")
    rebuilt: grpc.RpcMethodHandler[Any, Any] = factory(behavior, deserializer, handler.response_serializer)
    return rebuilt


def _kind(handler: Any) -> str:
    kinds = {False: "unary", True: "stream"}
    return f"{kinds[handler.request_streaming]}_{kinds[handler.response_streaming]}"


@asynccontextmanager
async def trace(context: Context, method: str, _streams: bool) -> AsyncIterator[None]:  # noqa: FBT001 - the port
    """Runs the RPC in a span that continues the caller's trace.

    Not `aio_server_interceptor` of opentelemetry-instrumentation-grpc: it fails on handlers that write to their
    stream instead of yielding, which all batch streams and the health service do.
    """
    with server_span(method, context.invocation_metadata() or ()) as ended:
        try:
            yield
        except Exception:
            ended(context.code())
            raise
        ended(grpc.StatusCode.OK)


def observe(registry: prometheus_client.CollectorRegistry) -> Around:
    """Counts and times every RPC, and logs the failed ones."""
    handled = prometheus_client.Counter(
        "reach_rpc_handled_total", "RPCs by method and status code.", ("method", "code"), registry=registry
    )
    seconds = prometheus_client.Histogram(
        "reach_rpc_seconds", "Length of unary RPCs in seconds.", ("method",), registry=registry
    )

    @asynccontextmanager
    async def around(context: Context, method: str, streams: bool) -> AsyncIterator[None]:  # noqa: FBT001 - the port
        start = time.perf_counter()
        code = "CANCELLED"
        try:
            yield
            code = "OK"
        except (grpc.aio.AbortError, Exception):
            status = context.code()
            code = status.name if isinstance(status, grpc.StatusCode) else "UNKNOWN"
            raise
        finally:
            elapsed = time.perf_counter() - start
            handled.labels(method, code).inc()
            if not streams:
                seconds.labels(method).observe(elapsed)
            log = _log.debug if code in {"OK", "CANCELLED"} else _log.info
            log("rpc", method=method, status=code, duration_seconds=round(elapsed, 4))

    return around


@asynccontextmanager
async def map_exceptions(context: Context, _method: str, _streams: bool) -> AsyncIterator[None]:  # noqa: FBT001 - the port
    """Ends the RPC with the rich status of the error that was raised."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is not mapped here leaks its text to the caller
        fault = describe_fault(error)
        status = to_status(fault)
        await context.abort(fault.code, status.message, ((_STATUS_DETAILS, status.SerializeToString()),))


def authenticate(keys: KeyRing) -> Around:
    """Finds the principal behind the API key and checks its role against the contract's access rule."""
    allowed: dict[str, frozenset[access_pb2.Role.ValueType]] = {}

    @asynccontextmanager
    async def around(context: Context, method: str, _streams: bool) -> AsyncIterator[None]:  # noqa: FBT001 - the port
        if not method.startswith(_OPEN_PREFIXES):
            principal = keys.authenticate(_api_key(context))
            roles = allowed.get(method)
            if roles is None:
                roles = allowed[method] = allowed_roles(method)
            if principal.role not in roles:
                role = access_pb2.Role.Name(principal.role).removeprefix("ROLE_")
                raise PermissionDeniedError(f"the role {role} may not call {method}", metadata={"role": role})
            set_principal(principal)
        yield

    return around


def allowed_roles(method: str) -> frozenset[access_pb2.Role.ValueType]:
    """Returns the roles that the contract lets call a method, for example ``/agent_reach.v1.ReachService/Submit``."""
    service_name, _, method_name = method.removeprefix("/").partition("/")
    service = descriptor_pool.Default().FindServiceByName(service_name)
    options = service.methods_by_name[method_name].GetOptions()
    return frozenset(options.Extensions[access_pb2.access].roles)


def limit_deadline(max_seconds: float) -> Around:
    """Ends unary work at the caller's deadline, at most after `max_seconds`; what it calls inherits the rest."""

    @asynccontextmanager
    async def around(context: Context, _method: str, streams: bool) -> AsyncIterator[None]:  # noqa: FBT001 - the port
        remaining = context.time_remaining()
        if streams:
            set_deadline(None if remaining is None else remaining)
            yield
            return
        seconds = max_seconds if remaining is None else min(remaining, max_seconds)
        set_deadline(seconds)
        async with asyncio.timeout(seconds):
            yield

    return around


def _api_key(context: Context) -> str:
    for name, value in context.invocation_metadata() or ():
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
        if name == "authorization":
            scheme, _, key = text.partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
        if name == "x-api-key":
            return text
    return ""
