"""Digests: intents of one user leave as one message, judged once, and each of them stays explained."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import psycopg

from agent_reach.v1 import dispatcher_pb2, message_pb2, reach_pb2
from services.chassis.clock import ManualClock
from services.chassis.moments import moment as moment_of
from services.chassis.moments import timestamp
from tests.conftest import Dsns
from tests.support.agent import Agent
from tests.support.digests import gathers, part
from tests.support.dispatching import TENANT, Dispatching, alert, defer, intent, moment, short
from tests.support.suite import Suite, eventually, running_suite
from tests.support.webhooks import Receiver, receiving


def orders(receiver: Receiver) -> list[list[int]]:
    """Returns what was in each digest that came."""
    return [json.loads(post.body)["orders"] for post in receiver.posts]


async def come_due(migrated: Dsns) -> None:
    async with await psycopg.AsyncConnection.connect(migrated.engine) as connection:
        await connection.execute("UPDATE dispatcher.tasks SET run_at = clock_timestamp() WHERE gathered")


async def test_the_intents_of_a_user_leave_as_one_message_and_each_is_explained(suite: Suite) -> None:
    gathers(suite, window_seconds=2)
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1", "u2"], f"{receiver.url}/hook")

        async def submitted(user: str, number: int) -> str:
            spec = reach_pb2.IntentSpec(
                user_id=user, scene="order_update", variables_json=json.dumps({"order_id": number})
            )
            return (await agent.submit(spec)).intent_id

        mine = [await submitted("u1", number) for number in (1, 2, 3)]
        theirs = await submitted("u2", 4)
        for intent_id in (*mine, theirs):
            assert (await agent.ended(intent_id)).state == message_pb2.STATE_SENT
        assert sorted(map(sorted, orders(receiver))) == [[1, 2, 3], [4]]
        stories = [await agent.explained(intent_id) for intent_id in mine]
        assert len({story.tasks[0].task_id for story in stories}) == 1, "the same message"
        for intent_id, story in zip(mine, stories, strict=True):
            (task,) = story.tasks
            assert (task.intent_id, json.loads(task.body)["count"]) == (intent_id, 3)
            assert [decision.action for decision in task.decisions] == [
                message_pb2.ACTION_DEFER,
                message_pb2.ACTION_SEND_NOW,
            ]
            assert task.decisions[0].held_by == message_pb2.GATE_DIGEST
            assert [attempt.code for attempt in task.attempts] == ["http_200"]
            states = [entry.summary for entry in story.timeline if entry.kind == "state"]
            assert states == ["SCHEDULED (gathered)", "SENDING", "SENT"]


async def test_a_digest_counts_once_on_the_caps(suite: Suite, migrated: Dsns) -> None:
    gathers(suite)
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        items = [part(number, url) for number in range(5)]
        await line.accept(*items)
        await come_due(migrated)
        for item in items:
            await line.reaches(item, "SENT")
        request = dispatcher_pb2.ListRecentSendsRequest(
            users=[dispatcher_pb2.UserRef(tenant=TENANT, user_id="u1")], since=timestamp(moment(-3_600))
        )
        (send,) = (await line.stub.ListRecentSends(request, metadata=line.metadata)).sends
        assert (send.channel, send.category) == (message_pb2.CHANNEL_WEBHOOK, message_pb2.CATEGORY_NOTIFICATION)


async def test_a_digest_that_is_full_leaves_at_once_and_the_next_part_opens_another(suite: Suite) -> None:
    gathers(suite, max_items=3)
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        items = [part(number, url) for number in range(7)]
        await line.accept(*items[:2])
        await line.accept(*items[2:])
        for item in items[:2]:
            await line.reaches(item, "SENT")
        await eventually(lambda: _length(receiver, 2))
        assert sorted(map(len, orders(receiver))) == [3, 3]
        states = Counter([short((await line.task(item)).state) for item in items])
        assert states["SCHEDULED"] == 1, "the last one waits for company"


async def test_the_same_part_twice_is_one_and_names_its_digest(suite: Suite, migrated: Dsns) -> None:
    gathers(suite)
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher", "dispatcher#2"):
        lines = Dispatching(suite), Dispatching(suite, "dispatcher#2")
        item, other = part(1, f"{receiver.url}/hook"), part(2, f"{receiver.url}/hook")
        answers = await asyncio.gather(*(lines[number % 2].accept(item, other) for number in range(10)))
        results = [result for answer in answers for result in answer]
        assert len({result.task_id for result in results}) == 1
        assert [result.existed for result in results].count(False) == 2
        await come_due(migrated)
        await lines[0].reaches(item, "SENT")
        assert [sorted(digest) for digest in orders(receiver)] == [[1, 2]]
        assert await lines[0].told(item) == ["SCHEDULED gathered", "SENDING", "SENT"]
        (again,) = await lines[0].accept(item)
        assert (again.existed, again.task_id) == (True, results[0].task_id)


async def test_a_part_that_was_cancelled_is_not_in_the_digest(suite: Suite, migrated: Dsns) -> None:
    gathers(suite)
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        items = [part(number, url) for number in range(3)]
        lonely = part(9, url, user_id="u2")
        await line.accept(*items, lonely)
        assert await line.cancel(items[1]) == (True, "SUPPRESSED")
        assert await line.cancel(items[1]) == (True, "SUPPRESSED"), "again is harmless"
        assert await line.cancel(lonely) == (True, "SUPPRESSED")
        await come_due(migrated)
        await line.reaches(items[0], "SENT")
        assert orders(receiver) == [[0, 2]]
        assert await line.told(items[1]) == ["SCHEDULED gathered", "SUPPRESSED cancelled"]
        assert await line.cancel(items[0]) == (False, "SENT")
        async with await psycopg.AsyncConnection.connect(migrated.engine) as connection:

            async def ended() -> bool:
                query = "SELECT count(*) FROM dispatcher.tasks WHERE gathered AND finished_at IS NULL"
                row = await (await connection.execute(query)).fetchone()
                await connection.commit()
                return row == (0,)

            await eventually(ended)
        assert len(receiver.posts) == 1, "an empty digest does not leave"


async def test_a_part_can_be_taken_out_of_a_closed_digest_until_it_was_tried(suite: Suite, migrated: Dsns) -> None:
    gathers(suite)
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(policies.read_text().replace("base_seconds: 0.1,", "base_seconds: 300,"))
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.answer = lambda _path, before: 200 if before else 503
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        items = [part(number, url) for number in range(3)]
        await line.accept(*items)
        await suite.stop("policy")
        await come_due(migrated)
        await line.reaches(items[0], "SCHEDULED", reason="waiting")
        assert await line.cancel(items[1]) == (True, "SUPPRESSED")
        await suite.start("policy")
        await line.reaches(items[0], "SCHEDULED", reason="http_503")
        assert await line.cancel(items[2]) == (False, "SCHEDULED")
        await come_due(migrated)
        await line.reaches(items[2], "SENT")
        assert orders(receiver) == [[0, 2], [0, 2]]


async def test_what_is_due_when_it_is_accepted_leaves_at_once(suite: Suite) -> None:
    """Intake was slow, or clocks differ: the moment until which it was deferred has passed."""
    gathers(suite)
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        first = alert(url)
        await line.accept(first)
        await line.reaches(first, "SENT")
        gathered = part(1, url, due_seconds=-30)
        deferred = intent(defer(message_pb2.CHANNEL_WEBHOOK, url, moment(-30)), address=gathered.address)
        await line.accept(gathered, deferred)
        await line.reaches(gathered, "SENT")
        await line.reaches(deferred, "SENT")


async def test_who_unsubscribed_gets_no_digest_and_every_part_says_so(suite: Suite, migrated: Dsns) -> None:
    gathers(suite)
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, agent, url = Dispatching(suite), Agent(suite), f"{receiver.url}/hook"
        items = [part(number, url) for number in range(3)]
        await line.accept(*items)
        await agent.suppresses("u1")
        await come_due(migrated)
        for item in items:
            assert (await line.reaches(item, "SUPPRESSED")).reason == "user_unsubscribed"
            assert await line.told(item) == ["SCHEDULED gathered", "SUPPRESSED user_unsubscribed"]
        assert not receiver.posts


async def test_a_part_that_has_expired_stays_behind(suite: Suite, migrated: Dsns) -> None:
    gathers(suite)
    suite.clock = clock = ManualClock(datetime.now(UTC))
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        fresh, stale = part(1, url), part(2, url, expires_at=moment(60))
        only = part(3, url, user_id="u2", expires_at=moment(60))
        await line.accept(stale, fresh, only)
        clock.advance(120)
        await come_due(migrated)
        await line.reaches(fresh, "SENT")
        for item in (stale, only):
            assert (await line.reaches(item, "EXPIRED")).reason == "expired"
            assert await line.told(item) == ["SCHEDULED gathered", "EXPIRED expired"]
        assert orders(receiver) == [[1]]


async def test_a_part_that_expires_in_the_night_does_not_wait_with_its_digest(suite: Suite, migrated: Dsns) -> None:
    gathers(suite, quiet_exempt=False)
    late = datetime(2030, 5, 6, 23, tzinfo=UTC)
    suite.clock = clock = ManualClock(late)
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        lives = {"hour": timedelta(hours=1), "night": timedelta(hours=9), "day": timedelta(hours=13)}
        hour, night, day = (part(number, url, expires_at=late + life) for number, life in enumerate(lives.values()))
        only = part(3, url, user_id="u2", expires_at=late + lives["hour"])
        await line.accept(hour, night, day, only)
        await come_due(migrated)
        held = await line.reaches(day, "SCHEDULED", reason="quiet_hours")
        assert late + lives["night"] < moment_of(held.due_at) < late + lives["day"]
        for item in (hour, night, only):
            ended = await line.reaches(item, "SUPPRESSED")
            assert ended.reason == "expires_before_quiet_end"
            assert await line.told(item) == ["SCHEDULED gathered", "SUPPRESSED expires_before_quiet_end"]
            assert await line.cancel(item) == (True, "SUPPRESSED"), "it has ended"
        clock.set(moment_of(held.due_at))
        await come_due(migrated)
        await line.reaches(day, "SENT")
        assert orders(receiver) == [[2]]
        assert await line.told(day) == ["SCHEDULED gathered", "SCHEDULED quiet_hours", "SENDING", "SENT"]


async def test_what_fails_fails_for_every_part_and_falls_back_for_every_part(suite: Suite, migrated: Dsns) -> None:
    gathers(suite, settings=", channels: [webhook, email]")
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(
        policies.read_text().replace("daily_quota: 1000000}", "daily_quota: 1000000, fallback: email}")
    )
    suite.own["dispatcher"] = {"null_channels": ("email",)}
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.answer = lambda _path, _before: 403
        line, agent, url = Dispatching(suite), Agent(suite), f"{receiver.url}/hook"
        await agent.has_addresses(
            "u1", {message_pb2.CHANNEL_WEBHOOK: url, message_pb2.CHANNEL_EMAIL: "ada@example.com"}
        )
        items = [part(number, url, address=None) for number in range(2)]
        await line.accept(*items)
        await come_due(migrated)
        for item in items:
            second = await line.reaches(item, "SENT", hop=1)
            assert (second.channel, second.body.split()) == (message_pb2.CHANNEL_EMAIL, ["0", "1"])
            assert await line.told(item) == [
                "SCHEDULED gathered", "SENDING", "FAILED http_403", "PENDING fallback", "SENDING", "SENT",
            ]  # fmt: skip


async def test_what_waits_for_its_moment_joins_the_digest_when_that_has_come(suite: Suite, migrated: Dsns) -> None:
    gathers(suite)
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        early, scheduled = part(1, url), part(2, url, send_at=moment(1), expires_at=moment(9_000))
        scheduled.decision.held_by = message_pb2.GATE_SCHEDULE
        scheduled.decision.reason = "scheduled"
        scheduled.decision.until.CopyFrom(scheduled.send_at)
        await line.accept(early, scheduled)
        await line.reaches(scheduled, "SCHEDULED", reason="gathered")
        await come_due(migrated)
        await line.reaches(scheduled, "SENT")
        assert orders(receiver) == [[1, 2]]
        assert await line.told(scheduled) == ["SCHEDULED scheduled", "SCHEDULED gathered", "SENDING", "SENT"]


async def test_parts_that_come_while_digests_leave_are_each_in_exactly_one(suite: Suite) -> None:
    gathers(suite, max_items=7, settings=", user_daily_cap: null")
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher", "dispatcher#2"):
        lines = Dispatching(suite), Dispatching(suite, "dispatcher#2")
        items = [part(number, f"{receiver.url}/hook", due_seconds=0.3) for number in range(300)]

        async def feed(line: Dispatching, own: list[dispatcher_pb2.AcceptItem]) -> None:
            for first in range(0, len(own), 5):
                await line.accept(*own[first : first + 5])

        await asyncio.gather(*(feed(lines[n % 2], items[n::4]) for n in range(4)))

        async def all_in() -> bool:
            return sum(map(len, orders(receiver))) >= 300

        await eventually(all_in)
        assert sorted(order for digest in orders(receiver) for order in digest) == list(range(300))
        assert max(map(len, orders(receiver))) <= 7
        for item in items[::50]:
            await lines[0].reaches(item, "SENT")
            assert await lines[0].told(item) == ["SCHEDULED gathered", "SENDING", "SENT"]


async def _length(receiver: Receiver, wanted: int) -> bool:
    return len(receiver.posts) >= wanted
