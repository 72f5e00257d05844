"""From an intent to the provider and back, over the three services on real gRPC."""

from __future__ import annotations

import json

import grpc
import pytest

from agent_reach.v1 import message_pb2, reach_pb2
from tests.support.agent import Agent, alert_spec
from tests.support.suite import Suite, bearer, running_suite
from tests.support.webhooks import receiving


async def test_an_alert_reaches_the_users_webhook_with_the_exact_text(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        intent_id = (await agent.submit(alert_spec("u1"))).intent_id
        assert (await agent.ended(intent_id)).state == message_pb2.STATE_SENT
        (post,) = receiver.posts
        assert json.loads(post.body)["title"] == "Disk full"
        story = await agent.explained(intent_id)
        (task,) = story.tasks
        assert task.body.encode() == post.body
        assert post.headers["idempotency-key"] == task.idempotency_key
        assert [attempt.code for attempt in task.attempts] == ["http_200"]
        gates = [gate.gate for gate in task.decisions[0].trace]
        assert gates == sorted(gates), "the gates stand in the documented order"
        assert len(gates) >= 4
        kinds = [entry.kind for entry in story.timeline]
        assert kinds[0] == "submitted"
        assert {"decision", "attempt", "state"} <= set(kinds)


async def test_a_webhook_that_answers_503_twice_is_sent_on_the_third_attempt(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        receiver.answer = lambda _path, before: 503 if before < 2 else 200
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/flaky")
        intent_id = (await agent.submit(alert_spec("u1"))).intent_id
        assert (await agent.ended(intent_id)).state == message_pb2.STATE_SENT
        (task,) = (await agent.explained(intent_id)).tasks
        assert [attempt.code for attempt in task.attempts] == ["http_503", "http_503", "http_200"]
        assert len({post.headers["idempotency-key"] for post in receiver.posts}) == 1


async def test_a_webhook_that_answers_403_fails_after_one_attempt(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        receiver.answer = lambda _path, _before: 403
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/closed")
        intent = await agent.ended((await agent.submit(alert_spec("u1"))).intent_id)
        assert (intent.state, intent.state_reason) == (message_pb2.STATE_FAILED, "http_403")
        assert len(receiver.posts) == 1


async def test_a_user_who_is_suppressed_gets_nothing_and_the_reason_is_told(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        assert (await agent.suppresses("u1")).in_flight == 0
        intent = await agent.ended((await agent.submit(alert_spec("u1"))).intent_id)
        assert (intent.state, intent.state_reason) == (message_pb2.STATE_SUPPRESSED, "user_unsubscribed")
        assert not receiver.posts


async def test_another_tenant_sees_nothing(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        intent_id = (await agent.submit(alert_spec("u1"))).intent_id
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await agent.reach.GetIntent(
                reach_pb2.GetIntentRequest(intent_id=intent_id), metadata=bearer(suite.other_tenant_key)
            )
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
