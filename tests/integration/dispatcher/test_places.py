"""A place in the caps belongs to what leaves: however else a message ends, its place is there for the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio

from agent_reach.v1 import message_pb2, reach_pb2, suppression_pb2
from services.chassis.clock import ManualClock
from services.chassis.moments import timestamp
from tests.conftest import Dsns
from tests.integration.dispatcher.test_late import due_now, task_of
from tests.support.agent import Agent, alert_spec
from tests.support.dispatching import Dispatching, intent, send_now
from tests.support.suite import Suite, running_suite
from tests.support.webhooks import receiving

NOON = datetime(2030, 5, 6, 12, tzinfo=UTC)
TOO_LARGE = "x" * 3_000

Step = Callable[["Scene"], Awaitable[None]]


class Scene:
    """A message that has its place and waits for its second attempt; user u1 may get one a day."""

    def __init__(self, suite: Suite, migrated: Dsns, clock: ManualClock, url: str) -> None:
        self.agent, self.line = Agent(suite), Dispatching(suite)
        self.migrated, self.clock, self.url = migrated, clock, url
        self.intent_id = ""

    async def submitted(self, title: str, **fields: object) -> str:
        return (await self.agent.submit(alert_spec("u1", title=title, **fields))).intent_id

    async def waits(self) -> None:
        self.intent_id = await self.submitted("first", expires_at=timestamp(NOON + timedelta(hours=1)))
        await task_of(self.line, self.intent_id, "SCHEDULED", reason="http_503")

    async def address_is_silenced(self) -> None:
        address = message_pb2.Address(channel=message_pb2.CHANNEL_WEBHOOK, value=f"{self.url}/first")
        source = suppression_pb2.SUPPRESSION_SOURCE_UNSUBSCRIBE
        request = suppression_pb2.SuppressRequest(
            suppressions=[suppression_pb2.Suppression(address=address, source=source)]
        )
        await self.agent.suppressions.Suppress(request, metadata=self.agent.metadata)

    async def ends(self, state: str, reason: str) -> None:
        await due_now(self.migrated)
        assert (await task_of(self.line, self.intent_id, state)).reason == reason


async def is_refused(scene: Scene) -> None:
    await scene.waits()
    await scene.ends("FAILED", "http_403")


async def expires(scene: Scene) -> None:
    await scene.waits()
    scene.clock.advance(3_601)
    await scene.ends("EXPIRED", "expired")


async def is_cancelled(scene: Scene) -> None:
    await scene.waits()
    await scene.agent.reach.CancelIntent(
        reach_pb2.CancelIntentRequest(intent_id=scene.intent_id), metadata=scene.agent.metadata
    )


async def is_withheld_at_the_last_look(scene: Scene) -> None:
    await scene.waits()
    await scene.address_is_silenced()
    await scene.ends("SUPPRESSED", "address_unsubscribed")


async def is_dropped_when_it_is_judged_again(scene: Scene) -> None:
    await scene.waits()
    await scene.address_is_silenced()
    scene.clock.advance(1_200)
    await scene.ends("SUPPRESSED", "address_unsubscribed")


async def cannot_be_rendered(scene: Scene) -> None:
    scene.intent_id = await scene.submitted(TOO_LARGE)
    assert (await task_of(scene.line, scene.intent_id, "FAILED")).reason == "too_large"


async def cannot_be_rendered_when_its_moment_has_come(scene: Scene) -> None:
    scene.intent_id = await scene.submitted(TOO_LARGE, send_at=timestamp(NOON + timedelta(minutes=30)))
    await task_of(scene.line, scene.intent_id, "SCHEDULED", reason="scheduled")
    scene.clock.advance(1_800)
    await scene.ends("FAILED", "too_large")


@pytest.mark.parametrize(
    "end",
    [
        is_refused,
        expires,
        is_cancelled,
        is_withheld_at_the_last_look,
        is_dropped_when_it_is_judged_again,
        cannot_be_rendered,
        cannot_be_rendered_when_its_moment_has_come,
    ],
)
async def test_what_does_not_leave_gives_its_place_back(suite: Suite, migrated: Dsns, end: Step) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(
        policies.read_text()
        .replace("base_seconds: 0.1,", "base_seconds: 300,")
        .replace("user_daily_cap: 3", "user_daily_cap: 1")
    )
    suite.own["dispatcher"] = {"max_rendered_bytes": 1_024}
    suite.clock = clock = ManualClock(NOON)
    async with receiving() as receiver, running_suite(suite):
        receiver.answer = lambda path, before: (403 if before else 503) if path == "/first" else 200
        scene = Scene(suite, migrated, clock, receiver.url)
        await scene.agent.has_users(["u1"], f"{receiver.url}/first")
        await end(scene)
        await scene.agent.has_users(["u1"], f"{receiver.url}/second")
        ends = [(await scene.agent.ended(await scene.submitted(title))).state_reason for title in ("next", "last")]
        assert ends == ["", "user_daily_cap"]


async def test_places_that_an_emptied_redis_gave_away_twice_are_judged_again_before_anything_leaves(
    suite: Suite,
) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent, line = Agent(suite), Dispatching(suite)
        await agent.has_users(["u1"], receiver.url)
        # As the dispatcher has them when Redis was emptied after the policy let them through: five, and three may leave.
        webhook = message_pb2.CHANNEL_WEBHOOK
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        decision = send_now(webhook, f"{receiver.url}/hook", cap_date=today)
        items = [intent(decision, user_id="u1") for _ in range(5)]
        await line.accept(*items)
        tasks = [await line.reaches(item, "SENT", "SUPPRESSED") for item in items]
        assert sorted(task.reason for task in tasks) == ["", "", "", "user_daily_cap", "user_daily_cap"]
        assert all(len(task.decisions) == 2 for task in tasks)
        assert len(receiver.posts) == 3


async def test_redis_may_be_emptied_in_the_midst_of_it_and_every_user_gets_as_many_as_the_cap_says(
    suite: Suite,
) -> None:
    users = [f"u{number}" for number in range(20)]
    async with (
        receiving() as receiver,
        running_suite(suite),
        redis.asyncio.from_url(suite.settings["redis_url"].get_secret_value()) as client,
    ):
        agent = Agent(suite)
        for user in users:
            await agent.has_users([user], f"{receiver.url}/{user}")
        stored: list[str] = []
        for number in range(8):
            batch = [alert_spec(user, title=f"no. {number}") for user in users]
            # Stored means that it is judged about now, and these places are lost between the judgement and the send.
            (answer,) = await agent.submit_batches([batch])
            stored += [result.accepted.intent_id for result in answer.results]
            await client.flushall()
        for intent_id in stored:
            await agent.ended(intent_id)
        assert {user: len(receiver.at(f"/{user}")) for user in users} == dict.fromkeys(users, 3)
