"""The policy on a real PostgreSQL and a real Redis; only the dispatcher is played."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import prometheus_client
import pytest
import redis.asyncio
from pydantic import SecretStr

from agent_reach.local import LocalRedis
from agent_reach.v1 import dispatcher_pb2_grpc
from services.catalog.holder import CatalogHolder
from services.chassis.clock import ManualClock
from services.chassis.postgres import open_pool
from services.chassis.runtime import Runtime
from services.chassis.server import serving
from services.policy.app import open_policy
from services.policy.counters import Counters
from services.policy.judge import Judge
from services.policy.lookup import Lookup
from services.policy.settings import PolicySettings
from services.policy.store import PolicyStore

from .support import KEYS, POLICIES, SERVICE_KEY, Memory, PlayedDispatcher, Served


@pytest.fixture
def clock() -> ManualClock:
    """Today, at noon in UTC: no quiet hours there. Redis keeps its own time, so the day is the real one."""
    return ManualClock(datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0))


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
async def redis_client(redis_server: LocalRedis) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


@pytest.fixture
def deployment() -> str:
    """A name of its own in the Redis that the tests share."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def counters(redis_client: redis.asyncio.Redis, deployment: str, memory: Memory, clock: ManualClock) -> Counters:
    return Counters(redis_client, deployment=deployment, memory=memory, clearances=memory, clock=clock)


@pytest.fixture
async def store(migrated: Any) -> AsyncIterator[PolicyStore]:
    async with open_pool("engine", migrated.engine, 4) as engine, open_pool("api", migrated.api, 4) as api:
        yield PolicyStore(engine, api)


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    return tmp_path


@pytest.fixture
async def directory(migrated: Any) -> AsyncIterator[Lookup]:
    async with open_pool("engine", migrated.engine, 4) as engine:
        yield Lookup(engine)


@pytest.fixture
def metrics() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def judge(
    config_dir: Path,
    directory: Lookup,
    counters: Counters,
    clock: ManualClock,
    metrics: prometheus_client.CollectorRegistry,
) -> Judge:
    return Judge(CatalogHolder(config_dir), directory, counters, clock, metrics)


@pytest.fixture
async def served(
    migrated: Any, redis_server: LocalRedis, deployment: str, config_dir: Path, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Served]:
    played = PlayedDispatcher()  # type: ignore[abstract]  # plays only what the policy asks
    dispatcher_server = grpc.aio.server()
    dispatcher_pb2_grpc.add_DispatcherServiceServicer_to_server(played, dispatcher_server)
    dispatcher_port = dispatcher_server.add_insecure_port("127.0.0.1:0")
    await dispatcher_server.start()
    keys_file = tmp_path / "keys.json"
    keys_file.write_text(
        json.dumps(
            [
                {"sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": tenant, "subject": key, "role": role}
                for key, (tenant, role) in KEYS.items()
            ]
        )
    )
    values: dict[str, Any] = {
        "deployment": deployment,
        "postgres_engine_dsn": SecretStr(migrated.engine),
        "postgres_api_dsn": SecretStr(migrated.api),
        "redis_url": SecretStr(redis_server.url),
        "config_dir": config_dir,
        "api_keys_file": keys_file,
        "service_key": SecretStr(SERVICE_KEY),
        "dispatcher_target": f"127.0.0.1:{dispatcher_port}",
        "drain_seconds": 1.0,
    }
    settings = PolicySettings(**values)
    runtime = Runtime(settings, clock=clock)
    async with (
        serving(settings, open_policy, runtime) as endpoints,
        grpc.aio.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel,
    ):
        yield Served(f"127.0.0.1:{endpoints.grpc_port}", channel, played, dispatcher_server)
    await dispatcher_server.stop(0)
