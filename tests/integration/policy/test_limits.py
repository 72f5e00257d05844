"""Limits through the real database and the real Redis: by several judges, when Redis is lost, and in the kept zone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import prometheus_client
import pytest
import redis.asyncio

from agent_reach.local import LocalRedis
from services.catalog.holder import CatalogHolder
from services.catalog.rules import Channel
from services.chassis.clock import ManualClock
from services.policy.counters import Counters, RecentSend, Settlement
from services.policy.decision import Action, Decision, Gate, GateEntry, Item, LocalTime, UserKey
from services.policy.judge import Judge
from services.policy.lookup import Lookup
from services.policy.records import Profile
from services.policy.store import PolicyStore

from .support import POLICIES, Memory, item

ANN = UserKey("acme", "ann")
MAIL = {Channel.EMAIL: "ann@example.com"}
JudgeOf = Callable[[str], Judge]


@pytest.fixture
async def judge_of(
    tmp_path: Path,
    directory: Lookup,
    redis_server: LocalRedis,
    deployment: str,
    memory: Memory,
    clock: ManualClock,
    metrics: prometheus_client.CollectorRegistry,
) -> AsyncIterator[JudgeOf]:
    """Makes judges, each with its own connections to Redis, as replicas have."""
    async with AsyncExitStack() as stack:

        def make(policies: str) -> Judge:
            config_dir = tmp_path / "own"
            config_dir.mkdir(exist_ok=True)
            (config_dir / "policies.yaml").write_text(policies, encoding="utf-8")
            client = redis.asyncio.Redis.from_url(redis_server.url)
            stack.push_async_callback(client.aclose)
            counters = Counters(client, deployment=deployment, memory=memory, clearances=memory, clock=clock)
            registry = metrics if not made else prometheus_client.CollectorRegistry()
            made.append(registry)
            return Judge(CatalogHolder(config_dir), directory, counters, clock, registry)

        made: list[prometheus_client.CollectorRegistry] = []
        yield make


def entry(decision: Decision, gate: Gate) -> GateEntry:
    (found,) = [entry for entry in decision.trace if entry.gate is gate]
    return found


async def confirm(counters: Counters, items: list[Item], decisions: list[Decision]) -> list[RecentSend]:
    """Has what was let through leave, and returns it as the dispatcher remembers it."""
    settlements, sends = [], []
    for one, decision in zip(items, decisions, strict=True):
        if decision.sends and decision.channel is not None:
            user, message = UserKey(one.tenant, one.user_id), f"{one.intent_id}:{one.hop}"
            settlements.append(Settlement(user, message, decision.channel, decision.cap_date, confirmed=True))
            sends.append(RecentSend(user, message, decision.channel, decision.cap_date, datetime.now(UTC)))
    await counters.settle(settlements)
    return sends


async def test_of_a_thousand_decisions_by_several_judges_at_once_a_cap_of_three_lets_exactly_three_through(
    judge_of: JudgeOf, store: PolicyStore
) -> None:
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "")])
    judges = [judge_of(POLICIES) for _ in range(4)]
    batches = await asyncio.gather(*(judges[n % 4].evaluate([item() for _ in range(5)]) for n in range(200)))
    decisions = [decision for batch in batches for decision in batch]
    assert len(decisions) == 1_000
    assert sum(decision.sends for decision in decisions) == 3
    assert {decision.reason for decision in decisions if not decision.sends} == {"user_daily_cap"}


async def test_redis_emptied_between_any_two_batches_lets_nobody_get_more_than_the_cap(
    judge_of: JudgeOf,
    store: PolicyStore,
    counters: Counters,
    memory: Memory,
    redis_client: redis.asyncio.Redis,
    deployment: str,
) -> None:
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "")])
    judge = judge_of(POLICIES)
    sent = 0
    for _ in range(8):
        items = [item() for _ in range(2)]
        decisions = await judge.evaluate(items)
        memory.sends += await confirm(counters, items, decisions)
        sent += sum(decision.sends for decision in decisions)
        for key in await redis_client.keys(f"reach:{deployment}:*"):
            await redis_client.delete(key)
    assert sent == 3


async def test_who_was_let_through_before_redis_was_emptied_is_let_through_again(
    judge_of: JudgeOf,
    store: PolicyStore,
    counters: Counters,
    memory: Memory,
    redis_client: redis.asyncio.Redis,
    deployment: str,
) -> None:
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "")])
    judge = judge_of(POLICIES)
    items = [item() for _ in range(3)]
    memory.sends = await confirm(counters, items, await judge.evaluate(items))
    for key in await redis_client.keys(f"reach:{deployment}:*"):
        await redis_client.delete(key)
    assert all(decision.sends for decision in await judge.evaluate(items))
    (fourth,) = await judge.evaluate([item()])
    assert fourth.reason == "user_daily_cap"


async def test_a_zone_that_flips_moves_no_decision_for_two_hours(
    judge_of: JudgeOf, store: PolicyStore, clock: ManualClock
) -> None:
    judge = judge_of(POLICIES)
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "Europe/Zurich")])
    (noon,) = await judge.evaluate([item()])
    assert entry(noon, Gate.QUIET_HOURS).inputs["zone"] == "Europe/Zurich"
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "Pacific/Auckland")])
    clock.advance(3_600)  # after midnight in Auckland
    (flipped,) = await judge.evaluate([item()])
    assert flipped.sends
    assert entry(flipped, Gate.QUIET_HOURS).inputs["zone_source"] == "kept"
    assert flipped.cap_date == noon.cap_date
    clock.advance(3_600)
    (moved,) = await judge.evaluate([item()])
    assert (moved.action, moved.reason) == (Action.DEFER, "quiet_hours")
    assert entry(moved, Gate.QUIET_HOURS).inputs["zone"] == "Pacific/Auckland"


async def test_a_deferral_is_not_undone_by_a_flip_either(
    judge_of: JudgeOf, store: PolicyStore, clock: ManualClock
) -> None:
    judge = judge_of(POLICIES)
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "Pacific/Auckland")])
    asked = item()
    (deferred,) = await judge.evaluate([asked])
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "Europe/Zurich")])
    clock.advance(60)
    (again,) = await judge.evaluate([asked])
    assert again.action is Action.DEFER
    assert again.until == deferred.until


async def test_a_user_whose_zone_flips_twice_in_two_days_waits_once_and_an_alert_is_raised(
    judge_of: JudgeOf,
    store: PolicyStore,
    clock: ManualClock,
    metrics: prometheus_client.CollectorRegistry,
) -> None:
    judge = judge_of(POLICIES)
    asked = item()
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "Pacific/Auckland")])
    (deferred,) = await judge.evaluate([asked])
    assert (deferred.action, deferred.held_by) == (Action.DEFER, Gate.QUIET_HOURS)
    assert deferred.until is not None
    # When it is due, it is night in the zone that the user has by now.
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "Asia/Tokyo")])
    clock.set(deferred.until)
    once_more = item(intent_id=asked.intent_id, deferrals=1, planned_at=deferred.until)
    (released,) = await judge.evaluate([once_more])
    assert released.action is Action.SEND_NOW
    assert entry(released, Gate.QUIET_HOURS).inputs["zone"] == "Asia/Tokyo"
    assert entry(released, Gate.QUIET_HOURS).reason == "released_after_deferral"
    assert metrics.get_sample_value("reach_policy_released_after_deferral_total") == 1


async def test_a_zone_that_is_none_costs_others_nothing_and_is_counted(
    judge_of: JudgeOf, store: PolicyStore, metrics: prometheus_client.CollectorRegistry
) -> None:
    judge = judge_of(POLICIES)
    await store.upsert_profiles(
        "acme", [Profile("ann", MAIL, "", "Asia/Nowhere"), Profile("bob", MAIL, "", "Europe/Zurich")]
    )
    ann, bob = await judge.evaluate([item(), item("bob")])
    quiet = entry(ann, Gate.QUIET_HOURS).inputs
    assert (quiet["zone"], quiet["zone_source"], quiet["warning"]) == ("UTC", "default", "zone_unknown")
    assert ann.sends
    assert bob.sends
    assert "warning" not in entry(bob, Gate.QUIET_HOURS).inputs
    assert metrics.get_sample_value("reach_policy_zone_unknown_total") == 1


async def test_a_local_time_is_that_of_the_kept_zone(
    judge_of: JudgeOf, store: PolicyStore, clock: ManualClock
) -> None:
    judge = judge_of(POLICIES)
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "Asia/Tokyo")])
    asked = item(send_at_local=LocalTime(time(20)), submitted_at=clock.now())
    (deferred,) = await judge.evaluate([asked])
    # It is 21:00 there: 20:00 comes tomorrow, at 11:00 UTC.
    assert deferred.until == clock.now() + timedelta(hours=23)
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "Europe/Zurich")])
    (again,) = await judge.evaluate([asked])
    assert again.until == deferred.until


QUOTA = POLICIES.replace("    user_daily_cap: 3\n", "    user_daily_cap: 3\n    tenant_daily_quota: 5\n")


async def test_a_tenant_sends_no_more_on_a_day_than_its_quota_and_what_it_does_not_send_costs_nothing(
    judge_of: JudgeOf, store: PolicyStore, counters: Counters
) -> None:
    judge = judge_of(QUOTA)
    users = [f"u{number}" for number in range(9)]
    for tenant in ("acme", "globex"):
        await store.upsert_profiles(tenant, [Profile(user, MAIL, "", "") for user in users])
    items = [item(user) for user in users]
    decisions = await judge.evaluate(items)
    assert [decision.sends for decision in decisions] == [True] * 5 + [False] * 4
    assert {decision.reason for decision in decisions[5:]} == {"tenant_daily_quota"}
    assert all(decision.sends for decision in await judge.evaluate(items[:5])), "they have their place"
    # A user whose message found no place in the quota keeps theirs in the caps.
    assert not await counters.show([UserKey("acme", "u8")])
    (other,) = await judge.evaluate([item("u0", tenant="globex")])
    assert other.sends
    # One that never left makes room for another.
    user, message = UserKey("acme", "u0"), f"{items[0].intent_id}:0"
    await counters.settle([Settlement(user, message, Channel.EMAIL, decisions[0].cap_date, confirmed=False)])
    late = await judge.evaluate([item("u7"), item("u8")])
    assert [decision.sends for decision in late] == [True, False]


async def test_a_message_refused_by_the_users_cap_costs_the_tenant_nothing(
    judge_of: JudgeOf, store: PolicyStore
) -> None:
    judge = judge_of(QUOTA)
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", ""), Profile("bob", MAIL, "", "")])
    await judge.evaluate([item() for _ in range(6)])
    decisions = await judge.evaluate([item("bob") for _ in range(3)])
    assert [decision.reason for decision in decisions] == ["", "", "tenant_daily_quota"]


WINDOWED = (
    POLICIES
    + "  promo: {category: marketing, channels: [email], user_daily_cap: 9, user_window_caps: [{messages: 2, days: 7}]}\n"
)


async def test_marketing_keeps_to_its_sliding_window_and_others_do_not_count(
    judge_of: JudgeOf, store: PolicyStore, memory: Memory, clock: ManualClock
) -> None:
    judge = judge_of(WINDOWED)
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "")])
    (notice,) = await judge.evaluate([item()])
    assert notice.sends
    sales = await judge.evaluate([item(scene="promo") for _ in range(3)])
    assert [decision.reason for decision in sales] == ["", "", "user_window_cap"]
    assert entry(sales[2], Gate.FREQUENCY).inputs["window_count"] == "2"


async def test_a_gathered_message_takes_no_place(judge_of: JudgeOf, store: PolicyStore, counters: Counters) -> None:
    judge = judge_of(POLICIES + "  comment: {channels: [email], digest: {window_seconds: 600}}\n")
    await store.upsert_profiles("acme", [Profile("ann", MAIL, "", "")])
    parts = await judge.evaluate([item(scene="comment") for _ in range(5)])
    assert {(part.action, part.reason) for part in parts} == {(Action.DEFER, "gathered")}
    assert await counters.show([ANN]) == []
    digest = item(scene="comment", gathered=True)
    (decision,) = await judge.evaluate([digest])
    assert decision.sends
    assert [counted.message for counted in await counters.show([ANN])] == [f"{digest.intent_id}:0"]
