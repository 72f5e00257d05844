"""Batches through the real database and the real Redis."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import redis.asyncio

from services.catalog.rules import Category, Channel
from services.chassis.clock import ManualClock
from services.policy.counters import Counters, RecentSend, Settlement
from services.policy.decision import Action, Address, SuppressionSource, UserKey
from services.policy.judge import Judge
from services.policy.records import Activity, Profile, Wish
from services.policy.store import PolicyStore

from .support import Memory, item, spend

ANN = Profile("ann", {Channel.EMAIL: "ann@example.com"}, "de-CH", "")
TEXTED = Profile("ann", {Channel.EMAIL: "ann@example.com", Channel.SMS: "+16502530000"}, "", "")


async def test_a_known_user_gets_a_message_and_an_unknown_one_has_no_address(judge: Judge, store: PolicyStore) -> None:
    await store.upsert_profiles("acme", [ANN])
    known, unknown, foreign = await judge.evaluate([item(), item("bob"), item("ann", tenant="globex")])
    assert (known.action, known.channel, known.address) == (Action.SEND_NOW, Channel.EMAIL, "ann@example.com")
    assert known.locale == "de-CH"
    assert (unknown.action, unknown.reason) == (Action.DROP, "no_address")
    assert foreign.reason == "no_address"


async def test_of_two_hundred_messages_judged_at_once_exactly_three_reach_the_user(
    judge: Judge, store: PolicyStore
) -> None:
    await store.upsert_profiles("acme", [ANN])
    batches = await asyncio.gather(*(judge.evaluate([item() for _ in range(5)]) for _ in range(40)))
    decisions = [decision for batch in batches for decision in batch]
    assert sum(decision.sends for decision in decisions) == 3
    assert {decision.reason for decision in decisions if not decision.sends} == {"user_daily_cap"}


async def test_a_message_judged_again_is_let_through_again(judge: Judge, store: PolicyStore) -> None:
    await store.upsert_profiles("acme", [ANN])
    await judge.evaluate([item(), item()])
    third = item()
    for _ in range(3):
        (decision,) = await judge.evaluate([third])
        assert decision.action is Action.SEND_NOW
    (fourth,) = await judge.evaluate([item()])
    assert fourth.reason == "user_daily_cap"


async def test_a_suppressed_user_gets_nothing_though_redis_is_empty(
    judge: Judge, store: PolicyStore, memory: Memory, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await store.upsert_profiles("acme", [ANN])
    await store.suppress("acme", [Wish(SuppressionSource.UNSUBSCRIBE, user_id="ann")], "link")
    for key in await redis_client.keys(f"reach:{deployment}:*"):
        await redis_client.delete(key)
    code, notice = await judge.evaluate([item(scene="code"), item()])
    assert code.action is Action.SEND_NOW
    assert (notice.action, notice.reason) == (Action.DROP, "user_unsubscribed")
    assert memory.questions == []


async def test_an_address_is_suppressed_whoever_has_it_and_however_it_is_written(
    judge: Judge, store: PolicyStore
) -> None:
    await store.upsert_profiles("acme", [ANN])
    wish = Wish(SuppressionSource.BOUNCE, address=Address(Channel.EMAIL, "ann@example.com"))
    await store.suppress("acme", [wish], "provider")
    bare = item("pseudonym", address=Address(Channel.EMAIL, "ann@EXAMPLE.com"))
    for decision in await judge.evaluate([item(), bare]):
        assert decision.reason == "address_bounced"
    (elsewhere,) = await judge.evaluate([item("p", tenant="globex", address=wish.address)])
    assert elsewhere.action is Action.SEND_NOW


async def test_a_bare_address_that_is_none_reaches_nobody(judge: Judge) -> None:
    (decision,) = await judge.evaluate([item("p", address=Address(Channel.EMAIL, "not an address"))])
    assert decision.reason == "no_address"


async def test_the_last_activity_tells_the_zone_of_a_user_whose_profile_names_none(
    judge: Judge, store: PolicyStore, clock: ManualClock
) -> None:
    await store.upsert_profiles("acme", [ANN])
    await store.report_activity("acme", [Activity("ann", "Asia/Tokyo", clock.now())])
    clock.set(clock.now().replace(hour=15))  # midnight in Tokyo
    (decision,) = await judge.evaluate([item()])
    assert decision.action is Action.DEFER
    assert decision.trace[-1].inputs["zone_source"] == "activity"


async def test_a_spent_channel_falls_back_and_its_place_moves_along(
    judge: Judge, store: PolicyStore, counters: Counters
) -> None:
    await store.upsert_profiles("acme", [TEXTED])
    await spend(counters, {Channel.SMS: 5})
    first = item(scene="text")
    (decision,) = await judge.evaluate([first])
    assert (decision.action, decision.channel) == (Action.FALL_BACK, Channel.EMAIL)
    quota = decision.trace[-1].inputs
    assert (quota["fallback"], quota["fallback_count"], quota["fallback_channel_count"]) == ("email", "0", "0")
    # The place is on the channel it really takes: two more texts would fit under the cap of two.
    (notice,) = await judge.evaluate([item(channels=(Channel.EMAIL,))])
    assert notice.trace[3].inputs["channel_count"] == "1"


async def test_a_message_that_finds_no_quota_anywhere_costs_the_user_nothing(
    judge: Judge, store: PolicyStore, counters: Counters
) -> None:
    await store.upsert_profiles("acme", [TEXTED])
    await spend(counters, {Channel.SMS: 5, Channel.EMAIL: 1_000})
    for _ in range(4):
        (decision,) = await judge.evaluate([item(scene="text")])
        assert (decision.action, decision.reason) == (Action.DROP, "channel_quota_spent")
        assert decision.trace[3].inputs["count"] == "0"


async def test_quota_is_handed_out_to_exactly_so_many_of_a_batch(judge: Judge, store: PolicyStore) -> None:
    users = [f"u{number}" for number in range(8)]
    await store.upsert_profiles("acme", [Profile(user, {Channel.SMS: "+16502530000"}, "", "") for user in users])
    decisions = await judge.evaluate([item(user, scene="text") for user in users])
    assert [decision.sends for decision in decisions] == [True] * 5 + [False] * 3


async def test_what_never_left_is_given_back_and_what_left_counts_after_a_flush(
    judge: Judge, store: PolicyStore, counters: Counters, memory: Memory
) -> None:
    await store.upsert_profiles("acme", [ANN])
    items = [item() for _ in range(3)]
    decisions = await judge.evaluate(items)
    user = UserKey("acme", "ann")
    await counters.settle(
        [
            Settlement(user, f"{one.intent_id}:0", Channel.EMAIL, decision.cap_date, confirmed=number > 0)
            for number, (one, decision) in enumerate(zip(items, decisions, strict=True))
        ]
    )
    (fourth,) = await judge.evaluate([item()])
    assert fourth.action is Action.SEND_NOW
    assert fourth.trace[3].inputs["count"] == "2"
    assert memory.questions == [[user]]


async def test_an_emptied_redis_is_rebuilt_from_what_the_dispatcher_remembers(
    judge: Judge, store: PolicyStore, memory: Memory, clock: ManualClock
) -> None:
    await store.upsert_profiles("acme", [ANN])
    today = clock.now().date().isoformat()
    user = UserKey("acme", "ann")
    memory.sends = [RecentSend(user, f"{n}:0", Channel.EMAIL, today, datetime.now(UTC)) for n in range(2)]
    decisions = await judge.evaluate([item(), item()])
    assert [decision.sends for decision in decisions] == [True, False]


async def test_verification_leaves_no_trace_in_the_caps(judge: Judge, store: PolicyStore) -> None:
    await store.upsert_profiles("acme", [ANN])
    decisions = await judge.evaluate([item(scene="code") for _ in range(10)])
    assert all(decision.sends and decision.cap_date == "" for decision in decisions)
    (notice,) = await judge.evaluate([item()])
    assert notice.trace[3].inputs["count"] == "0"


async def test_a_suppression_of_marketing_holds_back_marketing_only(judge: Judge, store: PolicyStore) -> None:
    await store.upsert_profiles("acme", [ANN])
    wish = Wish(SuppressionSource.UNSUBSCRIBE, user_id="ann", category=Category.MARKETING)
    await store.suppress("acme", [wish], "link")
    sale, notice = await judge.evaluate([item(scene="marketing"), item()])
    assert sale.reason == "user_unsubscribed"
    assert notice.action is Action.SEND_NOW
