"""What a durable engine holds, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

import prometheus_client
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent_reach.durable import Engine


class EngineCollector(Collector):
    """Reads an engine's figures whenever metrics are asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> list[GaugeMetricFamily]:
        """Names nothing ahead: the queues are known when they are asked for."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the rows held by queue and place, and the age of the lease."""
        stats = self._engine.stats()
        rows = GaugeMetricFamily(
            "reach_queue_rows", "Rows that this process holds, by queue and place.", labels=("queue", "place")
        )
        for name, queue in stats.queues.items():
            for place in ("heap", "in_flight", "settling", "reserved", "free"):
                rows.add_metric((name, place), getattr(queue, place))
        yield rows
        yield GaugeMetricFamily(
            "reach_lease_age_seconds", "Seconds since the engine's lease was renewed.", value=stats.lease_age_seconds
        )


def register_engine(registry: prometheus_client.CollectorRegistry, engine: Engine) -> None:
    """Adds an engine's figures to the process's metrics."""
    registry.register(EngineCollector(engine))
