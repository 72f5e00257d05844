"""The same text, to the same user, on the same channel, goes out once; the loser says why and costs nobody a place."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from agent_reach.v1 import dispatcher_pb2, message_pb2
from tests.integration.dispatcher.test_receipts import posted
from tests.support.agent import Agent, alert_spec
from tests.support.dispatching import Dispatching, alert, intent, send_now, short
from tests.support.suite import Suite, running_suite
from tests.support.webhooks import receiving

ENDED = ("SENT", "FAILED", "SUPPRESSED")


def same(url: str, *, occurred_at: str = "", title: str = "Disk full", **fields: Any) -> dispatcher_pb2.AcceptItem:
    """Returns an alert whose text only its title tells apart: the template calls `occurred_at` noise."""
    variables = {"title": title, "detail": "db-1", **({"occurred_at": occurred_at} if occurred_at else {})}
    return alert(url, variables_json=json.dumps(variables), **fields)


async def test_of_fifty_equal_messages_at_once_over_two_replicas_exactly_one_leaves(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher", "dispatcher#2"):
        lines = Dispatching(suite), Dispatching(suite, "dispatcher#2")
        items = [same(f"{receiver.url}/hook") for _ in range(50)]
        await asyncio.gather(*(lines[number % 2].accept(item) for number, item in enumerate(items)))
        tasks = [await lines[0].reaches(item, *ENDED) for item in items]
        assert Counter((short(task.state), task.reason) for task in tasks) == {
            ("SENT", ""): 1,
            ("SUPPRESSED", "duplicate_content"): 49,
        }
        assert len(receiver.posts) == 1
        winner = next(item for item, task in zip(items, tasks, strict=True) if not task.reason)
        assert {task.same_text.intent_id for task in tasks if task.reason} == {winner.intent_id}
        assert not any(task.HasField("same_text") for task in tasks if not task.reason)
        loser = next(item for item, task in zip(items, tasks, strict=True) if task.reason)
        assert await lines[0].told(loser) == ["PENDING", "SUPPRESSED duplicate_content"], "waiting is no news"


async def test_noise_makes_no_other_message_and_everything_else_does(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        first = same(url, occurred_at="10:00")
        await line.accept(first)
        await line.reaches(first, "SENT")
        later = same(url, occurred_at="10:01")
        title, user = same(url, title="Disk empty"), same(url, user_id="u2")
        scene = same(url, occurred_at="10:02", scene="disk")
        await line.accept(later, title, user, scene)
        assert (await line.reaches(later, *ENDED)).reason == "duplicate_content"
        for item in (title, user):
            assert short((await line.reaches(item, *ENDED)).state) == "SENT"
        # The scene is not what the person reads.
        assert (await line.reaches(scene, *ENDED)).reason == "duplicate_content"
        assert len(receiver.posts) == 3


async def test_a_duplicate_waits_for_the_first_and_takes_its_place_when_that_fails(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.answer = lambda path, _before: 503 if path == "/first" else 200
        line = Dispatching(suite)
        first, second = same(f"{receiver.url}/first"), same(f"{receiver.url}/second")
        await line.accept(first)
        await posted(receiver)
        await line.accept(second)
        assert (await line.reaches(first, "FAILED")).reason == "http_503"
        assert len((await line.reaches(second, "SENT")).attempts) == 1
        paths = [post.path for post in receiver.posts]
        assert paths == ["/first"] * 4 + ["/second"], "not before the last attempt of the first"


async def test_a_duplicate_of_what_is_being_handed_over_waits_until_it_is_known_to_have_left(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        first, second = same(f"{receiver.url}/first"), same(f"{receiver.url}/second")
        receiver.open.clear()
        await line.accept(first)
        await posted(receiver)
        await line.accept(second)
        assert not (await line.reaches(second, "PENDING", reason="duplicate_waits")).attempts
        receiver.open.set()
        assert (await line.reaches(second, *ENDED)).reason == "duplicate_content"
        assert [post.path for post in receiver.posts] == ["/first"]


async def test_who_was_cancelled_or_withheld_leaves_the_place_to_its_duplicate(suite: Suite) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(policies.read_text().replace("base_seconds: 0.1,", "base_seconds: 3,"))
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.answer = lambda path, _before: 503 if path == "/first" else 200
        line = Dispatching(suite)
        first, second = same(f"{receiver.url}/first"), same(f"{receiver.url}/second")
        await line.accept(first)
        await line.reaches(first, "SCHEDULED")
        await line.accept(second)
        await line.reaches(second, "PENDING", reason="duplicate_waits")
        assert await line.cancel(first) == (True, "SUPPRESSED")
        await line.reaches(second, "SENT")


async def test_after_the_window_the_same_text_goes_out_again(suite: Suite) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(
        policies.read_text().replace(
            "{category: alert, channels", "{category: alert, dedupe_window_seconds: 1, channels"
        )
    )
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        while len(receiver.posts) < 2:
            item = same(f"{receiver.url}/hook")
            await line.accept(item)
            assert (await line.reaches(item, *ENDED)).reason in {"", "duplicate_content"}


async def test_a_verification_code_is_never_a_duplicate(suite: Suite) -> None:
    suite.own["dispatcher"] = {"null_channels": ("email",)}
    async with running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        items = [
            intent(
                send_now(message_pb2.CHANNEL_EMAIL, "ada@example.com"),
                scene="verify_code",
                template="verify_code",
                variables_json='{"code": "123456"}',
            )
            for _ in range(5)
        ]
        await line.accept(*items)
        for item in items:
            await line.reaches(item, "SENT")


async def test_a_duplicate_gives_its_place_in_the_users_cap_back(suite: Suite) -> None:
    """The cap is 3: with one sent and five duplicates, two more leave, and only then it is full."""
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        ends = []
        for key, title in enumerate(["A", "A", "A", "A", "A", "A", "B", "C", "D"]):
            intent_id = (await agent.submit(alert_spec("u1", title=title, intent_key=str(key)))).intent_id
            ends.append((await agent.ended(intent_id)).state_reason)
        assert ends == ["", *["duplicate_content"] * 5, "", "", "user_daily_cap"]
        assert len(receiver.posts) == 3
