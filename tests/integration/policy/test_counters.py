"""Caps hold exactly: under concurrency, after Redis was emptied, and against nobody's own reservation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio

from agent_reach.v1 import error_reason_pb2
from services.catalog.rules import Category, Channel, WindowCap
from services.chassis.clock import ManualClock
from services.chassis.errors import UnavailableError
from services.policy.counters import Answer, Counters, Place, RecentSend, Settlement, ZoneWish
from services.policy.decision import Usage, UserKey

from .support import Memory

ANN = UserKey("acme", "ann")
TODAY = "2026-06-01"


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def place(message: str, **changes: object) -> Place:
    plain = Place(ANN, f"{message}:0", Channel.EMAIL, TODAY, user_cap=3, channel_cap=None)
    return replace(plain, **changes)  # type: ignore[arg-type]  # each test names real fields


def settlement(wanted: Place, *, confirmed: bool) -> Settlement:
    return Settlement(wanted.user, wanted.message, wanted.channel, wanted.cap_date, confirmed=confirmed)


async def reserve(counters: Counters, wanted: Place) -> Answer:
    return (await counters.reserve([wanted]))[0]


async def test_of_a_thousand_wishes_at_once_a_cap_of_three_lets_exactly_three_through(counters: Counters) -> None:
    answers = await asyncio.gather(*(counters.reserve([place(f"i{number}")]) for number in range(1_000)))
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


async def age(client: redis.asyncio.Redis, deployment: str, message: str, by: timedelta) -> None:
    """Has a place been taken that much earlier; Redis keeps its own time."""
    (key,) = await client.keys(f"reach:{deployment}:caps:*")
    for member in await client.zrange(key, 0, -1):
        if isinstance(member, bytes) and member.startswith(f"{message}:0 ".encode()):
            await client.zincrby(key, -by.total_seconds() * 1_000, member)


TWO_MINUTES = timedelta(minutes=2, milliseconds=1)


async def test_a_pending_place_runs_out_and_a_confirmed_one_does_not(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    kept, lost = place("kept"), place("lost")
    await counters.reserve([kept, lost])
    await counters.settle([settlement(kept, confirmed=True)])
    for message in ("kept", "lost"):
        await age(redis_client, deployment, message, TWO_MINUTES)
    assert (await reserve(counters, place("next"))).usage.user == 1


async def test_what_is_judged_again_in_time_keeps_its_place(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await reserve(counters, place("a"))
    for _ in range(2):  # three minutes in all
        await age(redis_client, deployment, "a", timedelta(seconds=90))
        assert (await reserve(counters, place("a"))).usage.own
    assert (await reserve(counters, place("b"))).usage.user == 1


async def test_cap_three_with_two_used_and_a_pump_that_died_after_reserving(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    for message in ("a", "b"):
        await reserve(counters, place(message))
        await counters.settle([settlement(place(message), confirmed=True)])
    await reserve(counters, place("c"))  # and nobody accepts it
    again = await reserve(counters, place("c"))
    assert (again.reserved, again.usage.own) == (True, True)
    assert not (await reserve(counters, place("d"))).reserved
    # Nobody judges it again either: after two minutes its place is free, long before midnight.
    await age(redis_client, deployment, "c", TWO_MINUTES)
    assert (await reserve(counters, place("d"))).reserved
    # Should it come after all, it is judged like any other.
    assert not (await reserve(counters, place("c"))).reserved


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


async def test_a_redis_that_forgot_the_scripts_learns_them_again(
    counters: Counters, redis_client: redis.asyncio.Redis
) -> None:
    await reserve(counters, place("a"))
    await redis_client.script_flush()
    assert (await reserve(counters, place("b"))).usage.user == 1


async def test_without_redis_the_whole_batch_waits(memory: Memory, clock: ManualClock) -> None:
    nowhere = redis.asyncio.Redis.from_url("unix:///nowhere/redis.sock")
    counters = Counters(nowhere, deployment="x", memory=memory, clearances=memory, clock=clock)
    with pytest.raises(UnavailableError) as caught:
        await reserve(counters, place("a"))
    assert caught.value.reason == error_reason_pb2.ERROR_REASON_REDIS_UNAVAILABLE
    assert caught.value.retry_after_seconds
    await nowhere.aclose()


WEEK = timedelta(days=7)


def sale(message: str, **changes: object) -> Place:
    caps = (WindowCap(2, WEEK), WindowCap(3, timedelta(days=30)))
    return place(message, category=Category.MARKETING, user_cap=None, window_caps=caps, **changes)


async def test_at_most_two_in_seven_days(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    month = timedelta(days=30)
    days = [f"2026-06-0{number}" for number in range(1, 7)]

    async def send(message: str, day: str) -> Answer:
        (answer,) = await counters.reserve([sale(message, cap_date=day)], month)
        await counters.settle([settlement(sale(message, cap_date=day), confirmed=True)] if answer.reserved else [])
        return answer

    assert (await send("a", days[0])).usage.windows == (0, 0)
    assert (await send("b", days[1])).usage.windows == (1, 1)
    refused = await send("c", days[2])
    assert (refused.reserved, refused.usage.windows) == (False, (2, 2))
    await age(redis_client, deployment, "a", WEEK)
    assert (await send("d", days[3])).usage.windows == (1, 2)
    # The week has room again then, the month has not.
    await age(redis_client, deployment, "b", WEEK)
    await age(redis_client, deployment, "d", WEEK)
    refused = await send("e", days[4])
    assert (refused.reserved, refused.usage.windows) == (False, (0, 3))


async def test_a_window_counts_its_own_category_only(counters: Counters) -> None:
    await counters.reserve([place(f"n{number}", user_cap=None) for number in range(5)])
    assert (await reserve(counters, sale("a"))).usage.windows == (0, 0)
    assert (await reserve(counters, place("b", user_cap=None, window_caps=(WindowCap(5, WEEK),)))).usage.windows == (
        5,
    )


async def test_a_longer_window_than_was_loaded_is_loaded_first(
    counters: Counters, memory: Memory, clock: ManualClock, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    three_days_ago = datetime.now(UTC) - timedelta(days=3)
    date = three_days_ago.date().isoformat()
    memory.sends = [RecentSend(ANN, "old:0", Channel.EMAIL, date, three_days_ago, Category.MARKETING)]
    clock.set(datetime.now(UTC))
    await reserve(counters, place("a"))  # no window looks further back than a date lasts
    (answer,) = await counters.reserve([sale("b")], WEEK)
    assert answer.usage.windows == (1, 1)
    assert len(memory.questions) == 2
    (key,) = await redis_client.keys(f"reach:{deployment}:caps:*")
    assert timedelta(days=6).total_seconds() < await redis_client.ttl(key) <= WEEK.total_seconds()


async def test_a_place_that_is_gone_cannot_be_confirmed_and_others_may_have_it(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    one, other = place("a", user_cap=1), place("b", user_cap=1)
    await reserve(counters, one)
    await age(redis_client, deployment, "a", TWO_MINUTES)
    assert await counters.settle([settlement(one, confirmed=True)]) == [0]
    assert (await reserve(counters, other)).reserved
    assert await counters.settle([settlement(one, confirmed=True), settlement(other, confirmed=True)]) == [0]
    for key in await redis_client.keys(f"reach:{deployment}:caps:*"):
        await redis_client.delete(key)
    assert await counters.settle([settlement(other, confirmed=True)]) == [0]
    assert (await reserve(counters, one)).reserved


async def test_what_was_given_back_while_the_counters_were_lost_is_not_brought_back(
    counters: Counters, memory: Memory
) -> None:
    # The dispatcher told of it, then it failed; the place is given back before what was told is loaded.
    memory.sends = [sent("a", datetime.now(UTC))]
    await counters.settle([settlement(place("a"), confirmed=False)])
    assert (await reserve(counters, place("b"))).usage.user == 0
    assert (await reserve(counters, place("a"))).usage.user == 1


async def test_a_message_deferred_for_days_counts_after_a_rebuild(
    counters: Counters, memory: Memory, clock: ManualClock
) -> None:
    # Its task was made long before the date on which it counts.
    memory.sends = [RecentSend(ANN, "old:0", Channel.EMAIL, today(), clock.now() - timedelta(days=40))]
    memory.forgets = False
    assert (await reserve(counters, place("a", cap_date=today()))).usage.user == 1


async def test_what_was_cleared_stays_away_after_a_rebuild(
    counters: Counters, memory: Memory, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    now = datetime.now(UTC)
    memory.sends = [sent("a", now - timedelta(hours=1)), sent("b", now - timedelta(minutes=1))]
    assert {counted.message for counted in await counters.show([ANN])} == {"a:0", "b:0"}
    memory.cleared = {ANN: now}
    assert await counters.clear(ANN) == 2
    assert await counters.show([ANN]) == []
    for key in await redis_client.keys(f"reach:{deployment}:*"):
        await redis_client.delete(key)
    assert (await reserve(counters, place("c"))).usage.user == 0
    assert await counters.clear(UserKey("acme", "bob")) == 0


async def test_counters_are_shown_as_they_count(counters: Counters, clock: ManualClock) -> None:
    await counters.reserve([place("a"), sale("b", user=UserKey("acme", "bob"))])
    await counters.settle([settlement(place("a"), confirmed=True)])
    one, two = await counters.show([ANN, UserKey("acme", "bob"), UserKey("acme", "nobody")])
    assert (one.user, one.message, one.channel, one.cap_date) == (ANN, "a:0", Channel.EMAIL, TODAY)
    assert (one.category, one.pending, two.category, two.pending) == (
        Category.NOTIFICATION,
        False,
        Category.MARKETING,
        True,
    )
    assert abs(one.counted_at - datetime.now(UTC)) < timedelta(minutes=1)


async def zone_kept(counters: Counters, wanted: str) -> str:
    (answer,) = await counters.reserve([ZoneWish(ANN, wanted)])
    return answer.kept_zone or wanted


async def test_the_first_zone_of_a_user_is_kept_for_two_hours_and_not_longer(
    counters: Counters, clock: ManualClock
) -> None:
    assert await zone_kept(counters, "Asia/Tokyo") == "Asia/Tokyo"
    clock.advance(7_140)
    assert await zone_kept(counters, "Europe/Zurich") == "Asia/Tokyo"
    clock.advance(120)
    assert await zone_kept(counters, "Europe/Zurich") == "Europe/Zurich"
    clock.advance(60)
    assert await zone_kept(counters, "Asia/Tokyo") == "Europe/Zurich"


async def test_a_look_at_the_kept_zone_of_any_moment_changes_nothing(counters: Counters, clock: ManualClock) -> None:
    assert await counters.kept_zone(ANN, clock.now()) == ""
    await zone_kept(counters, "Asia/Tokyo")
    assert await counters.kept_zone(ANN, clock.now() + timedelta(hours=3)) == ""
    assert await counters.kept_zone(ANN, clock.now() + timedelta(minutes=119)) == "Asia/Tokyo"
    assert await zone_kept(counters, "Europe/Zurich") == "Asia/Tokyo"


async def test_a_default_zone_is_not_kept_but_gives_way_to_one_that_is(counters: Counters) -> None:
    assert await zone_kept(counters, "") == ""
    assert await zone_kept(counters, "Asia/Tokyo") == "Asia/Tokyo"
    assert await zone_kept(counters, "") == "Asia/Tokyo"


async def test_no_place_is_taken_by_the_date_of_another_zone(counters: Counters) -> None:
    await zone_kept(counters, "Asia/Tokyo")
    answer = await reserve(counters, place("a", zone="Europe/Zurich"))
    assert (answer.reserved, answer.kept_zone) == (False, "Asia/Tokyo")
    assert (await reserve(counters, place("a", zone="Asia/Tokyo"))).reserved
    assert (await reserve(counters, place("b", zone=None))).reserved
