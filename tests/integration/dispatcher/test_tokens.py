"""Token buckets in Redis: never more than the burst at once, shared by every process, refilled at the rate."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from agent_reach.local import LocalRedis
from services.catalog.rules import Channel, ChannelRules
from services.dispatcher.tokens import TokenBuckets

# So slow that within a test no token comes back.
_SLOW = 0.001


def rules(burst: int, rate: float = _SLOW, channel: Channel = Channel.EMAIL) -> ChannelRules:
    return ChannelRules(channel, burst, rate, daily_quota=None, fallback=None)


@pytest.fixture
async def client(redis_server: LocalRedis) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_server.url) as opened:
        yield opened


@pytest.fixture
def deployment() -> str:
    return f"test-{uuid.uuid4().hex}"


async def test_a_full_bucket_grants_its_burst_and_then_says_how_long_to_wait(
    client: redis.asyncio.Redis, deployment: str
) -> None:
    buckets = TokenBuckets(client, deployment)
    assert (await buckets.take(rules(10), 4)) == (await buckets.take(rules(10), 4))
    third = await buckets.take(rules(10), 4)
    assert third.granted == 2
    assert 0 < third.wait_seconds <= 1 / _SLOW
    assert (await buckets.take(rules(10), 4)).granted == 0


async def test_what_was_granted_in_full_needs_no_wait(client: redis.asyncio.Redis, deployment: str) -> None:
    assert (await TokenBuckets(client, deployment).take(rules(3), 3)).wait_seconds == 0


async def test_many_processes_together_get_no_more_than_the_burst(
    client: redis.asyncio.Redis, deployment: str
) -> None:
    buckets = [TokenBuckets(client, deployment) for _ in range(5)]
    grants = await asyncio.gather(*(bucket.take(rules(50), 7) for bucket in buckets * 10))
    assert sum(grant.granted for grant in grants) == 50


async def test_channels_and_deployments_have_buckets_of_their_own(
    client: redis.asyncio.Redis, deployment: str
) -> None:
    await TokenBuckets(client, deployment).take(rules(5), 5)
    assert (await TokenBuckets(client, deployment).take(rules(5, channel=Channel.SMS), 5)).granted == 5
    assert (await TokenBuckets(client, f"{deployment}-other").take(rules(5), 5)).granted == 5


async def test_tokens_come_back_at_the_rate_and_never_beyond_the_burst(
    client: redis.asyncio.Redis, deployment: str
) -> None:
    buckets = TokenBuckets(client, deployment)
    await buckets.take(rules(5), 5)
    key = f"reach:{deployment}:tokens:email"
    # As if the bucket had last been used some time ago: at 0.1 tokens a second, 20 s are 2 tokens.
    seconds, microseconds = await client.time()
    for ago, expected in ((20, 2), (10_000, 5)):
        await client.hset(key, mapping={"tokens": "0.000000", "at": str(seconds + microseconds / 1e6 - ago)})
        assert (await buckets.take(rules(5, 0.1), 9)).granted == expected


async def test_a_burst_that_was_made_smaller_holds_at_once(client: redis.asyncio.Redis, deployment: str) -> None:
    buckets = TokenBuckets(client, deployment)
    assert (await buckets.take(rules(100), 1)).granted == 1
    assert (await buckets.take(rules(10), 50)).granted == 10


async def test_a_bucket_that_nobody_uses_is_not_kept(client: redis.asyncio.Redis, deployment: str) -> None:
    await TokenBuckets(client, deployment).take(rules(10, 100), 1)
    assert 0 < await client.pttl(f"reach:{deployment}:tokens:email") <= 1_100


async def test_a_clock_that_went_back_takes_nothing_away(client: redis.asyncio.Redis, deployment: str) -> None:
    buckets = TokenBuckets(client, deployment)
    seconds, _ = await client.time()
    key = f"reach:{deployment}:tokens:email"
    await client.hset(key, mapping={"tokens": "3.000000", "at": str(seconds + 1_000)})
    assert (await buckets.take(rules(10), 9)).granted == 3
