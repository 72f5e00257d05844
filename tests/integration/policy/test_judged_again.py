"""However often a message is judged, it takes one place a day: in its own channel's quota, and in its tenant's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from services.catalog.rules import Category, Channel
from services.chassis.clock import ManualClock
from services.chassis.errors import UnavailableError
from services.policy.counters import Counters, Settlement
from services.policy.decision import Action, Decision, SuppressionSource, UserKey
from services.policy.judge import Judge
from services.policy.quotas import Spender, Tenant
from services.policy.records import Profile, Wish
from services.policy.store import PolicyStore

from .support import POLICIES, Memory, item, spend

ACME = Tenant("acme")
ANN = UserKey("acme", "ann")
PHONE, MAIL = {Channel.SMS: "+16502530000"}, {Channel.EMAIL: "ann@example.com"}


class Counting(Memory):
    """Counts what left, unless it is away."""

    away = False

    async def count_sends(self, spenders: Sequence[Spender], since: datetime) -> dict[Spender, int]:
        if self.away:
            raise UnavailableError("away")
        return await super().count_sends(spenders, since)


@pytest.fixture
def memory() -> Counting:
    return Counting()


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    text = POLICIES.replace("{sms: 2}", "{sms: 2, email: 1}\n    tenant_daily_quota: 9")
    (tmp_path / "policies.yaml").write_text(text + "  pin: {category: verification, channels: [sms, email]}\n")
    return tmp_path


@pytest.fixture(autouse=True)
async def ann(store: PolicyStore) -> None:
    await store.upsert_profiles("acme", [Profile("ann", {**PHONE, **MAIL}, "", "")])


async def places(counters: Counters) -> tuple[int, int, int]:
    """Returns what is taken: of texts, e-mails, and by the tenant."""
    spenders: list[Spender] = [Channel.SMS, Channel.EMAIL, ACME]
    taken = await counters.quotas.look(spenders)
    return taken[Channel.SMS], taken[Channel.EMAIL], taken[ACME]


async def forget_caps(client: redis.asyncio.Redis, deployment: str) -> None:
    """Has the pending places in the caps run out, as they do after two minutes."""
    for key in await client.keys(f"reach:{deployment}:caps:*"):
        await client.delete(key)


async def evaluated(judge: Judge, **fields: Any) -> Decision:
    (decision,) = await judge.evaluate([item(intent_id="again", **fields)])
    return decision


@pytest.mark.parametrize(("scene", "counts"), [("text", (1, 0, 1)), ("pin", (1, 0, 0)), ("sale", (0, 1, 1))])
async def test_one_message_judged_five_times_takes_one_place(
    judge: Judge,
    counters: Counters,
    redis_client: redis.asyncio.Redis,
    deployment: str,
    scene: str,
    counts: tuple[int, int, int],
) -> None:
    for _ in range(5):
        assert (await evaluated(judge, scene=scene)).action is Action.SEND_NOW
        await forget_caps(redis_client, deployment)
    assert await places(counters) == counts


async def test_the_last_place_of_the_day_is_not_taken_from_who_has_it(judge: Judge, counters: Counters) -> None:
    await spend(counters, {Channel.SMS: 4, ACME: 8})
    for scene in ("text", "pin"):
        for _ in range(3):
            decision = await evaluated(judge, scene=scene)
            assert (decision.action, decision.channel) == (Action.SEND_NOW, Channel.SMS)
    assert await places(counters) == (5, 0, 9)


@pytest.mark.parametrize(("scene", "category"), [("pin", Category.VERIFICATION), ("order_shipped", None)])
async def test_a_message_that_goes_another_way_than_before_leaves_the_quota_of_the_first(
    judge: Judge, store: PolicyStore, counters: Counters, scene: str, category: Category | None
) -> None:
    ways = (Channel.SMS, Channel.EMAIL)
    assert (await evaluated(judge, scene=scene, channels=ways)).channel is Channel.SMS
    wish = Wish(SuppressionSource.BOUNCE, user_id="ann", channel=Channel.SMS, category=category)
    await store.suppress("acme", [wish], "provider")
    assert (await evaluated(judge, scene=scene, channels=ways)).channel is Channel.EMAIL
    assert (await places(counters))[:2] == (0, 1)


async def test_what_fell_back_goes_back_to_its_first_channel_when_that_has_room_again(
    judge: Judge, counters: Counters
) -> None:
    await counters.quotas.take({Channel.SMS: ([f"{number}:0" for number in range(5)], 5)})
    for _ in range(2):
        assert (await evaluated(judge, scene="text")).action is Action.FALL_BACK
        assert await places(counters) == (5, 1, 1)
    await counters.quotas.give_back({Channel.SMS: ["0:0"]})
    assert (await evaluated(judge, scene="text")).action is Action.SEND_NOW
    assert await places(counters) == (5, 0, 1)


async def test_what_waits_or_is_dropped_gives_back_what_an_earlier_judgement_took(
    judge: Judge, store: PolicyStore, counters: Counters, clock: ManualClock
) -> None:
    await evaluated(judge, scene="text")
    assert await places(counters) == (1, 0, 1)
    clock.set(clock.now().replace(hour=23))
    assert (await evaluated(judge, scene="text")).action is Action.DEFER
    assert await places(counters) == (0, 0, 0)
    clock.set(clock.now().replace(hour=12))
    await evaluated(judge, scene="text")
    await store.suppress("acme", [Wish(SuppressionSource.UNSUBSCRIBE, user_id="ann")], "link")
    assert (await evaluated(judge, scene="text")).action is Action.DROP
    assert await places(counters) == (0, 0, 0)


async def test_a_fallback_that_the_caps_refuse_costs_the_tenant_nothing(judge: Judge, counters: Counters) -> None:
    assert (await judge.evaluate([item(channels=(Channel.EMAIL,))]))[0].sends
    await spend(counters, {Channel.SMS: 5})
    decision = await evaluated(judge, scene="text")
    assert (decision.action, decision.reason) == (Action.DROP, "channel_quota_spent")
    quota = decision.trace[-1].inputs
    assert (quota["fallback_refused"], quota["fallback_channel_count"]) == ("user_channel_daily_cap", "1")
    assert await places(counters) == (5, 1, 1)
    assert len(await counters.show([ANN])) == 1


async def test_a_batch_that_had_its_caps_when_the_dispatcher_was_away_takes_its_quotas_when_it_is_back(
    judge: Judge, counters: Counters, memory: Counting
) -> None:
    memory.away = True
    with pytest.raises(UnavailableError):
        await evaluated(judge, scene="text")
    assert len(await counters.show([ANN])) == 1
    memory.away = False
    assert (await evaluated(judge, scene="text")).sends
    assert await places(counters) == (1, 0, 1)


async def test_a_place_in_the_caps_alone_lets_nothing_through_where_the_quota_is_spent(
    judge: Judge, counters: Counters, memory: Counting
) -> None:
    memory.away = True
    with pytest.raises(UnavailableError):
        await evaluated(judge, scene="sale")
    memory.away = False
    await spend(counters, {ACME: 9})
    decision = await evaluated(judge, scene="sale")
    assert (decision.action, decision.reason) == (Action.DROP, "tenant_daily_quota")
    assert await places(counters) == (0, 0, 9)
    assert not await counters.show([ANN])


async def test_a_code_that_never_left_gives_its_place_back(judge: Judge, counters: Counters) -> None:
    await evaluated(judge, scene="pin")
    await counters.settle([Settlement(ANN, "again:0", Channel.SMS, "", confirmed=False)])
    assert await places(counters) == (0, 0, 0)
