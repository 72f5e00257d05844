"""One trace goes through every service that an intent passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.chassis.errors import NotFoundError
from services.chassis.runtime import Runtime
from services.chassis.telemetry import configure_tracing, continued_span, current_traceparent
from tests.integration.chassis.echo import KINDS, call, echo, running, settings_for

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module")
def _tracing() -> None:
    # A process has one provider; this module is the only one that sets it.
    configure_tracing("test", "test", SimpleSpanProcessor(EXPORTER))


@pytest.fixture(autouse=True)
def _fresh(_tracing: None) -> Iterator[None]:
    EXPORTER.clear()
    yield
    EXPORTER.clear()


async def seen(_text: str, _context: object) -> str:
    return current_traceparent()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_service_continues_the_trace_of_its_caller(tmp_path: Path, kind: str) -> None:
    async with running(tmp_path, echo(seen)) as server:
        runtime = Runtime(settings_for(tmp_path))
        channel = runtime.channel(server.target)
        with continued_span("pump", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
            # Without metadata of ours: the channel brings the service's key and the trace.
            seen_by_handler = await call(channel, kind, metadata=None)
        await runtime.close()
    assert seen_by_handler.startswith("00-0af7651916cd43dd8448eb211c80319c-")
    spans = {span.name: span for span in EXPORTER.get_finished_spans()}
    served = spans[f"reach_test.EchoService/{kind}"]
    assert served.kind is trace.SpanKind.SERVER
    assert served.parent is not None
    outer = spans["pump"].get_span_context()
    assert outer is not None
    assert served.parent.span_id == outer.span_id
    assert served.attributes is not None
    assert served.attributes["rpc.grpc.status_code"] == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_side_by_side_keep_their_traces_apart(tmp_path: Path, kind: str) -> None:
    barrier = asyncio.Barrier(5)

    async def handle(_text: str, _context: object) -> str:
        await barrier.wait()
        return current_traceparent()

    async with running(tmp_path, echo(handle)) as server:
        runtime = Runtime(settings_for(tmp_path))
        channel = runtime.channel(server.target)

        async def one(number: int) -> str:
            with continued_span("pump", f"00-{number:032x}-b7ad6b7169203331-01"):
                return await call(channel, kind)

        traces = await asyncio.gather(*(one(number) for number in range(1, 6)))
        await runtime.close()
    assert [text.split("-")[1] for text in traces] == [f"{number:032x}" for number in range(1, 6)]


async def test_a_refusal_is_no_fault_of_the_server_and_an_unexpected_end_is(tmp_path: Path) -> None:
    async def handle(text: str, _context: object) -> str:
        raise NotFoundError("gone") if text == "gone" else RuntimeError(text)

    async with running(tmp_path, echo(handle)) as server:
        for text in ("gone", "broken"):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(server.channel, "Unary", text)
    gone, broken = EXPORTER.get_finished_spans()
    assert (gone.attributes or {})["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert gone.status.status_code is trace.StatusCode.UNSET
    assert broken.status.status_code is trace.StatusCode.ERROR
    assert not broken.events


def test_outside_of_a_trace_there_is_no_traceparent() -> None:
    assert current_traceparent() == ""
    with continued_span("one", ""):
        assert current_traceparent().startswith("00-")
    with continued_span("two", "nonsense"):
        assert current_traceparent().startswith("00-")
