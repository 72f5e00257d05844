"""What each process says of the configuration that it has in force."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import structlog

from agent_reach.durable.tasks import cancel_and_wait
from agent_reach.local import LocalRedis
from services.catalog import presence
from services.catalog.holder import CatalogHolder
from services.catalog.presence import STALE_SECONDS, Presence, ProcessCatalog, list_processes
from tests.support.suite import Suite, eventually, running_suite

from .conftest import Running, write_policies


@pytest.fixture
def holder(tmp_path: Path) -> CatalogHolder:
    write_policies(tmp_path, 1)
    return CatalogHolder(tmp_path)


async def listed(client: redis.asyncio.Redis, deployment: str) -> list[ProcessCatalog]:
    processes: list[ProcessCatalog] = await eventually(lambda: list_processes(client, deployment))
    return processes


async def test_a_process_tells_what_it_has_in_force_and_leaves_when_it_ends(
    policy: Running, redis_client: redis.asyncio.Redis
) -> None:
    [process] = await listed(redis_client, policy.deployment)
    assert process.role == "policy"
    assert process.process == f"policy@{os.uname().nodename}:{policy.process.pid}"
    assert (process.revision, process.error) == (1, "")
    assert process.policy_version == CatalogHolder(policy.config).current.policy_version
    assert abs(datetime.now(UTC) - process.seen_at) < timedelta(minutes=1)
    assert process.loaded_at <= process.seen_at + timedelta(seconds=1)
    policy.write(2)

    async def renewed() -> bool:
        [process] = await list_processes(redis_client, policy.deployment)
        return process.revision == 2

    await eventually(renewed)
    await policy.process.stop()
    assert await list_processes(redis_client, policy.deployment) == []


async def test_every_process_that_holds_a_catalog_is_listed(suite: Suite, redis_client: redis.asyncio.Redis) -> None:
    async with running_suite(suite):

        async def roles() -> bool:
            processes = await list_processes(redis_client, suite.settings["deployment"])
            return [process.role for process in processes] == ["dispatcher", "intake", "policy"]

        await eventually(roles)


async def test_a_process_that_says_nothing_any_more_is_not_listed_and_then_forgotten(
    redis_client: redis.asyncio.Redis, deployment: str, holder: CatalogHolder
) -> None:
    key = f"reach:{deployment}:processes"
    entry = {"role": "policy", "policy_version": "a", "revision": 1, "loaded_at": 0, "error": ""}
    (now, _) = await redis_client.time()
    for name, age in (("old", STALE_SECONDS + 2), ("young", 1)):
        await redis_client.hset(key, name, f"{now - age} {json.dumps(entry)}")
    assert [process.process for process in await list_processes(redis_client, deployment)] == ["young"]
    telling = asyncio.create_task(Presence(redis_client, deployment, "intake", holder).run())

    async def forgotten() -> bool:
        return not await redis_client.hexists(key, "old")

    await eventually(forgotten)
    await cancel_and_wait([telling])
    assert {process.role for process in await list_processes(redis_client, deployment)} == {"policy", "intake"}


async def test_redis_that_is_away_hurts_nobody_and_is_told_once(
    scratch: Path, deployment: str, holder: CatalogHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "REFRESH_SECONDS", 0.01)
    server = LocalRedis(scratch / f"redis-{deployment[-8:]}")
    async with redis.asyncio.Redis.from_url(server.url) as client, redis.asyncio.Redis.from_url(server.url) as reader:
        tries = 0
        tell = client.evalsha

        async def counted(*arguments: Any) -> Any:
            nonlocal tries
            tries += 1
            return await tell(*arguments)

        monkeypatch.setattr(client, "evalsha", counted)
        its = Presence(client, deployment, "policy", holder)
        with structlog.testing.capture_logs() as logs:
            telling = asyncio.create_task(its.run())

            async def tried() -> bool:
                return tries >= 3

            await eventually(tried)
            with server:
                [process] = await listed(reader, deployment)
                await cancel_and_wait([telling])
                await its.leave()
                assert await list_processes(reader, deployment) == []
            await its.leave()
    assert process.role == "policy"
    assert [entry["event"] for entry in logs] == ["redis_away"]
