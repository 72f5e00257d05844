"""A policy service in a process of its own, whose configuration a test can change."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis.asyncio

from agent_reach.local import LocalRedis
from agent_reach.v1 import dispatcher_pb2_grpc
from services.local.ports import free_ports
from services.local.process import RoleProcess
from tests.conftest import Dsns
from tests.integration.policy.support import PlayedDispatcher

SERVICE_KEY = "the-services-own-key"


@dataclass
class Running:
    """A policy service in a process of its own.

    Attributes:
        config: its folder of `policies.yaml`.
        deployment: its name in Redis.
        process: the process.
        admin_port: where it serves /metrics and /health.
    """

    config: Path
    deployment: str
    process: RoleProcess
    admin_port: int

    def write(self, revision: int, *, cap: str = "3") -> None:
        """Puts another file in the place of the one there, at once as a whole."""
        write_policies(self.config, revision, cap)

    def hang_up(self) -> None:
        """Asks for a reload as an operator does."""
        os.kill(self.process.pid, signal.SIGHUP)

    async def ask(self, path: str) -> str:
        """Returns what the admin port answers."""

        def get() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}") as response:
                text: str = response.read().decode()
                return text

        return await asyncio.to_thread(get)

    async def health(self) -> dict[str, Any]:
        """Returns the health as JSON."""
        answer: dict[str, Any] = json.loads(await self.ask("/health"))
        return answer


def write_policies(folder: Path, revision: int, cap: str = "3") -> None:
    new = folder / ".policies.new"
    new.write_text(
        f"version: {revision}\npolicies: {{default: {{user_daily_cap: {cap}, quiet_hours: null}}}}\n"
        "channels: {email: {}}\n"
    )
    new.rename(folder / "policies.yaml")


@pytest.fixture
def deployment() -> str:
    """A name of its own in the Redis that the tests share."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
async def redis_client(redis_server: LocalRedis) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


@pytest.fixture
async def policy(migrated: Dsns, redis_server: LocalRedis, deployment: str, tmp_path: Path) -> AsyncIterator[Running]:
    dispatcher = grpc.aio.server()
    played = PlayedDispatcher()  # type: ignore[abstract]  # plays only what the policy asks
    dispatcher_pb2_grpc.add_DispatcherServiceServicer_to_server(played, dispatcher)
    dispatcher_port = dispatcher.add_insecure_port("127.0.0.1:0")
    await dispatcher.start()
    config = tmp_path / "config"
    config.mkdir()
    write_policies(config, 1)
    admin_port = next(free_ports())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
    environment = {
        **kept,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "REACH_DEPLOYMENT": deployment,
        "REACH_POSTGRES_ENGINE_DSN": migrated.engine,
        "REACH_POSTGRES_API_DSN": migrated.api,
        "REACH_REDIS_URL": redis_server.url,
        "REACH_CONFIG_DIR": str(config),
        "REACH_SERVICE_KEY": SERVICE_KEY,
        "REACH_DISPATCHER_TARGET": f"127.0.0.1:{dispatcher_port}",
        "REACH_ADMIN_ADDRESS": f"127.0.0.1:{admin_port}",
        "REACH_DRAIN_SECONDS": "1",
    }
    process = RoleProcess("policy", environment, tmp_path / "policy.log")
    await process.start()
    yield Running(config, deployment, process, admin_port)
    await process.stop()
    await dispatcher.stop(0)
