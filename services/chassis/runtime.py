"""What the chassis hands to a service when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import grpc
import prometheus_client
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from .channels import ServiceChannel, channel_options
from .clock import Clock, SystemClock
from .postgres import Pool, open_pool
from .settings import ChassisSettings
from .startup import StartupError

SettingsT = TypeVar("SettingsT", bound=ChassisSettings)


@dataclass(frozen=True, slots=True)
class Registration:
    """One gRPC service to serve: the generated `add_XServicer_to_server`, the servicer, the full name."""

    add: Callable[[Any, grpc.aio.Server], None]
    servicer: object
    name: str


@dataclass(slots=True)
class Runtime:
    """The process that a service runs in.

    Attributes:
        settings: settings that every service has.
        clock: the one clock of wall-clock decisions.
        stopping: set when the server begins to drain; long streams end then.
        metrics: where the service registers its metrics.
        details: parts of the service that say, in one line for people, how they are; by name. What they say does not
            make the service unready.
        serving: whether it takes calls.
    """

    settings: ChassisSettings
    clock: Clock = field(default_factory=SystemClock)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    metrics: prometheus_client.CollectorRegistry = field(default_factory=prometheus_client.CollectorRegistry)
    details: dict[str, Callable[[], str]] = field(default_factory=dict)
    serving: bool = False
    _channels: list[ServiceChannel] = field(default_factory=list)

    def engine_pool(self) -> AbstractAsyncContextManager[Pool]:
        """Opens the pool of the role engine."""
        return open_pool(
            "engine", self.settings.postgres_engine_dsn.get_secret_value(), self.settings.postgres_pool_size
        )

    def api_pool(self) -> AbstractAsyncContextManager[Pool]:
        """Opens the pool of the role api; use it with `tenant_transaction`."""
        return open_pool("api", self.settings.postgres_api_dsn.get_secret_value(), self.settings.postgres_pool_size)

    @asynccontextmanager
    async def redis(self) -> AsyncIterator[redis.asyncio.Redis]:
        """Opens Redis. It may be away at the start, or at any later moment: callers wait for it."""
        url = self.settings.redis_url.get_secret_value()
        if not url:
            raise StartupError("Redis", "no URL", "set REACH_REDIS_URL")
        # No retry inside the client: whoever asked knows better how long it may wait.
        client = redis.asyncio.Redis.from_url(
            url, socket_timeout=2.0, socket_connect_timeout=2.0, retry=Retry(NoBackoff(), 0)
        )
        try:
            yield client
        finally:
            await client.aclose()

    def channel(self, target: str) -> grpc.aio.Channel:
        """Opens a channel to another service; closed with the process."""
        options = channel_options(self.settings.max_message_bytes)
        channel = ServiceChannel(
            grpc.aio.insecure_channel(target, options=options), self.settings.service_key.get_secret_value()
        )
        self._channels.append(channel)
        return cast("grpc.aio.Channel", channel)

    async def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels:
            await channel.close()


# A service's `open_…` function: builds its parts, yields what to serve, closes all in order.
OpenService = Callable[[SettingsT, Runtime], AbstractAsyncContextManager[list[Registration]]]
