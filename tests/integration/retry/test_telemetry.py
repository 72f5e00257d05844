"""Metrics and traces, where the application has OpenTelemetry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from agent_reach.retry import Retries, RetrySettings, Wait

from .field import FAST, Field


async def test_what_happens_is_counted_timed_and_traced(
    retry: Retries, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider([reader]), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: tracers)
    retry = Retries(field.dsn, settings=RetrySettings(**FAST))
    waited: list[int] = []

    @retry.listener("number", max_attempts=2)
    async def number(value: int) -> Wait | None:
        if value == 2:
            raise RuntimeError("away")
        if value == 4 and not waited:
            waited.append(value)
            return Wait(after=0.01)
        return None

    async with retry.running() as worker:
        for value in (2, 4):
            await field.until_ended(retry.register(None, "number", value).task_id)
        with tracers.get_tracer("test").start_as_current_span("checkout") as checkout:
            registered = retry.register(None, "number", 1)
        await field.until_ended(registered.task_id)
        for _ in range(3):
            retry.register(None, "number", 3, first_delay_seconds=3600)
        retry.register(None, "elsewhere", 1)
        await worker.rounds.count()
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics}

    def counted(name: str) -> dict[tuple[object, ...], float]:
        points: Any = found[name].data.data_points
        return {tuple((point.attributes or {}).values()): point.value for point in points}

    assert counted("reach.retry.registered") == {("number",): 6, ("elsewhere",): 1}
    assert counted("reach.retry.succeeded") == {("number",): 2}
    assert counted("reach.retry.failed") == {("number", "RuntimeError"): 2}
    assert counted("reach.retry.waited") == {("number",): 1}
    assert counted("reach.retry.exhausted") == {("number",): 1}
    assert counted("reach.retry.depth") == {
        ("reach_retry", "number", "WAITING"): 3,
        ("reach_retry", "number", "RUNNING"): 0,
        ("reach_retry", "elsewhere", "WAITING"): 1,
    }
    lateness: Any = found["reach.retry.lateness"].data.data_points
    assert [point.count for point in lateness] == [5]
    assert 0.01 in lateness[0].explicit_bounds, "the buckets are for seconds"
    assert {name.removeprefix("reach.retry."): metric.unit for name, metric in found.items()} == {
        "registered": "{task}",
        "succeeded": "{attempt}",
        "failed": "{attempt}",
        "waited": "{wait}",
        "exhausted": "{task}",
        "lateness": "s",
        "depth": "{task}",
    }
    attempts = [span for span in spans.get_finished_spans() if span.name == "retry number"]
    assert len(attempts) == 5
    assert [len(span.links) for span in attempts] == [0, 0, 0, 0, 1]
    origin, linked = checkout.get_span_context(), attempts[-1].links[0].context
    assert (linked.trace_id, linked.span_id) == (origin.trace_id, origin.span_id), "it says where it was registered"
    meters.shutdown()
    tracers.shutdown()


def test_without_opentelemetry_nothing_is_missing(retry: Retries) -> None:
    script = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from agent_reach.retry import Retries
retry = Retries(sys.argv[1])
@retry.listener("number")
def number(value: int) -> int:
    return value
print(retry.run_now(retry.register(None, "number", 7).task_id))
assert not any(name.startswith("opentelemetry.") for name in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, retry._dsn], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it does not even say what it is")


async def test_the_span_of_an_attempt_that_failed_or_was_stopped_says_so(
    retry: Retries, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: tracers)
    retry = Retries(field.dsn, settings=RetrySettings(**FAST))

    @retry.listener("endless", max_attempts=1, max_execution_seconds=0.1)
    async def endless(value: int) -> None:
        await asyncio.Event().wait()

    @retry.listener("silent", max_attempts=1)
    async def silent(value: int) -> None:
        raise SilentError

    async with retry.running():
        for code in ("endless", "silent"):
            task_id = retry.register(None, code, 1).task_id
            await field.until_ended(task_id)
    stopped, failed = spans.get_finished_spans()
    assert (stopped.status.status_code, failed.status.status_code) == (StatusCode.ERROR, StatusCode.ERROR)
    error = "SilentError: (it cannot be described)"
    assert failed.status.description == error == retry.tasks.show(task_id)[0].last_error
