"""Metrics and traces through OpenTelemetry, where the application has it; nothing otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from .model import State
from .outcome import described

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:  # the application does without
    metrics = trace = None  # type: ignore[assignment]

_NAME = "agent_reach.retry"
_SCHEMA, _CODE, _STATE = "reach.retry.schema", "reach.retry.code", "reach.retry.state"
# From the milliseconds that a claimed task is late to the minutes after an outage. OpenTelemetry's own are for
# milliseconds.
_LATENESS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class Telemetry:
    """The instruments of one process. Their attributes are the task's code, and its state where it says more.

    Args:
        schema: where the tasks are; an attribute of the depth, since a process may work on more than one.
    """

    def __init__(self, schema: str = "") -> None:
        self._schema = schema
        self._depth: Mapping[tuple[str, State], int] = {}
        self._depth_asked = False
        if metrics is None:
            return
        meter = metrics.get_meter(_NAME)
        self._registered = meter.create_counter(
            "reach.retry.registered", unit="{task}", description="Tasks registered; a rollback is not taken off."
        )
        self._succeeded = meter.create_counter(
            "reach.retry.succeeded", unit="{attempt}", description="Attempts that succeeded."
        )
        self._failed = meter.create_counter(
            "reach.retry.failed", unit="{attempt}", description="Attempts that failed."
        )
        self._waited = meter.create_counter(
            "reach.retry.waited",
            unit="{wait}",
            description="Calls of handlers that had to wait, and were no attempts.",
        )
        self._exhausted = meter.create_counter(
            "reach.retry.exhausted", unit="{task}", description="Tasks out of attempts."
        )
        self._lateness = meter.create_histogram(
            "reach.retry.lateness",
            unit="s",
            description="From the planned moment of an attempt to its start.",
            explicit_bucket_boundaries_advisory=_LATENESS_SECONDS,
        )
        meter.create_observable_gauge(
            "reach.retry.depth",
            callbacks=[lambda _: self._observe()],
            unit="{task}",
            description="Tasks in the whole table that are alive, by code and state; every process tells the same.",
        )

    @property
    def depth_asked(self) -> bool:
        """Whether the depth was asked for since it was told last: counting is not free, and mostly nobody collects."""
        return self._depth_asked

    def origin(self) -> str | None:
        """Returns the span of the caller in the form of W3C's ``traceparent``; None outside of any."""
        if trace is None:
            return None
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get("traceparent")

    def registered(self, code: str) -> None:
        """Counts a registration; its transaction may still be rolled back."""
        if metrics is not None:
            self._registered.add(1, {_CODE: code})

    def started(self, code: str, late_seconds: float) -> None:
        """Notes the start of an attempt."""
        if metrics is not None:
            self._lateness.record(max(0.0, late_seconds), {_CODE: code})

    def attempted(self, code: str, state: State, error: BaseException | None, *, waited: bool) -> None:
        """Counts a call of a handler by what it came to."""
        if metrics is None:
            return
        if waited:
            self._waited.add(1, {_CODE: code})
        elif state is State.SUCCEEDED:
            self._succeeded.add(1, {_CODE: code})
        else:
            kind = "answer" if error is None else type(error).__qualname__
            self._failed.add(1, {_CODE: code, "error.type": kind})

    def ended(self, code: str, state: State) -> None:
        """Counts the end of a task where every attempt has failed."""
        if metrics is not None and state is State.EXHAUSTED:
            self._exhausted.add(1, {_CODE: code})

    def depth(self, counts: Mapping[tuple[str, State], int]) -> None:
        """Takes the queue's depth as it was just counted."""
        self._depth = counts
        self._depth_asked = False

    @property
    def traced(self) -> bool:
        """Whether the application collects traces. Asked once for a batch, since the answer takes a while."""
        return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    @contextmanager
    def span(self, code: str, task_id: object, attempt: int, origin: str | None) -> Iterator[None]:
        """A trace span around one attempt, linked to the span in which the task was registered."""
        attributes: dict[str, Any] = {"reach.retry.task_id": str(task_id), _CODE: code, "reach.retry.attempt": attempt}
        with trace.get_tracer(_NAME).start_as_current_span(
            f"retry {code}",
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(origin),
            # By ourselves: OpenTelemetry takes being stopped for no failure, and fails where an error has no words.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_status(trace.Status(trace.StatusCode.ERROR, described(error)))
                with suppress(Exception):
                    span.record_exception(error)
                raise

    def _observe(self) -> list[Any]:
        self._depth_asked = True
        return [
            metrics.Observation(count, {_SCHEMA: self._schema, _CODE: code, _STATE: state.value})
            for (code, state), count in self._depth.items()
        ]


def _links(origin: str | None) -> list[Any]:
    """A link and no parent: attempts come hours later, and a trace should end."""
    context = TraceContextTextMapPropagator().extract({} if origin is None else {"traceparent": origin})
    found = trace.get_current_span(context).get_span_context()
    return [trace.Link(found)] if found.is_valid else []
