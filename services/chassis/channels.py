"""Channels to the other services: key, trace and a deadline on every call, keepalive, spread over replicas."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
from opentelemetry import propagate

from .deadline import remaining_seconds

_DEFAULT_DEADLINE_SECONDS = 15.0
# Every unary RPC between services is idempotent, so all of them may be tried again.
_SERVICE_CONFIG = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
    }
)


def channel_options(max_message_bytes: int) -> list[tuple[str, Any]]:
    """Returns the options that fit our servers' keepalive rules."""
    return [
        ("grpc.service_config", _SERVICE_CONFIG),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # In spite of its name this is the time that one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]


class ServiceChannel:
    """A channel whose every call carries the service key, the trace and a deadline.

    Stands where the generated stubs want a `grpc.aio.Channel`. A wrapper and not interceptors: those of grpc.aio
    put a task and a queue between the caller and a stream.
    """

    def __init__(self, channel: grpc.aio.Channel, key: str) -> None:
        self._channel = channel
        self._authorization = ("authorization", f"Bearer {key}")

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns the callable of a unary RPC."""
        return self._bounded(self._channel.unary_unary(method, *arguments, **options))

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns the callable of a client-streaming RPC."""
        return self._bounded(self._channel.stream_unary(method, *arguments, **options))

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns the callable of a server-streaming RPC; it has no deadline, its reader watches it."""
        return self._authorized(self._channel.unary_stream(method, *arguments, **options))

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns the callable of a bidirectional RPC; deadlines are per batch."""
        return self._authorized(self._channel.stream_stream(method, *arguments, **options))

    async def close(self) -> None:
        """Closes the channel; running calls are cancelled."""
        await self._channel.close()

    def _bounded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def bounded(request: object = None, *, timeout: float | None = None, **options: Any) -> Any:
            options["metadata"] = self._metadata()
            return call(request, timeout=remaining_seconds(timeout or _DEFAULT_DEADLINE_SECONDS), **options)

        return bounded

    def _authorized(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def authorized(request: object = None, **options: Any) -> Any:
            options["metadata"] = self._metadata()
            return call(request, **options)

        return authorized

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return (self._authorization, *carrier.items())
