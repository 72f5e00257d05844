"""What the dispatcher measures."""

from __future__ import annotations

import prometheus_client


class SendingMetrics:
    """Counts and times attempts."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._attempts = prometheus_client.Counter(
            "reach_send_attempts_total",
            "Attempts to send, by channel and result.",
            ("channel", "result"),
            registry=registry,
        )
        self._seconds = prometheus_client.Histogram(
            "reach_send_seconds", "Length of attempts in seconds, by channel.", ("channel",), registry=registry
        )

    def attempted(self, channel: str, result: str, seconds: float) -> None:
        """Notes one attempt."""
        self._attempts.labels(channel, result).inc()
        self._seconds.labels(channel).observe(seconds)
