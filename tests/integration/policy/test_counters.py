"""Caps hold exactly: under concurrency, after Redis was emptied, and against nobody's own reservation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio

from agent_reach.v1 import error_reason_pb2
from services.catalog.rules import Channel
from services.chassis.clock import ManualClock
from services.chassis.errors import UnavailableError
from services.policy.counters import Answer, Counters, Place, RecentSend, Settlement
from services.policy.decision import Usage, UserKey

from .support import Memory

ANN = UserKey("acme", "ann")
TODAY = "2026-06-01"


def place(message: str, **changes: object) -> Place:
    plain = Place(ANN, f"{message}:0", Channel.EMAIL, TODAY, user_cap=3, channel_cap=None)
    return replace(plain, **changes)  # type: ignore[arg-type]  # each test names real fields


def settlement(wanted: Place, *, confirmed: bool) -> Settlement:
    return Settlement(wanted.user, wanted.message, wanted.channel, wanted.cap_date, confirmed=confirmed)


async def reserve(counters: Counters, wanted: Place) -> Answer:
    return (await counters.reserve([wanted]))[0]


async def test_of_two_hundred_decisions_at_once_a_cap_of_three_lets_exactly_three_through(counters: Counters) -> None:
    answers = await asyncio.gather(*(counters.reserve([place(f"i{number}")]) for number in range(200)))
    assert sum(answer.reserved for (answer,) in answers) == 3


async def test_a_cap_holds_inside_one_batch_as_well(counters: Counters) -> None:
    answers = await counters.reserve([place(f"i{number}") for number in range(10)])
    assert [answer.reserved for answer in answers] == [True] * 3 + [False] * 7
    assert [answer.usage.user for answer in answers[:4]] == [0, 1, 2, 3]


async def test_the_channels_cap_counts_that_channel_only(counters: Counters) -> None:
    texts = [place(f"i{number}", channel=Channel.SMS, channel_cap=1) for number in range(2)]
    answers = await counters.reserve([*texts, place("mail")])
    assert [answer.reserved for answer in answers] == [True, False, True]
    assert answers[1].usage == Usage(user=1, channel=1)


async def test_users_tenants_and_dates_do_not_count_on_each_other(counters: Counters) -> None:
    others = [
        place("a"),
        place("b", user=UserKey("acme", "bob")),
        place("c", user=UserKey("globex", "ann")),
        place("d", cap_date="2026-06-02"),
        place("e", user=UserKey("acme:x", "ann")),
        place("f", user=UserKey("acme", "x:ann")),
    ]
    answers = await counters.reserve([replace(one, user_cap=1) for one in others])
    assert all(answer.reserved for answer in answers)


async def test_a_message_judged_again_is_not_blocked_by_its_own_place(counters: Counters) -> None:
    for message in ("a", "b", "c"):
        await reserve(counters, place(message))
    again = await reserve(counters, place("c"))
    assert again == Answer(reserved=True, usage=Usage(user=2, channel=2, own=True))
    assert not (await reserve(counters, place("d"))).reserved


async def test_a_message_deferred_yesterday_counts_today_and_not_twice(counters: Counters) -> None:
    await reserve(counters, place("a", cap_date="2026-05-31"))
    assert (await reserve(counters, place("a"))).usage == Usage(0, 0, own=False)
    yesterday = await reserve(counters, place("b", cap_date="2026-05-31"))
    assert yesterday.usage.user == 0


async def test_a_place_given_back_is_free_for_the_next(counters: Counters) -> None:
    one = place("a", user_cap=1)
    await reserve(counters, one)
    assert not (await reserve(counters, place("b", user_cap=1))).reserved
    for _ in range(2):  # repeating it is harmless
        await counters.settle([settlement(one, confirmed=False)])
    assert (await reserve(counters, place("b", user_cap=1))).reserved


async def test_a_confirmed_place_stays_however_often_it_is_confirmed(counters: Counters) -> None:
    one = place("a")
    await reserve(counters, one)
    for _ in range(3):
        await counters.settle([settlement(one, confirmed=True)])
    assert (await reserve(counters, place("b"))).usage.user == 1


async def test_a_pending_place_runs_out_and_a_confirmed_one_does_not(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    kept, lost = place("kept"), place("lost")
    await counters.reserve([kept, lost])
    await counters.settle([settlement(kept, confirmed=True)])
    # Two minutes pass: the places were taken that much earlier.
    (key,) = await redis_client.keys(f"reach:{deployment}:caps:*")
    for member in await redis_client.zrange(key, 0, -1):
        if isinstance(member, bytes) and member != b"loaded":
            await redis_client.zincrby(key, -120_001, member)
    assert (await reserve(counters, place("next"))).usage.user == 1
    assert b"lost:0 email 2026-06-01 p" not in await redis_client.zrange(key, 0, -1)


async def test_what_is_judged_again_in_time_keeps_its_place(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await reserve(counters, place("a"))
    (key,) = await redis_client.keys(f"reach:{deployment}:caps:*")
    await redis_client.zincrby(key, -90_000, "a:0 email 2026-06-01 p")
    before = await redis_client.zscore(key, "a:0 email 2026-06-01 p")
    await reserve(counters, place("a"))
    after = await redis_client.zscore(key, "a:0 email 2026-06-01 p")
    assert before is not None
    assert after is not None
    assert after >= before + 90_000


async def test_a_users_set_lives_for_fifty_hours(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await reserve(counters, place("a"))
    (key,) = await redis_client.keys(f"reach:{deployment}:caps:*")
    assert 49 * 3_600 < await redis_client.ttl(key) <= 50 * 3_600


def sent(message: str, at: datetime) -> RecentSend:
    return RecentSend(ANN, f"{message}:0", Channel.EMAIL, TODAY, at)


async def test_after_redis_was_emptied_the_caps_are_rebuilt_and_hold(
    counters: Counters, memory: Memory, clock: ManualClock, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    memory.sends = [sent("a", datetime.now(UTC)), sent("b", datetime.now(UTC))]
    for key in await redis_client.keys(f"reach:{deployment}:*"):
        await redis_client.delete(key)
    answers = await counters.reserve([place(f"i{number}") for number in range(5)])
    assert [answer.reserved for answer in answers] == [True, False, False, False, False]
    # All users of a batch in one question; a user that is loaded is not asked about again.
    assert memory.questions == [[ANN]]


async def test_a_message_that_left_already_is_not_blocked_by_itself_after_the_rebuild(
    counters: Counters, memory: Memory
) -> None:
    memory.sends = [sent("a", datetime.now(UTC)), sent("b", datetime.now(UTC)), sent("c", datetime.now(UTC))]
    answer = await reserve(counters, place("c"))
    assert answer == Answer(reserved=True, usage=Usage(user=2, channel=2, own=True))
    assert not (await reserve(counters, place("d"))).reserved


async def test_a_rebuild_under_concurrency_counts_nothing_twice(counters: Counters, memory: Memory) -> None:
    memory.sends = [sent("a", datetime.now(UTC)), sent("b", datetime.now(UTC))]
    answers = await asyncio.gather(*(counters.reserve([place(f"i{number}")]) for number in range(50)))
    assert sum(answer.reserved for (answer,) in answers) == 1


async def test_the_rebuild_asks_as_far_back_as_a_date_lasts(
    counters: Counters, memory: Memory, clock: ManualClock
) -> None:
    memory.sends = [sent("old", clock.now() - timedelta(hours=51))]
    assert (await reserve(counters, place("a"))).usage.user == 0


async def test_a_channels_quota_is_taken_by_whole_batches_and_given_back(counters: Counters) -> None:
    assert await counters.take_quota({Channel.SMS: (3, 5)}) == {Channel.SMS: (3, 0)}
    assert await counters.take_quota({Channel.SMS: (3, 5), Channel.EMAIL: (1, 9)}) == {
        Channel.SMS: (2, 3),
        Channel.EMAIL: (1, 0),
    }
    one = place("a", channel=Channel.SMS)
    await reserve(counters, one)
    for _ in range(2):  # the second time there is nothing left to give back
        await counters.settle([settlement(one, confirmed=False)])
    assert await counters.take_quota({Channel.SMS: (2, 5)}) == {Channel.SMS: (1, 4)}


async def test_yesterdays_quota_does_not_count_today(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await counters.take_quota({Channel.SMS: (5, 5)})
    await redis_client.hincrby(f"reach:{deployment}:quota:{{sms}}", "day", -1)
    assert await counters.take_quota({Channel.SMS: (1, 5)}) == {Channel.SMS: (1, 0)}


async def test_a_redis_that_forgot_the_scripts_learns_them_again(
    counters: Counters, redis_client: redis.asyncio.Redis
) -> None:
    await reserve(counters, place("a"))
    await redis_client.script_flush()
    assert (await reserve(counters, place("b"))).usage.user == 1


async def test_without_redis_the_whole_batch_waits(memory: Memory, clock: ManualClock) -> None:
    nowhere = redis.asyncio.Redis.from_url("unix:///nowhere/redis.sock")
    counters = Counters(nowhere, deployment="x", memory=memory, clock=clock)
    with pytest.raises(UnavailableError) as caught:
        await reserve(counters, place("a"))
    assert caught.value.reason == error_reason_pb2.ERROR_REASON_REDIS_UNAVAILABLE
    assert caught.value.retry_after_seconds
    await nowhere.aclose()
