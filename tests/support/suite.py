"""The services of the suite in this process, on real gRPC, PostgreSQL and Redis, with parts that a test can set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from pydantic import SecretStr

from services.chassis.api_keys import ApiKey, hash_api_key, new_api_key, write_api_keys
from services.chassis.clock import Clock, SystemClock
from services.chassis.runtime import Runtime
from services.chassis.server import serving
from services.dispatcher.app import open_dispatcher
from services.dispatcher.settings import DispatcherSettings
from services.intake.app import open_intake
from services.intake.settings import IntakeSettings
from services.local.ports import free_ports
from services.policy.app import open_policy
from services.policy.settings import PolicySettings

CONFIG = Path(__file__).parents[2] / "config"
SERVICE_KEY = "reach_service_key_of_the_tests"
_SERVICES: Mapping[str, tuple[Any, Any]] = {
    "policy": (PolicySettings, open_policy),
    "dispatcher": (DispatcherSettings, open_dispatcher),
    "intake": (IntakeSettings, open_intake),
}

_DRAIN = ("intake", "dispatcher", "policy")


@dataclass
class Suite:
    """Runs policy, dispatcher and intake; each can be stopped and started by itself.

    Attributes:
        settings: what every service gets.
        own: what single services get beside, by name.
        agent_key: API key of an agent of tenant "acme"; `operator_key` likewise.
    """

    settings: dict[str, Any]
    keys_file: Path
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    clock: Clock = field(default_factory=SystemClock)
    agent_key: str = field(default_factory=new_api_key)
    operator_key: str = field(default_factory=new_api_key)
    other_tenant_key: str = field(default_factory=new_api_key)
    ports: dict[str, int] = field(default_factory=lambda: dict(zip(_SERVICES, free_ports(), strict=False)))
    _running: dict[str, AsyncExitStack] = field(default_factory=dict)
    _channels: list[grpc.aio.Channel] = field(default_factory=list)

    def write_keys(self) -> None:
        """Writes the API key file that the services read."""
        owners = ((self.agent_key, "acme", "agent"), (self.operator_key, "acme", "operator"))
        keys = [
            ApiKey(sha256=hash_api_key(key), tenant=tenant, subject=f"the-{role}", role=role)
            for key, tenant, role in owners
        ]
        keys.append(
            ApiKey(sha256=hash_api_key(self.other_tenant_key), tenant="other", subject="stranger", role="agent")
        )
        write_api_keys(self.keys_file, keys)

    async def start(self, *names: str) -> None:
        """Starts services; all that exist when none is named. `dispatcher#2` is another replica of the dispatcher."""
        for name in names or _SERVICES:
            self.ports.setdefault(name, next(free_ports()))
            base = name.partition("#")[0]
            kind, opener = _SERVICES[base]
            values = {
                **self.settings,
                "grpc_address": f"127.0.0.1:{self.ports[name]}",
                "service_key": SecretStr(SERVICE_KEY),
                "api_keys_file": self.keys_file,
                **{f"{other}_target": f"127.0.0.1:{self.ports[other]}" for other in _SERVICES},
                **self.own.get(base, {}),
            }
            stack = AsyncExitStack()
            settings = kind(**values)
            await stack.enter_async_context(serving(settings, opener, Runtime(settings, self.clock)))
            self._running[name] = stack

    async def stop(self, *names: str) -> None:
        """Stops services in the order of their drain; all that run when none is named."""
        for name in names or sorted(self._running, key=lambda name: _DRAIN.index(name.partition("#")[0])):
            stack = self._running.pop(name, None)
            if stack is not None:
                await stack.aclose()

    def channel(self, name: str) -> grpc.aio.Channel:
        """Opens a plain channel to a service; calls pass `metadata=bearer(key)`."""
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.ports[name]}")
        self._channels.append(channel)
        return channel

    async def close(self) -> None:
        """Stops everything."""
        for channel in self._channels:
            await channel.close()
        await self.stop()


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata that carries an API key."""
    return (("authorization", f"Bearer {key}"),)


@asynccontextmanager
async def running_suite(suite: Suite, *names: str) -> AsyncIterator[Suite]:
    """Runs a suite for the length of the body."""
    suite.write_keys()
    try:
        await suite.start(*names)
        yield suite
    finally:
        await suite.close()


async def eventually(probe: Callable[[], Awaitable[Any]], *, timeout_seconds: float = 20.0) -> Any:
    """Asks again and again until the probe returns something true; returns that.

    Raises:
        TimeoutError: it never did.
    """
    async with asyncio.timeout(timeout_seconds):
        while not (value := await probe()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # what is asked lies in databases, which set no event
        return value
