"""Metrics and traces through OpenTelemetry, where the application has it; nothing otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .model import State

try:
    from opentelemetry import metrics, trace
except ImportError:  # the application does without
    metrics = trace = None  # type: ignore[assignment]

_NAME = "agent_reach.retry"


class Telemetry:
    """The instruments of one process. Their attributes are the task's code, and its state where it says more."""

    def __init__(self) -> None:
        self._depth: Mapping[tuple[str, State], int] = {}
        if metrics is None:
            return
        meter = metrics.get_meter(_NAME)
        self._registered = meter.create_counter("reach.retry.registered", description="Tasks registered.")
        self._attempts = {
            "succeeded": meter.create_counter("reach.retry.succeeded", description="Attempts that succeeded."),
            "failed": meter.create_counter("reach.retry.failed", description="Attempts that failed."),
        }
        self._exhausted = meter.create_counter("reach.retry.exhausted", description="Tasks out of attempts.")
        self._lateness = meter.create_histogram(
            "reach.retry.lateness", unit="s", description="From the planned moment of an attempt to its start."
        )
        meter.create_observable_gauge(
            "reach.retry.depth",
            callbacks=[lambda _: self._observe()],
            description="Tasks that are alive, by code and state.",
        )

    @property
    def active(self) -> bool:
        """Whether anybody can see the metrics."""
        return metrics is not None

    def registered(self, code: str) -> None:
        """Counts a registration; its transaction may still be rolled back."""
        if metrics is not None:
            self._registered.add(1, {"code": code})

    def started(self, code: str, late_seconds: float) -> None:
        """Notes the start of an attempt."""
        if metrics is not None:
            self._lateness.record(max(0.0, late_seconds), {"code": code})

    def attempted(self, code: str, state: State) -> None:
        """Counts an attempt by what it came to."""
        if metrics is None:
            return
        self._attempts["succeeded" if state is State.SUCCEEDED else "failed"].add(1, {"code": code})
        if state is State.EXHAUSTED:
            self._exhausted.add(1, {"code": code})

    def depth(self, counts: Mapping[tuple[str, State], int]) -> None:
        """Takes the queue's depth as it was just counted."""
        self._depth = counts

    @contextmanager
    def span(self, code: str, task_id: object, attempt: int) -> Iterator[None]:
        """A trace span around one attempt."""
        if trace is None:
            yield
            return
        attributes: dict[str, Any] = {"reach.task_id": str(task_id), "reach.code": code, "reach.attempt": attempt}
        with trace.get_tracer(_NAME).start_as_current_span(f"retry {code}", attributes=attributes):
            yield

    def _observe(self) -> list[Any]:
        return [
            metrics.Observation(count, {"code": code, "state": state.value})
            for (code, state), count in self._depth.items()
        ]
