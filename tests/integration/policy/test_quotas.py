"""Quotas of channels and tenants hold together, from what left today on, also after Redis was emptied."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis.asyncio

from services.catalog.rules import Channel
from services.chassis.clock import ManualClock
from services.chassis.errors import UnavailableError
from services.policy.counters import Counters, Settlement
from services.policy.decision import UserKey
from services.policy.quotas import Seat, Spender, Tenant
from tests.support.agent import Agent, alert_spec
from tests.support.suite import Suite, running_suite
from tests.support.webhooks import receiving

from .support import Memory

ACME, GLOBEX = Tenant("acme"), Tenant("globex")
ANN = UserKey("acme", "ann")
TODAY = datetime.now(UTC).date().isoformat()


class HeldMemory(Memory):
    """Answers only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.free = asyncio.Event()

    async def count_sends(self, spenders: Sequence[Spender], since: datetime) -> dict[Spender, int]:
        self.asked.set()
        await self.free.wait()
        return await super().count_sends(spenders, since)


class AbsentMemory(Memory):
    """Cannot be asked until it is back."""

    back = False

    async def count_sends(self, spenders: Sequence[Spender], since: datetime) -> dict[Spender, int]:
        if not self.back:
            raise UnavailableError("away")
        return await super().count_sends(spenders, since)


def counters_on(client: redis.asyncio.Redis, deployment: str, memory: Memory, clock: ManualClock) -> Counters:
    return Counters(client, deployment=deployment, memory=memory, clearances=memory, clock=clock)


async def take(counters: Counters, wanted: Mapping[Spender, tuple[int, int]]) -> dict[Spender, tuple[int, int]]:
    """Takes so many places, each for a new message; returns how many there were, and how many were taken before."""
    wishes = {spender: ([f"{uuid.uuid4()}:0" for _ in range(n)], quota) for spender, (n, quota) in wanted.items()}
    before = await counters.quotas.look(list(wanted))
    seats = await counters.quotas.take(wishes)
    return {spender: (sum(seat.held for seat in seats[spender]), before[spender]) for spender in wanted}


async def test_a_channels_quota_is_taken_and_given_back_once(counters: Counters) -> None:
    seats = await counters.quotas.take({Channel.SMS: (["a:0", "b:0", "c:0"], 5)})
    assert seats == {Channel.SMS: [Seat(held=True, used=0)] * 3}
    seats = await counters.quotas.take({Channel.SMS: (["d:0", "e:0", "f:0"], 5), Channel.EMAIL: (["a:0"], 9)})
    assert seats[Channel.SMS] == [Seat(held=True, used=3)] * 2 + [Seat(held=False, used=5)]
    assert seats[Channel.EMAIL] == [Seat(held=True, used=0)]
    for _ in range(2):  # the second time there is nothing left to give back
        await counters.settle([Settlement(ANN, "a:0", Channel.SMS, TODAY, confirmed=False)])
    assert await counters.quotas.look([Channel.SMS, Channel.EMAIL]) == {Channel.SMS: 4, Channel.EMAIL: 0}


async def test_a_message_takes_one_place_however_often_it_asks(counters: Counters) -> None:
    wishes: dict[Spender, tuple[Sequence[str], int]] = {Channel.SMS: (["a:0", "a:1"], 2), ACME: (["a:0"], 1)}
    for _ in range(3):
        seats = await counters.quotas.take(wishes)
        assert all(seat.held for row in seats.values() for seat in row)
    assert seats[ACME] == [Seat(held=True, used=0)], "it does not stand in its own way"
    assert await counters.quotas.look(list(wishes)) == {Channel.SMS: 2, ACME: 1}


async def test_what_counts_on_no_caps_gives_its_place_in_a_channels_quota_back_too(counters: Counters) -> None:
    await counters.quotas.take({Channel.SMS: (["code:0"], 5)})
    await counters.settle([Settlement(ANN, "code:0", Channel.SMS, "", confirmed=False)])
    assert await counters.quotas.look([Channel.SMS]) == {Channel.SMS: 0}


async def test_a_place_of_yesterday_is_not_given_back_to_today(
    counters: Counters, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await counters.quotas.take({Channel.SMS: (["a:0"], 5)})
    await redis_client.hincrby(f"reach:{deployment}:quota:{{sms}}", "day", -1)
    assert await take(counters, {Channel.SMS: (2, 5)}) == {Channel.SMS: (2, 0)}
    await counters.quotas.give_back({Channel.SMS: ["a:0"]})
    assert await counters.quotas.look([Channel.SMS]) == {Channel.SMS: 2}
    assert await counters.quotas.take({Channel.SMS: (["a:0"], 5)}) == {Channel.SMS: [Seat(held=True, used=2)]}


async def test_a_quota_that_was_lowered_holds_for_what_has_its_place_but_has_not_left(counters: Counters) -> None:
    await counters.quotas.take({Channel.SMS: (["a:0", "b:0", "c:0"], 5)})
    seats = (await counters.quotas.take({Channel.SMS: (["a:0", "b:0"], 2)}))[Channel.SMS]
    assert [seat.held for seat in seats] == [False, True]
    assert await counters.quotas.look([Channel.SMS]) == {Channel.SMS: 2}


async def test_a_tenants_quota_is_taken_and_given_back(counters: Counters) -> None:
    await counters.quotas.take({ACME: (["a:0", "b:0", "c:0"], 5), GLOBEX: (["d:0"], 5)})
    for _ in range(2):
        await counters.settle([Settlement(ANN, "a:0", Channel.EMAIL, TODAY, confirmed=False)])
    assert await counters.quotas.look([ACME, GLOBEX]) == {ACME: 2, GLOBEX: 1}


async def test_a_tenant_may_have_the_name_of_a_channel(counters: Counters) -> None:
    await take(counters, {Channel.EMAIL: (3, 5)})
    assert await take(counters, {Tenant("email"): (1, 5), Channel.EMAIL: (0, 5)}) == {
        Tenant("email"): (1, 0),
        Channel.EMAIL: (0, 3),
    }


async def test_after_redis_was_emptied_quotas_go_on_from_what_left_today(
    counters: Counters, memory: Memory, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await take(counters, {Channel.SMS: (4, 5), ACME: (4, 5)})
    memory.spent = {Channel.SMS: 4, ACME: 3}  # one is in flight
    await redis_client.delete(*await redis_client.keys(f"reach:{deployment}:*"))
    taken = await take(counters, {Channel.SMS: (3, 5), ACME: (3, 5), GLOBEX: (3, 5)})
    assert taken == {Channel.SMS: (1, 4), ACME: (2, 3), GLOBEX: (3, 0)}
    (_, since) = memory.counted[-1]
    assert since == datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    questions = len(memory.counted)
    assert await take(counters, {ACME: (1, 5)}) == {ACME: (0, 5)}
    assert len(memory.counted) == questions, "asked once"


async def test_a_day_begins_with_what_left_on_it(
    counters: Counters, memory: Memory, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await take(counters, {Channel.SMS: (5, 5)})
    await redis_client.hincrby(f"reach:{deployment}:quota:{{sms}}", "day", -1)
    assert await take(counters, {Channel.SMS: (1, 5)}) == {Channel.SMS: (1, 0)}
    await redis_client.hincrby(f"reach:{deployment}:quota:{{sms}}", "day", -1)
    memory.spent = {Channel.SMS: 5}
    assert await take(counters, {Channel.SMS: (1, 5)}) == {Channel.SMS: (0, 5)}


async def test_of_many_processes_that_find_redis_empty_one_asks_and_all_wait_for_it(
    redis_client: redis.asyncio.Redis, deployment: str, clock: ManualClock
) -> None:
    memory = HeldMemory()
    memory.spent = {ACME: 90}
    processes = [counters_on(redis_client, deployment, memory, clock) for _ in range(4)]
    waiting = [
        asyncio.create_task(take(process, {ACME: (1, 100), Channel.EMAIL: (1, 1_000)}))
        for process in processes
        for _ in range(10)
    ]
    await memory.asked.wait()
    memory.free.set()
    answers = await asyncio.gather(*waiting)
    assert sum(answer[ACME][0] for answer in answers) == 10
    assert sum(answer[Channel.EMAIL][0] for answer in answers) == 40
    assert sorted(spender for spenders, _ in memory.counted for spender in map(str, spenders)) == [
        "Tenant(name='acme')",
        "email",
    ], "each was asked for once"


async def test_a_count_that_was_asked_for_before_redis_was_emptied_again_is_not_believed(
    redis_client: redis.asyncio.Redis, deployment: str, clock: ManualClock
) -> None:
    memory = HeldMemory()
    counters = counters_on(redis_client, deployment, memory, clock)
    waiting = asyncio.create_task(take(counters, {ACME: (9, 5)}))
    await memory.asked.wait()
    await redis_client.delete(f"reach:{deployment}:tenant:{{acme}}")
    memory.free.set()
    memory.spent = {ACME: 4}
    assert await waiting == {ACME: (1, 4)}
    assert len(memory.counted) == 2


async def test_what_is_given_back_while_nobody_knows_the_count_is_not_taken_off_twice(
    counters: Counters, memory: Memory, redis_client: redis.asyncio.Redis, deployment: str
) -> None:
    await counters.quotas.take({ACME: (["a:0", "b:0"], 5)})
    memory.spent = {ACME: 1}  # the other one never left
    await redis_client.delete(f"reach:{deployment}:tenant:{{acme}}")
    await counters.quotas.give_back({ACME: ["a:0"]})
    assert await take(counters, {ACME: (0, 5)}) == {ACME: (0, 1)}


async def test_nothing_is_handed_out_while_nobody_can_be_asked_and_the_next_one_asks_again(
    redis_client: redis.asyncio.Redis, deployment: str, clock: ManualClock
) -> None:
    memory = AbsentMemory()
    counters = counters_on(redis_client, deployment, memory, clock)
    with pytest.raises(UnavailableError):
        await take(counters, {ACME: (1, 5)})
    memory.back = True
    memory.spent = {ACME: 2}
    assert await take(counters, {ACME: (1, 5)}) == {ACME: (1, 2)}


@pytest.mark.parametrize(
    ("setting", "limited", "reason"),
    [
        ("  webhook: {burst: 100,", "  webhook: {daily_quota: 5, burst: 100,", "channel_quota_spent"),
        (
            "    task_ttl_seconds: 86400",
            "    task_ttl_seconds: 86400\n    tenant_daily_quota: 5",
            "tenant_daily_quota",
        ),
    ],
)
async def test_a_quota_holds_though_the_real_redis_is_emptied_between_the_sends(
    suite: Suite, setting: str, limited: str, reason: str
) -> None:
    policies = Path(suite.settings["config_dir"]) / "policies.yaml"
    text = policies.read_text().replace(", daily_quota: 1000000}", "}")
    assert setting in text
    policies.write_text(text.replace(setting, limited))
    users = [f"u{number}" for number in range(9)]
    async with (
        receiving() as receiver,
        running_suite(suite),
        redis.asyncio.from_url(suite.settings["redis_url"].get_secret_value()) as client,
    ):
        agent = Agent(suite)
        await agent.has_users(users, f"{receiver.url}/all")
        reasons = []
        for some in (users[:3], users[3:6], users[6:]):
            (answer,) = await agent.submit_batches([[alert_spec(user) for user in some]])
            ended = [await agent.ended(result.accepted.intent_id) for result in answer.results]
            stories = [await agent.explained(intent.intent_id) for intent in ended]
            reasons.append(sorted(story.tasks[0].reason for story in stories))
            await client.delete(*await client.keys(f"reach:{suite.settings['deployment']}:*"))
        assert reasons == [["", "", ""], ["", "", reason], [reason] * 3]
        assert len(receiver.at("/all")) == 5
