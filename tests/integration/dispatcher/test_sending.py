"""From an intent to the provider and back, over the three services on real gRPC."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from agent_reach.v1 import (
    message_pb2,
    profile_pb2,
    profile_pb2_grpc,
    reach_pb2,
    reach_pb2_grpc,
    suppression_pb2,
    suppression_pb2_grpc,
)
from tests.support.suite import Suite, bearer, eventually, running_suite
from tests.support.webhooks import receiving

_FINAL = {message_pb2.STATE_SENT, message_pb2.STATE_FAILED, message_pb2.STATE_SUPPRESSED, message_pb2.STATE_EXPIRED}


class Agent:
    """An agent of tenant acme."""

    def __init__(self, suite: Suite) -> None:
        self.metadata = bearer(suite.agent_key)
        self.reach: Any = reach_pb2_grpc.ReachServiceStub(suite.channel("intake"))
        policy = suite.channel("policy")
        self.profiles: Any = profile_pb2_grpc.ProfileServiceStub(policy)
        self.suppressions: Any = suppression_pb2_grpc.SuppressionServiceStub(policy)

    async def has_user(self, user_id: str, url: str) -> None:
        address = message_pb2.Address(channel=message_pb2.CHANNEL_WEBHOOK, value=url)
        profile = profile_pb2.Profile(user_id=user_id, addresses=[address], time_zone="UTC")
        await self.profiles.UpsertProfiles(
            profile_pb2.UpsertProfilesRequest(profiles=[profile]), metadata=self.metadata
        )

    async def alert(self, user_id: str, **fields: Any) -> str:
        spec = reach_pb2.IntentSpec(
            user_id=user_id,
            scene="alert",
            variables_json=json.dumps({"title": "Disk full", "detail": "db-1"}),
            **fields,
        )
        response = await self.reach.Submit(reach_pb2.SubmitRequest(intent=spec), metadata=self.metadata)
        intent_id: str = response.intent_id
        return intent_id

    async def ended(self, intent_id: str) -> reach_pb2.Intent:
        async def probe() -> reach_pb2.Intent | None:
            answer = await self.reach.GetIntent(
                reach_pb2.GetIntentRequest(intent_id=intent_id), metadata=self.metadata
            )
            return answer.intent if answer.intent.state in _FINAL else None

        intent: reach_pb2.Intent = await eventually(probe)
        return intent

    async def explained(self, intent_id: str) -> reach_pb2.ExplainIntentResponse:
        response: reach_pb2.ExplainIntentResponse = await self.reach.ExplainIntent(
            reach_pb2.ExplainIntentRequest(intent_id=intent_id), metadata=self.metadata
        )
        return response


async def test_an_alert_reaches_the_users_webhook_with_the_exact_text(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_user("u1", f"{receiver.url}/hook")
        intent_id = await agent.alert("u1")
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
        await agent.has_user("u1", f"{receiver.url}/flaky")
        intent_id = await agent.alert("u1")
        assert (await agent.ended(intent_id)).state == message_pb2.STATE_SENT
        (task,) = (await agent.explained(intent_id)).tasks
        assert [attempt.code for attempt in task.attempts] == ["http_503", "http_503", "http_200"]
        assert len({post.headers["idempotency-key"] for post in receiver.posts}) == 1


async def test_a_webhook_that_answers_403_fails_after_one_attempt(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        receiver.answer = lambda _path, _before: 403
        agent = Agent(suite)
        await agent.has_user("u1", f"{receiver.url}/closed")
        intent = await agent.ended(await agent.alert("u1"))
        assert (intent.state, intent.state_reason) == (message_pb2.STATE_FAILED, "http_403")
        assert len(receiver.posts) == 1


async def test_a_user_who_is_suppressed_gets_nothing_and_the_reason_is_told(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_user("u1", f"{receiver.url}/hook")
        suppression = suppression_pb2.Suppression(
            user_id="u1", source=suppression_pb2.SUPPRESSION_SOURCE_UNSUBSCRIBE
        )
        answer = await agent.suppressions.Suppress(
            suppression_pb2.SuppressRequest(suppressions=[suppression]), metadata=agent.metadata
        )
        assert answer.in_flight == 0
        intent = await agent.ended(await agent.alert("u1"))
        assert (intent.state, intent.state_reason) == (message_pb2.STATE_SUPPRESSED, "user_unsubscribed")
        assert not receiver.posts


async def test_another_tenant_sees_nothing(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_user("u1", f"{receiver.url}/hook")
        intent_id = await agent.alert("u1")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await agent.reach.GetIntent(
                reach_pb2.GetIntentRequest(intent_id=intent_id), metadata=bearer(suite.other_tenant_key)
            )
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
