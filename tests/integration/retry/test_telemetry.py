"""Metrics and traces, where the application has OpenTelemetry."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_reach.retry import Retries, RetrySettings, telemetry
from agent_reach.retry.worker import Rounds

from .field import FAST, Field


async def test_what_happens_is_counted_timed_and_traced(
    retry: Retries, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider([reader]), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
    retry = Retries(field.dsn, settings=RetrySettings(**FAST))

    @retry.listener("number", max_attempts=2)
    async def number(value: int) -> None:
        if value == 2:
            raise RuntimeError("away")

    async with retry.running() as worker:
        for value in (1, 2):
            await field.until_ended(retry.register(None, "number", value).task_id)
        for _ in range(3):
            retry.register(None, "number", 3, first_delay_seconds=3600)
        retry.register(None, "elsewhere", 1)
        await Rounds(worker, retry.settings, retry._statements, retry._telemetry).count()
    data = reader.get_metrics_data()
    assert data is not None
    points: dict[str, Any] = {
        metric.name: list(metric.data.data_points)
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    counted = {
        name: sum(point.value for point in found) for name, found in points.items() if hasattr(found[0], "value")
    }
    assert counted["reach.retry.registered"] == 6
    assert counted["reach.retry.succeeded"] == 1
    assert counted["reach.retry.failed"] == 2
    assert counted["reach.retry.exhausted"] == 1
    assert points["reach.retry.lateness"][0].count == 3
    assert {
        (point.attributes["code"], point.attributes["state"], point.value) for point in points["reach.retry.depth"]
    } == {("number", "WAITING", 3), ("elsewhere", "WAITING", 1)}
    assert [span.name for span in spans.get_finished_spans()] == ["retry number"] * 3
    meters.shutdown()
    tracers.shutdown()


def test_without_opentelemetry_nothing_is_missing(monkeypatch: pytest.MonkeyPatch, retry: Retries) -> None:
    monkeypatch.setattr(telemetry, "metrics", None)
    monkeypatch.setattr(telemetry, "trace", None)
    without = Retries(retry._dsn, settings=retry.settings)

    @without.listener("number")
    def number(value: int) -> int:
        return value

    assert without.run_now(without.register(None, "number", 7).task_id) == 7
