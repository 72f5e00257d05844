"""Hours later: what waits for its moment, or was held up by an outage, is judged for the hour at which it would leave.

The clock is set to a year to come, and what is due then is made due by hand.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from agent_reach.v1 import message_pb2, profile_pb2, reach_pb2, timeline_pb2
from services.chassis.clock import ManualClock
from services.chassis.moments import moment, timestamp
from tests.conftest import Dsns
from tests.support.agent import Agent, alert_spec
from tests.support.dispatching import Dispatching, intent
from tests.support.suite import Suite, running_suite
from tests.support.webhooks import receiving

DAY = datetime(2030, 5, 6, tzinfo=UTC)


def at(hour: int, minute: int = 0, days: int = 0) -> datetime:
    return DAY + timedelta(days=days, hours=hour, minutes=minute)


def note(user_id: str = "u1", title: str = "News", **fields: Any) -> reach_pb2.IntentSpec:
    """Returns a notification over a webhook: not at night, and counted."""
    spec = alert_spec(user_id, title=title, channels=[message_pb2.CHANNEL_WEBHOOK], template="alert", **fields)
    spec.scene = "note"
    return spec


async def due_now(migrated: Dsns) -> None:
    """Makes due whatever waits."""
    async with await psycopg.AsyncConnection.connect(migrated.engine) as connection:
        await connection.execute(
            "UPDATE dispatcher.tasks SET run_at = clock_timestamp() WHERE finished_at IS NULL AND owner IS NULL"
        )


async def task_of(line: Dispatching, intent_id: str, *states: str, reason: str | None = None) -> timeline_pb2.Task:
    return await line.reaches(intent(message_pb2.Decision(), intent_id=intent_id), *states, reason=reason)


async def test_what_was_due_in_the_morning_wakes_nobody_after_an_outage_until_23_00(
    suite: Suite, migrated: Dsns
) -> None:
    suite.clock = clock = ManualClock(at(7))
    async with receiving() as receiver, running_suite(suite):
        agent, line = Agent(suite), Dispatching(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        spec = note()
        spec.expires_at.CopyFrom(timestamp(at(12, days=2)))
        intent_id = (await agent.submit(spec)).intent_id
        first = await task_of(line, intent_id, "SCHEDULED", reason="quiet_hours")
        assert at(8) <= moment(first.due_at) <= at(8, 30)
        await suite.stop("policy")
        clock.set(moment(first.due_at))
        await due_now(migrated)
        await task_of(line, intent_id, "SCHEDULED", reason="waiting")
        clock.set(at(23))
        await suite.start("policy")
        await due_now(migrated)
        second = await task_of(line, intent_id, "SCHEDULED", reason="quiet_hours")
        assert at(8, days=1) <= moment(second.due_at) <= at(8, 30, days=1)
        assert not receiver.posts
        clock.set(moment(second.due_at))
        await due_now(migrated)
        assert len((await task_of(line, intent_id, "SENT")).attempts) == 1


async def test_a_retry_that_comes_at_night_waits_for_the_morning_and_costs_no_attempt(
    suite: Suite, migrated: Dsns
) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(policies.read_text().replace("base_seconds: 0.1,", "base_seconds: 300,"))
    suite.clock = clock = ManualClock(at(21))
    async with receiving() as receiver, running_suite(suite):
        receiver.answer = lambda _path, before: 200 if before else 503
        agent, line = Agent(suite), Dispatching(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        spec = note()
        spec.expires_at.CopyFrom(timestamp(at(12, days=2)))
        intent_id = (await agent.submit(spec)).intent_id
        await task_of(line, intent_id, "SCHEDULED", reason="http_503")
        clock.set(at(23))
        await due_now(migrated)
        waiting = await task_of(line, intent_id, "SCHEDULED", reason="quiet_hours")
        assert len(receiver.posts) == 1
        clock.set(moment(waiting.due_at))
        await due_now(migrated)
        task = await task_of(line, intent_id, "SENT")
        assert [attempt.number for attempt in task.attempts] == [1, 2]
        assert len({post.headers["idempotency-key"] for post in receiver.posts}) == 1
        assert [decision.action for decision in task.decisions] == [
            message_pb2.ACTION_SEND_NOW,
            message_pb2.ACTION_DEFER,
            message_pb2.ACTION_SEND_NOW,
        ]


async def test_what_leaves_on_another_day_counts_on_that_day_and_is_not_in_its_own_way(
    suite: Suite, migrated: Dsns
) -> None:
    """Alerts leave at any hour, and count. The cap is 1."""
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(
        policies.read_text()
        .replace("base_seconds: 0.1,", "base_seconds: 300,")
        .replace("user_daily_cap: 3", "user_daily_cap: 1")
    )
    suite.clock = clock = ManualClock(at(23, 30))
    async with receiving() as receiver, running_suite(suite):
        receiver.answer = lambda _path, before: 200 if before else 503
        agent, line = Agent(suite), Dispatching(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        first = (await agent.submit(alert_spec("u1", title="A"))).intent_id
        await task_of(line, first, "SCHEDULED", reason="http_503")
        clock.set(at(0, 30, days=1))
        await due_now(migrated)
        task = await task_of(line, first, "SENT")
        assert [decision.cap_date for decision in task.decisions] == ["2030-05-06", "2030-05-07"]
        refused = (await agent.submit(alert_spec("u1", title="B"))).intent_id
        assert (await agent.ended(refused)).state_reason == "user_daily_cap"
        clock.set(at(23, 40))
        assert (await agent.ended((await agent.submit(alert_spec("u1", title="C"))).intent_id)).state_reason == "", (
            "the place of the day before was given back"
        )


async def test_what_waited_longer_than_its_place_in_the_caps_holds_asks_for_one_again(suite: Suite) -> None:
    suite.clock = clock = ManualClock(at(12))
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, item = Dispatching(suite), decided(f"{receiver.url}/hook", clock)
        await suite.stop("policy")
        await line.accept(item)
        await line.reaches(item, "PENDING", reason="waiting")
        clock.advance(120)
        await suite.start("policy")
        assert len((await line.reaches(item, "SENT")).decisions) == 2


def decided(url: str, clock: ManualClock) -> Any:
    decision = message_pb2.Decision(
        action=message_pb2.ACTION_SEND_NOW, channel=message_pb2.CHANNEL_WEBHOOK, address=url, cap_date="2030-05-06"
    )
    decision.decided_at.FromDatetime(clock.now())
    address = message_pb2.Address(channel=message_pb2.CHANNEL_WEBHOOK, value=url)
    return intent(decision, address=address, expires_at=clock.now() + timedelta(hours=1))


async def test_a_message_waits_unrendered_for_its_moment_and_is_judged_then(suite: Suite, migrated: Dsns) -> None:
    suite.clock = clock = ManualClock(at(12))
    async with receiving() as receiver, running_suite(suite):
        agent, line = Agent(suite), Dispatching(suite)
        await agent.has_users(["u1"], f"{receiver.url}/before")
        spec = note(send_at=at(18))
        intent_id = (await agent.submit(spec)).intent_id
        waiting = await task_of(line, intent_id, "SCHEDULED", reason="scheduled")
        assert (waiting.body, waiting.address, waiting.channel) == ("", "", message_pb2.CHANNEL_UNSPECIFIED)
        assert moment(waiting.due_at) == at(18)
        shown = await agent.intent(intent_id)
        assert moment(shown.spec.send_at) == at(18)
        assert moment(shown.spec.expires_at) == at(18, days=1), "a day from the moment at which it leaves"
        # What holds when it leaves counts, not what held when it was submitted.
        await agent.has_users(["u1"], f"{receiver.url}/after")
        clock.set(at(18))
        await due_now(migrated)
        task = await task_of(line, intent_id, "SENT")
        assert [post.path for post in receiver.posts] == ["/after"]
        assert task.body.encode() == receiver.posts[0].body
        assert [decision.held_by for decision in task.decisions] == [message_pb2.GATE_SCHEDULE, 0]
        (submitted,) = [entry for entry in (await agent.explained(intent_id)).timeline if entry.kind == "submitted"]
        assert submitted.summary.endswith("to leave at 2030-05-06T18:00:00Z")


async def test_a_moment_at_night_is_put_off_to_the_morning_once(suite: Suite, migrated: Dsns) -> None:
    suite.clock = clock = ManualClock(at(12))
    async with receiving() as receiver, running_suite(suite):
        agent, line = Agent(suite), Dispatching(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        intent_id = (await agent.submit(note(send_at=at(23)))).intent_id
        await task_of(line, intent_id, "SCHEDULED", reason="scheduled")
        clock.set(at(23))
        await due_now(migrated)
        waiting = await task_of(line, intent_id, "SCHEDULED", reason="quiet_hours")
        assert at(8, days=1) <= moment(waiting.due_at) <= at(8, 30, days=1)
        clock.set(moment(waiting.due_at))
        await due_now(migrated)
        await task_of(line, intent_id, "SENT")
        assert len(receiver.posts) == 1


async def test_eight_in_the_morning_in_new_york_is_that_also_when_clocks_change_in_the_night(suite: Suite) -> None:
    """Asked on the Saturday before the second Sunday of March: at 08:00 the offset is another one."""
    suite.clock = ManualClock(datetime(2031, 3, 8, 17, tzinfo=UTC))
    async with receiving() as receiver, running_suite(suite):
        agent, line = Agent(suite), Dispatching(suite)
        profile = profile_pb2.Profile(user_id="u1", time_zone="America/New_York")
        profile.addresses.add(channel=message_pb2.CHANNEL_WEBHOOK, value=f"{receiver.url}/hook")
        await agent.profiles.UpsertProfiles(
            profile_pb2.UpsertProfilesRequest(profiles=[profile]), metadata=agent.metadata
        )
        spec = note(send_at_local=message_pb2.LocalTime(time="08:00"))
        intent_id = (await agent.submit(spec)).intent_id
        waiting = await task_of(line, intent_id, "SCHEDULED", reason="scheduled")
        assert moment(waiting.due_at) == datetime(2031, 3, 9, 12, tzinfo=UTC)
        shown = (await agent.intent(intent_id)).spec
        assert (shown.send_at_local.time, shown.HasField("send_at")) == ("08:00", False)


async def test_a_scheduled_message_can_be_cancelled_and_holds_no_place_in_the_caps(suite: Suite) -> None:
    suite.clock = ManualClock(at(12))
    async with receiving() as receiver, running_suite(suite):
        agent, line = Agent(suite), Dispatching(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        scheduled = [(await agent.submit(note(title=f"n{n}", send_at=at(20)))).intent_id for n in range(5)]
        for intent_id in scheduled:
            await task_of(line, intent_id, "SCHEDULED", reason="scheduled")
        sent = [(await agent.submit(note(title=f"now{n}"))).intent_id for n in range(3)]
        for intent_id in sent:
            assert (await agent.ended(intent_id)).state == message_pb2.STATE_SENT
        await agent.reach.CancelIntent(reach_pb2.CancelIntentRequest(intent_id=scheduled[0]), metadata=agent.metadata)
        assert (await task_of(line, scheduled[0], "SUPPRESSED")).reason == "cancelled"


async def test_the_same_call_with_another_moment_is_another_intent_and_is_refused_under_one_key(suite: Suite) -> None:
    suite.clock = ManualClock(at(12))
    async with running_suite(suite):
        agent = Agent(suite)
        now, later, again = [await agent.submit(spec) for spec in (note(), note(send_at=at(18)), note(send_at=at(18)))]
        assert (later.duplicate, again.duplicate) == (False, True)
        assert now.intent_id != later.intent_id == again.intent_id
