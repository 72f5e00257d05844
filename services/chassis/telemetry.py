"""Traces: OpenTelemetry set up once per process, and the W3C traceparent that intents and tasks keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import grpc
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

_TRACEPARENT = "traceparent"
_CARRIED = ("traceparent", "tracestate")
# The codes that OpenTelemetry counts as the server's own fault.
_SERVER_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_tracer = trace.get_tracer("agent_reach")


def otlp_processor(endpoint: str) -> SpanProcessor | None:
    """Returns what exports spans to a collector; None where none is named."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)) if endpoint else None


def configure_tracing(service: str, deployment: str, processor: SpanProcessor | None) -> TracerProvider:
    """Installs the process's tracer provider.

    Without a processor no span is recorded, which costs little, and every trace keeps its id all the same.
    """
    resource = Resource.create({"service.name": f"agent-reach-{service}", "deployment.environment.name": deployment})
    sampler = ParentBased(ALWAYS_OFF if processor is None else ALWAYS_ON)
    provider = TracerProvider(resource=resource, sampler=sampler)
    if processor is not None:
        provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return provider


def current_traceparent() -> str:
    """Returns the running span as a W3C traceparent, empty when there is none."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get(_TRACEPARENT, "")


@contextmanager
def continued_span(
    name: str, traceparent: str, attributes: dict[str, str | int] | None = None
) -> Iterator[trace.Span]:
    """Runs its body in a span that continues the trace kept on an intent or a task."""
    context = propagate.extract({_TRACEPARENT: traceparent} if traceparent else {})
    with _tracer.start_as_current_span(name, context=context, attributes=attributes) as span:
        yield span


@contextmanager
def server_span(
    method: str, metadata: Iterable[tuple[str, str | bytes]]
) -> Iterator[Callable[[grpc.StatusCode | None], None]]:
    """Runs its body in the server's span of one RPC, and gives a function that takes the status it ended with."""
    carrier = {name: value for name, value in metadata if name in _CARRIED and isinstance(value, str)}
    service, _, name = method.removeprefix("/").partition("/")
    with _tracer.start_as_current_span(
        method.removeprefix("/"),
        context=propagate.extract(carrier),
        kind=trace.SpanKind.SERVER,
        attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": name},
        # What went wrong is logged once, under an id; a refusal is no fault of ours.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:

        def ended(code: grpc.StatusCode | None) -> None:
            status = code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN
            span.set_attribute("rpc.grpc.status_code", status.value[0])
            if status in _SERVER_FAULTS:
                span.set_status(trace.StatusCode.ERROR, status.name)

        yield ended
