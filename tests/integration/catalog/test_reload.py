"""The configuration of a running process changes under load, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent_reach.v1 import policy_pb2, policy_pb2_grpc
from services.catalog.presence import list_processes
from services.local.process import RoleProcess
from tests.support.suite import bearer, eventually

from .conftest import SERVICE_KEY, Running

BATCH = 50


class Load:
    """Asks for decisions without a pause, on one stream that must not break.

    Attributes:
        asked: messages that were sent to be judged.
        decided: those of them that were.
        version: hash of the policy by which the last one was decided.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.decided = 0
        self.version = ""

    async def run(self, channel: grpc.aio.Channel, stopping: asyncio.Event) -> None:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        call: Any = stub.Evaluate(metadata=bearer(SERVICE_KEY))
        for sequence in itertools.count(1):
            items = [
                policy_pb2.EvaluateItem(
                    intent_id=str(uuid.uuid4()), tenant="acme", user_id=uuid.uuid4().hex, scene="x"
                )
                for _ in range(BATCH)
            ]
            self.asked += len(items)
            await call.write(policy_pb2.EvaluateRequest(sequence=sequence, items=items))
            answer = await call.read()
            assert (answer.sequence, answer.error.code) == (sequence, 0)
            versions = {decision.policy_version for decision in answer.decisions}
            assert len(versions) == 1, "a batch is judged by one configuration"
            [self.version] = versions
            self.decided += len(answer.decisions)
            if stopping.is_set():
                break
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


@asynccontextmanager
async def load_on(policy: Running, streams: int = 2) -> AsyncIterator[list[Load]]:
    loads = [Load() for _ in range(streams)]
    stopping = asyncio.Event()
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{policy.process.grpc_port}") as channel,
        asyncio.TaskGroup() as group,
    ):
        for load in loads:
            group.create_task(load.run(channel, stopping))
        yield loads
        stopping.set()


def _all(conditions: Callable[[], Iterable[object]]) -> Callable[[], Awaitable[bool]]:
    """Returns a probe that says whether all conditions hold."""

    async def probe() -> bool:
        return all(conditions())

    return probe


async def in_force(policy: Running, revision: int) -> None:
    """Waits until a revision is in force, as the process tells by its health."""

    async def told() -> bool:
        health = await policy.health()
        return f"version {revision}," in health["details"]["configuration"]

    await eventually(told)


async def test_fifty_reloads_under_load_drop_no_decision(policy: Running) -> None:
    async with load_on(policy) as loads:
        await eventually(_all(lambda: (load.version for load in loads)))
        seen = {load.version for load in loads}
        for revision in range(2, 52):
            policy.write(revision)
            policy.hang_up()
            # Every stream goes on, by a version that none has seen.
            await eventually(_all(lambda: (load.version not in seen for load in loads)))
            seen.update(load.version for load in loads)
    assert len(seen) == 51
    assert all(load.asked == load.decided > 0 for load in loads)


async def test_a_change_of_the_file_is_enough(policy: Running) -> None:
    policy.write(2)
    await in_force(policy, 2)


async def test_an_invalid_file_changes_nothing_and_is_told_by_metric_health_and_presence(
    policy: Running, redis_client: Any
) -> None:
    async with load_on(policy, 1) as [load]:
        await eventually(_all(lambda: [load.version]))
        before = load.version
        policy.write(2, cap="many")
        policy.hang_up()

        async def refused() -> bool:
            return "reach_catalog_valid 0.0" in await policy.ask("/metrics")

        await eventually(refused)
        health = await policy.health()
        assert health["status"] == "serving"
        assert "version 1," in health["details"]["configuration"]
        assert "policies.yaml:2: policies.default.user_daily_cap: " in health["details"]["configuration"]

        async def told() -> str:
            [process] = await list_processes(redis_client, policy.deployment)
            return process.error

        assert "policies.yaml:2: " in await eventually(told)
        decided = load.decided
        await eventually(_all(lambda: [load.decided > decided]))
        assert load.version == before
        policy.write(3)
        await in_force(policy, 3)
        assert "reach_catalog_valid 1.0" in await policy.ask("/metrics")
        assert "refused" not in (await policy.health())["details"]["configuration"]
    assert load.asked == load.decided


async def test_a_service_without_a_configuration_bears_the_signal_too(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
    environment = {**kept, "PYTHONPATH": str(Path(__file__).parents[3]), "REACH_SERVICE_KEY": "reach_key"}
    sandbox = RoleProcess("sandbox", environment, tmp_path / "sandbox.log")
    await sandbox.start()
    os.kill(sandbox.pid, signal.SIGHUP)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{sandbox.grpc_port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await sandbox.stop()
    assert await sandbox.wait() == 0
