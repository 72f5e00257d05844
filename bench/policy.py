"""The policy: pure judgements, and decisions through everything, against the bare Lua calls that they cannot do without.

Everything runs on this machine: PostgreSQL, Redis, the services as real processes, and this client. Every decision is
a SEND_NOW: profile, preferences and suppressions are looked up, the zone is heeded, a place in the caps is reserved.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import grpc
import psutil
import redis.asyncio
import uvloop
from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import message_pb2, policy_pb2, policy_pb2_grpc, profile_pb2, profile_pb2_grpc
from bench.report import report
from services.catalog.catalog import load_catalog
from services.catalog.rules import Channel
from services.local.data import TENANT, DataDirectory
from services.local.ports import Ports
from services.local.stack import LocalStack
from services.policy.decision import Facts, Item, Person, Usage
from services.policy.evaluate import Bench
from services.policy.judge import rules_for

_CONFIG = Path(__file__).resolve().parent.parent / "config"
_SCENE = "order_shipped"
_ZONES = ("Europe/Zurich", "America/New_York", "Asia/Tokyo", "Etc/UTC")
_USERS = 3_000
_BATCH = 100
_ROUNDS = 3
_DECISIONS = 6_000
_PURE = 10_000
_ONE_BY_ONE = 300
_AHEAD = 4
_REACH_SECONDS = 180_000
# The quiet hour begins half a day from now, so that it is none now in any of the zones above.
_POLICIES = """
version: 3
policies:
  default:
    quiet_hours: ["{start:%H:%M}", "{end:%H:%M}"]
    user_daily_cap: 1000
    user_channel_daily_cap: {{email: 1000}}
channels:
  sms: {{daily_quota: 1000000}}
  email: {{daily_quota: 100000000}}
  inbox: {{}}
scenes:
  order_shipped: {{category: notification}}
"""

# Makes so many bare calls.
Calls = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round measured; CPU in seconds per decision, or per call."""

    pure_per_s: float
    stream_per_s: float
    stream_cpu: float
    bare_cpu: float
    one_by_one_per_s: float


async def run() -> None:
    """Runs the benchmark and prints what it measured."""
    with _configuration() as config:
        async with _system(config) as stack, _evaluating(stack) as evaluate, _redis(stack) as client:
            await _make_users(stack)
            # Every user's counters are loaded once, and what is slow the first time has happened.
            await _stream(evaluate, _requests(_USERS, _BATCH), _AHEAD)
            calls = await _bare_calls(client)
            rounds = [await _round(config, stack, evaluate, calls) for _ in range(_ROUNDS)]

    def median(figure: Callable[[Round], float]) -> float:
        return statistics.median(map(figure, rounds))

    service, bare = median(lambda one: one.stream_cpu), median(lambda one: one.bare_cpu)
    report(
        "The policy",
        {
            "pure_per_s": median(lambda one: one.pure_per_s),
            "stream_per_s": median(lambda one: one.stream_per_s),
            "cpu_over_bare_lua": median(lambda one: one.stream_cpu / one.bare_cpu),
            "over_one_by_one": median(lambda one: one.stream_per_s / one.one_by_one_per_s),
        },
        {
            "pure_per_s": f"pure judgements per second of one core, in batches of {_BATCH}",
            "stream_per_s": f"decisions per second through the stream, PostgreSQL and Redis, in batches of {_BATCH}",
            "cpu_over_bare_lua": f"CPU of the service per decision ({service * 1e6:.0f} µs) over that of a bare "
            f"Lua call in redis-py's own pipeline ({bare * 1e6:.0f} µs)",
            "over_one_by_one": "the stream over one decision per round trip",
        },
    )


async def _round(config: Path, stack: LocalStack, evaluate: Callable[[], Any], calls: Calls) -> Round:
    process = psutil.Process(stack.roles["policy"].pid)
    pure_per_s = _pure(config)
    requests = _requests(_DECISIONS, _BATCH)
    before = process.cpu_times()
    seconds = await _stream(evaluate, requests, _AHEAD)
    after = process.cpu_times()
    one_by_one_seconds = await _stream(evaluate, _requests(_ONE_BY_ONE, 1), 1)
    start = time.process_time()
    for _ in range(_DECISIONS // _BATCH):
        await calls(_BATCH)
    bare_cpu = time.process_time() - start
    return Round(
        pure_per_s=pure_per_s,
        stream_per_s=_DECISIONS / seconds,
        stream_cpu=(after.user + after.system - before.user - before.system) / _DECISIONS,
        bare_cpu=bare_cpu / _DECISIONS,
        one_by_one_per_s=_ONE_BY_ONE / one_by_one_seconds,
    )


@contextmanager
def _configuration() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="reach-bench-"))
    try:
        config = folder / "config"
        shutil.copytree(_CONFIG, config)
        start = datetime.now(UTC) + timedelta(hours=12)
        policies = _POLICIES.format(start=start, end=start + timedelta(hours=1))
        (config / "policies.yaml").write_text(policies)
        yield config
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pure(config: Path) -> float:
    """Judges messages whose facts are at hand; returns how many per second of CPU."""
    now = datetime.now(UTC)
    rules = rules_for(load_catalog(config), _SCENE, "", TENANT)
    messages = [
        (
            Item(f"intent-{n}", 0, TENANT, f"user-{n}", _SCENE, expires_at=now + timedelta(days=1)),
            Facts(
                Person({Channel.EMAIL: f"user-{n}@example.com"}, "en", _ZONES[n % len(_ZONES)]),
                usage={Channel.EMAIL: Usage(n % 3, n % 2)},
                quota_used={Channel.EMAIL: n // _BATCH},
            ),
        )
        for n in range(_PURE)
    ]
    start = time.process_time()
    for first in range(0, _PURE, _BATCH):
        bench = Bench(rules, now)
        for item, facts in messages[first : first + _BATCH]:
            assert bench.evaluate(item, facts).sends
    return _PURE / (time.process_time() - start)


@asynccontextmanager
async def _system(config: Path) -> AsyncIterator[LocalStack]:
    data = DataDirectory(config.parent / "data")
    with data.held():
        environment = {"REACH_LOG_LEVEL": "warning"}
        async with LocalStack(data, Ports.choose(0), config=config, environment=environment) as stack:
            yield stack


@asynccontextmanager
async def _evaluating(stack: LocalStack) -> AsyncIterator[Callable[[], Any]]:
    """Yields what opens a stream of judgements."""
    options = [("grpc.max_receive_message_length", 64 << 20)]
    async with grpc.aio.insecure_channel(stack.endpoints.targets["policy"], options=options) as channel:
        metadata = (("authorization", f"Bearer {stack.keys.service}"),)
        yield functools.partial(policy_pb2_grpc.PolicyServiceStub(channel).Evaluate, metadata=metadata)


@asynccontextmanager
async def _redis(stack: LocalStack) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(stack.redis.url)
    yield client
    await client.aclose()


async def _make_users(stack: LocalStack) -> None:
    async with grpc.aio.insecure_channel(stack.endpoints.targets["policy"]) as channel:
        stub: Any = profile_pb2_grpc.ProfileServiceStub(channel)
        for first in range(0, _USERS, 1_000):
            profiles = [
                profile_pb2.Profile(
                    user_id=f"user-{n}",
                    time_zone=_ZONES[n % len(_ZONES)],
                    locale="en",
                    addresses=[message_pb2.Address(channel=message_pb2.CHANNEL_EMAIL, value=f"user-{n}@example.com")],
                )
                for n in range(first, first + 1_000)
            ]
            await stub.UpsertProfiles(
                profile_pb2.UpsertProfilesRequest(profiles=profiles),
                metadata=(("authorization", f"Bearer {stack.keys.agent}"),),
            )


def _requests(count: int, batch: int) -> list[policy_pb2.EvaluateRequest]:
    """Returns batches of fresh messages, over all users alike."""
    expires_at = Timestamp()
    expires_at.FromDatetime(datetime.now(UTC) + timedelta(days=1))
    items = [
        policy_pb2.EvaluateItem(
            intent_id=str(uuid.uuid4()),
            tenant=TENANT,
            user_id=f"user-{n % _USERS}",
            scene=_SCENE,
            expires_at=expires_at,
        )
        for n in range(count)
    ]
    return [
        policy_pb2.EvaluateRequest(sequence=first, items=items[first : first + batch])
        for first in range(0, count, batch)
    ]


async def _stream(evaluate: Callable[[], Any], requests: Sequence[policy_pb2.EvaluateRequest], ahead: int) -> float:
    """Has batches judged over one stream, some ahead of their answers; returns the seconds."""
    places = asyncio.Semaphore(ahead)
    call = evaluate()

    async def write() -> None:
        for request in requests:
            await places.acquire()
            await call.write(request)
        await call.done_writing()

    start = time.perf_counter()
    writing = asyncio.create_task(write())
    sent = 0
    async for answer in call:
        places.release()
        sent += sum(decision.action == message_pb2.ACTION_SEND_NOW for decision in answer.decisions)
    await writing
    seconds = time.perf_counter() - start
    assert sent == sum(len(request.items) for request in requests), "some were held back: nothing to compare"
    return seconds


async def _bare_calls(client: redis.asyncio.Redis) -> Calls:
    """Returns what makes the Lua calls by which places are reserved, and nothing else, in one pipeline."""
    script = resources.files("services.policy").joinpath("caps.lua").read_text()
    digest = await client.script_load(script)
    keys = [f"bench:caps:{{{number}}}" for number in range(_USERS)]
    for key in keys:
        # Only a set that was found not loaded is loaded.
        await client.evalsha(digest, 1, key, "loaded", _REACH_SECONDS)
        await client.evalsha(digest, 1, key, "load", _REACH_SECONDS)
    today = datetime.now(UTC).date().isoformat()
    users = itertools.cycle(range(_USERS))

    async def calls(count: int) -> None:
        now = int(time.time() * 1_000)
        async with client.pipeline(transaction=False) as pipeline:
            for _ in range(count):
                user = next(users)
                message, zone = f"{uuid.uuid4()}:0", _ZONES[user % len(_ZONES)]
                place = (message, "email", today, "notification", _REACH_SECONDS, zone, now, 1_000, 1_000)
                pipeline.evalsha(digest, 1, keys[user], "reserve", *place)
            for row in await pipeline.execute():
                assert row[0] == 1

    return calls


if __name__ == "__main__":
    uvloop.run(run())
