"""The main job: durable accepts, intents from submit to SENT, and the latency of one unary Submit.

Everything runs on this machine: PostgreSQL with fsync on, Redis, the five services, and this client. Messages go to a
channel that throws them away. The floor is a plain COPY of the same rows into a table with the same indexes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import psycopg
from psycopg import sql

from agent_reach.v1 import (
    message_pb2,
    profile_pb2,
    profile_pb2_grpc,
    reach_pb2,
    reach_pb2_grpc,
)
from bench.cpu import accounted
from bench.report import report
from services.local.data import DataDirectory
from services.local.ports import Ports
from services.local.stack import LocalStack

_CONFIG = Path(__file__).resolve().parent.parent / "config"
_USERS = 1_000
_BATCH = 500
_ACCEPTS = 30_000
_THROUGH = 10_000
_UNARY = 1_000
_AHEAD = 4
_ENDED_UNSENT = frozenset({message_pb2.STATE_FAILED, message_pb2.STATE_SUPPRESSED, message_pb2.STATE_EXPIRED})
_POLICIES = """
version: 3
policies:
  default:
    retry: {max_attempts: 4, base_seconds: 3, cap_seconds: 300, jitter_ratio: 0.3}
    task_ttl_seconds: 86400
    user_daily_cap: 1000000
channels:
  webhook: {burst: 1000000, rate_per_sec: 1000000, daily_quota: 100000000}
scenes:
  alert: {category: alert, channels: [webhook]}
"""


async def run(profile: Path | None) -> None:
    """Runs the benchmark and prints what it measured.

    Args:
        profile: where samples of the services are kept and shown from; None takes none.
    """
    async with _system() as stack, _client(stack) as reach:
        await _make_users(stack)
        await _through(reach, 1_000, "warm")
        latencies = await _unary(reach, _UNARY)
        work: dict[str, float] = {"count": _THROUGH}
        async with accounted(stack, "CPU from submit to SENT", work, profile):
            seconds = work["seconds"] = await _through(reach, _THROUGH, "through")
        # What is stored waits: the policy is away, as in the minutes after an outage of it.
        await stack.roles["policy"].stop()
        work = {"count": _ACCEPTS}
        async with accounted(stack, "CPU of accepting", work, None):
            accept_seconds = work["seconds"] = await _accept(reach, _ACCEPTS)
        copy_seconds = _copy(stack, _ACCEPTS)
    quantiles = statistics.quantiles(latencies, n=100)
    accept_per_s, copy_per_s = _ACCEPTS / accept_seconds, _ACCEPTS / copy_seconds
    report(
        "The main job",
        {
            "accept_per_s": accept_per_s,
            "accept_over_copy": accept_per_s / copy_per_s,
            "e2e_per_s": _THROUGH / seconds,
            "submit_p50_ms": quantiles[49] * 1_000,
            "submit_p99_ms": quantiles[98] * 1_000,
        },
        {
            "accept_per_s": f"durable accepts per second, SubmitStream in batches of {_BATCH}",
            "accept_over_copy": f"the same over a plain COPY of the same rows ({copy_per_s:,.0f}/s)",
            "e2e_per_s": "intents per second from submit to SENT, over a channel that throws away",
            "submit_p50_ms": "one unary Submit at a time, median",
            "submit_p99_ms": "one unary Submit at a time, 99th percentile",
        },
    )


@asynccontextmanager
async def _system() -> AsyncIterator[LocalStack]:
    with _temporary_directory() as folder:
        config = folder / "config"
        shutil.copytree(_CONFIG, config)
        (config / "policies.yaml").write_text(_POLICIES)
        data = DataDirectory(folder / "data")
        with data.held():
            environment = {"REACH_NULL_CHANNELS": '["webhook"]', "REACH_LOG_LEVEL": "warning"}
            async with LocalStack(data, Ports.choose(0), config=config, environment=environment) as stack:
                yield stack


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="reach-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _client(stack: LocalStack) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(stack.endpoints.targets["intake"]) as channel:
        stub: Any = reach_pb2_grpc.ReachServiceStub(channel)
        stub.metadata = (("authorization", f"Bearer {stack.keys.agent}"),)
        yield stub


async def _make_users(stack: LocalStack) -> None:
    async with grpc.aio.insecure_channel(stack.endpoints.targets["policy"]) as channel:
        stub: Any = profile_pb2_grpc.ProfileServiceStub(channel)
        address = message_pb2.Address(channel=message_pb2.CHANNEL_WEBHOOK, value="https://hooks.example.com/x")
        profiles = [profile_pb2.Profile(user_id=f"user-{n}", addresses=[address]) for n in range(_USERS)]
        await stub.UpsertProfiles(
            profile_pb2.UpsertProfilesRequest(profiles=profiles),
            metadata=(("authorization", f"Bearer {stack.keys.agent}"),),
        )


def _spec(prefix: str, number: int) -> reach_pb2.IntentSpec:
    # Each is a text of its own: the same one to the same user within an hour would be sent once.
    variables = json.dumps({"title": f"Disk {prefix}-{number} is full", "detail": f"host db-{number}, volume /data"})
    return reach_pb2.IntentSpec(
        user_id=f"user-{number % _USERS}", scene="alert", variables_json=variables, intent_key=f"{prefix}-{number}"
    )


def _batches(prefix: str, count: int) -> list[reach_pb2.SubmitStreamRequest]:
    return [
        reach_pb2.SubmitStreamRequest(
            sequence=first, intents=[_spec(prefix, first + place) for place in range(min(_BATCH, count - first))]
        )
        for first in range(0, count, _BATCH)
    ]


async def _stream(reach: Any, requests: list[reach_pb2.SubmitStreamRequest]) -> set[str]:
    """Sends batches, a few ahead of their answers; returns the ids."""
    ahead = asyncio.Semaphore(_AHEAD)
    call = reach.SubmitStream(metadata=reach.metadata)

    async def write() -> None:
        for request in requests:
            await ahead.acquire()
            await call.write(request)
        await call.done_writing()

    writing = asyncio.create_task(write())
    ids: set[str] = set()
    async for answer in call:
        ahead.release()
        ids.update(result.accepted.intent_id for result in answer.results)
    await writing
    return ids


async def _accept(reach: Any, count: int) -> float:
    requests = _batches("accept", count)
    start = time.perf_counter()
    ids = await _stream(reach, requests)
    seconds = time.perf_counter() - start
    assert len(ids) == count
    return seconds


async def _through(reach: Any, count: int, prefix: str) -> float:
    """Submits intents and waits until each is told to be SENT.

    Raises:
        RuntimeError: one ended otherwise.
    """
    requests = _batches(prefix, count)
    watch = reach.WatchOutcomes(reach_pb2.WatchOutcomesRequest(from_now=True), metadata=reach.metadata)
    pages = aiter(watch)
    await anext(pages)
    start = time.perf_counter()
    submitting = asyncio.create_task(_stream(reach, requests))
    sent: set[str] = set()
    async for page in pages:
        sent.update(item.intent_id for item in page.outcomes if item.state == message_pb2.STATE_SENT)
        lost = [item for item in page.outcomes if item.state in _ENDED_UNSENT]
        if lost:
            raise RuntimeError(f"{message_pb2.State.Name(lost[0].state)}: {lost[0].reason}")
        if submitting.done() and submitting.result() <= sent:
            break
    watch.cancel()
    return time.perf_counter() - start


async def _unary(reach: Any, count: int) -> list[float]:
    latencies = []
    for number in range(count):
        request = reach_pb2.SubmitRequest(intent=_spec("unary", number))
        start = time.perf_counter()
        await reach.Submit(request, metadata=reach.metadata)
        latencies.append(time.perf_counter() - start)
    return latencies


def _copy(stack: LocalStack, count: int) -> float:
    """Copies the rows that were just accepted into a table like theirs; returns the seconds that COPY took."""
    with psycopg.connect(stack.admin_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE intake.floor (LIKE intake.intents INCLUDING ALL)")
        rows = connection.execute(
            "SELECT * FROM intake.intents WHERE intent_key LIKE 'accept-%%' ORDER BY id LIMIT %s", (count,)
        )
        names = [column.name for column in rows.description or ()]
        values = rows.fetchall()
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        start = time.perf_counter()
        with connection.cursor().copy(sql.SQL("COPY intake.floor ({}) FROM STDIN").format(columns)) as copy:
            for row in values:
                copy.write_row(row)
        return time.perf_counter() - start


if __name__ == "__main__":
    folder = os.environ.get("PROFILE")
    asyncio.run(run(Path(folder) if folder else None))
