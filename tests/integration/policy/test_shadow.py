"""The policy in shadow: never in the way, never lost while something is away, forgotten when it is old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import prometheus_client
import psycopg
import pytest

from agent_reach.durable.tasks import cancel_and_wait
from services.catalog.holder import CatalogHolder
from services.catalog.rules import Channel
from services.catalog.shares import in_share
from services.chassis.clock import ManualClock
from services.chassis.postgres import open_pool
from services.policy import shadow as shadow_module
from services.policy.counters import Counters
from services.policy.judge import Judge
from services.policy.lookup import Lookup
from services.policy.operator_store import OperatorStore, ShadowRecord
from services.policy.outlook import Outlook
from services.policy.records import Profile
from services.policy.shadow import ShadowJudge
from services.policy.store import PolicyStore
from tests.conftest import Dsns
from tests.support.suite import eventually

from .support import POLICIES, item


@pytest.fixture
async def operators(migrated: Dsns) -> AsyncIterator[OperatorStore]:
    async with open_pool("engine", migrated.engine, 4) as engine, open_pool("api", migrated.api, 4) as api:
        yield OperatorStore(engine, api)


class FailingStore:
    """The store, with a database that is away for some calls."""

    def __init__(self, store: OperatorStore, failures: int) -> None:
        self._store = store
        self.failures = failures

    async def record_shadow(self, records: Sequence[ShadowRecord]) -> None:
        if self.failures:
            self.failures -= 1
            raise psycopg.OperationalError("the database is away")
        await self._store.record_shadow(records)


class Ground:
    """A judge with a policy in its shadow."""

    def __init__(self, judge: Judge, shadow: ShadowJudge, metrics: prometheus_client.CollectorRegistry) -> None:
        self.judge = judge
        self.shadow = shadow
        self._metrics = metrics

    def counted(self, name: str, **labels: str) -> float:
        return self._metrics.get_sample_value(f"reach_policy_shadow_{name}_total", labels) or 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.shadow.run())
        try:
            yield
        finally:
            await cancel_and_wait([task])

    async def judged(self, count: int) -> None:
        async def probe() -> bool:
            different = self.counted("decisions", outcome="different", gate="frequency")
            return different + self.counted("decisions", outcome="same", gate="") == count

        await eventually(probe)


@pytest.fixture
async def ground(
    config_dir: Path, directory: Lookup, counters: Counters, clock: ManualClock, operators: OperatorStore
) -> Any:
    def make(settings: str, failures: int = 0) -> Ground:
        (config_dir / "policies.yaml").write_text(f"{POLICIES}\nshadow: {settings}\n")
        (config_dir / "other.yaml").write_text(POLICIES.replace("user_daily_cap: 3", "user_daily_cap: 1"))
        metrics = prometheus_client.CollectorRegistry()
        keeps: Any = FailingStore(operators, failures)
        shadow = ShadowJudge(keeps, Outlook(counters, clock), clock, timedelta(days=30), metrics)
        judge = Judge(CatalogHolder(config_dir), directory, counters, clock, metrics, shadow)
        return Ground(judge, shadow, metrics)

    return make


async def has_users(store: PolicyStore, *users: str) -> None:
    profiles = [Profile(user, {Channel.EMAIL: f"{user}@example.com"}, "", "UTC") for user in users]
    await store.upsert_profiles("acme", profiles)


async def test_what_differs_is_kept_and_counted_by_its_gate(
    ground: Any, store: PolicyStore, operators: OperatorStore
) -> None:
    await has_users(store, "ann")
    world = ground("{file: other.yaml, share: 1}")
    sent = [item("ann") for _ in range(3)]
    async with world.running():
        assert all(decision.sends for decision in await world.judge.evaluate(sent))
        await world.judged(3)
    kept = await operators.list_shadow("acme", scene="", since=None, before=None, limit=10)
    assert {record.intent_id for record in kept} == {message.intent_id for message in sent[1:]}
    assert {record.gate for record in kept} == {"frequency"}
    assert world.counted("decisions", outcome="same", gate="") == 1
    assert not await operators.list_shadow("globex", scene="", since=None, before=None, limit=10)
    first = await operators.list_shadow("acme", scene="order_shipped", since=None, before=None, limit=1)
    rest = await operators.list_shadow("acme", scene="", since=None, before=None, limit=10)
    assert first == rest[:1]


async def test_it_is_asked_for_its_share_of_users_only(ground: Any, store: PolicyStore) -> None:
    users = [f"u{number}" for number in range(60)]
    await has_users(store, *users)
    mine = [user for user in users if in_share(0.3, "shadow", "acme", user)]
    assert 0 < len(mine) < len(users)
    world = ground("{file: other.yaml, share: 0.3}")
    async with world.running():
        await world.judge.evaluate([item(user) for user in users])
        await world.judged(len(mine))


async def test_it_is_asked_for_its_scenes_only(ground: Any, store: PolicyStore) -> None:
    await has_users(store, "ann", "bob")
    world = ground("{file: other.yaml, share: 1, scenes: [news]}")
    async with world.running():
        await world.judge.evaluate([item("ann"), item("bob", scene="news")])
        await world.judged(1)


async def test_while_the_database_is_away_it_waits_and_loses_nothing(
    ground: Any, store: PolicyStore, operators: OperatorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_module, "_AGAIN_SECONDS", 0.01)
    await has_users(store, "ann")
    world = ground("{file: other.yaml, share: 1}", failures=3)
    async with world.running():
        await world.judge.evaluate([item("ann") for _ in range(2)])
        await world.judged(2)
    assert len(await operators.list_shadow("acme", scene="", since=None, before=None, limit=10)) == 1


async def test_more_than_it_can_judge_is_dropped_and_counted_and_nobody_waits(
    ground: Any, store: PolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_module, "_MAX_WAITING", 3)
    await has_users(store, "ann")
    world = ground("{file: other.yaml, share: 1}")
    # Nobody judges what waits: the decisions come all the same.
    assert len(await world.judge.evaluate([item("ann") for _ in range(5)])) == 5
    assert world.counted("dropped") == 2


async def test_old_decisions_are_forgotten_in_bites(operators: OperatorStore, clock: ManualClock) -> None:
    def record(days: int) -> ShadowRecord:
        at = clock.now() - timedelta(days=days)
        return ShadowRecord("acme", f"i{days}", 0, "ann", "news", at, "frequency", b"", b"")

    await operators.record_shadow([record(days) for days in (1, 29, 31, 32, 33)])
    before = clock.now() - timedelta(days=30)
    assert await operators.forget_shadow(before, 2) == 2
    assert await operators.forget_shadow(before, 2) == 1
    kept = await operators.list_shadow("acme", scene="", since=None, before=None, limit=10)
    assert {entry.intent_id for entry in kept} == {"i1", "i29"}
