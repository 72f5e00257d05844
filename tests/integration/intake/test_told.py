"""What an intent says of itself: why it ended, also after a fallback or a cancellation, and how long it lives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from agent_reach.v1 import message_pb2, profile_pb2, reach_pb2
from services.chassis.clock import ManualClock
from services.chassis.moments import moment
from tests.support.agent import Agent
from tests.support.suite import Suite, eventually, running_suite

NOON = datetime(2030, 5, 6, 12, tzinfo=UTC)


def spec(scene: str, **fields: object) -> reach_pb2.IntentSpec:
    variables = {"order_shipped": '{"order_id": "A-1"}', "comments": '{"author": "Bob", "text": "Hello"}'}[scene]
    return reach_pb2.IntentSpec(scene=scene, user_id="u1", variables_json=variables, **fields)  # type: ignore[arg-type]  # each test names real fields


async def test_where_a_fallback_helps_nobody_the_list_tells_first_why_it_was_needed(suite: Suite) -> None:
    suite.clock = ManualClock(NOON)
    async with running_suite(suite):
        agent = Agent(suite)
        # No provider for text messages is configured here, and the user has no e-mail address to fall back to.
        await agent.has_addresses("u1", {message_pb2.CHANNEL_SMS: "+41446681800"})
        intent_id = (await agent.submit(spec("order_shipped"))).intent_id

        async def withheld() -> reach_pb2.Intent | None:
            request = reach_pb2.ListIntentsRequest(user_id="u1")
            listed = await agent.reach.ListIntents(request, metadata=agent.metadata)
            (intent,) = listed.intents
            return intent if intent.state == message_pb2.STATE_SUPPRESSED else None

        intent = await eventually(withheld)
        assert intent.intent_id == intent_id
        assert intent.state_reason == "no_provider; fallback: no_address"


async def test_who_is_not_in_a_scenes_share_gets_nothing_and_the_agent_learns_it(suite: Suite) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    text = policies.read_text()
    assert "order_shipped: {category: notification," in text
    policies.write_text(text.replace("order_shipped: {category", "order_shipped: {share: 0, category"))
    suite.clock = ManualClock(NOON)
    async with running_suite(suite):
        agent = Agent(suite)
        await agent.has_addresses("u1", {message_pb2.CHANNEL_EMAIL: "ada@example.com"})
        intent_id = (await agent.submit(spec("order_shipped"))).intent_id
        stream = agent.reach.WatchOutcomes(reach_pb2.WatchOutcomesRequest(), metadata=agent.metadata)
        outcome = await anext(outcome async for response in stream for outcome in response.outcomes)
        stream.cancel()
        told = (outcome.intent_id, outcome.state, outcome.reason)
        assert told == (intent_id, message_pb2.STATE_SUPPRESSED, "not_released")
        assert (await agent.ended(intent_id)).state_reason == "not_released"
        (task,) = (await agent.explained(intent_id)).tasks
        assert [(entry.gate, entry.reason) for entry in task.decisions[0].trace] == [
            (message_pb2.GATE_RELEASE, "not_released")
        ]


async def test_a_cancellation_says_at_once_that_it_is_one_whatever_the_message_waited_for(suite: Suite) -> None:
    suite.clock = ManualClock(NOON)
    async with running_suite(suite):
        agent = Agent(suite)
        await agent.has_addresses("u1", {message_pb2.CHANNEL_EMAIL: "ada@example.com"})
        intent_id = (await agent.submit(spec("comments"))).intent_id

        async def gathered() -> bool:
            return (await agent.intent(intent_id)).state_reason == "gathered"

        await eventually(gathered)
        request = reach_pb2.CancelIntentRequest(intent_id=intent_id)
        for _ in range(2):
            answer = await agent.reach.CancelIntent(request, metadata=agent.metadata)
            told = (answer.intent.state, answer.intent.state_reason)
            assert told == (message_pb2.STATE_SUPPRESSED, "cancelled")


async def test_what_names_no_expiry_lives_for_its_scenes_time_from_its_moment_on_to_the_second(suite: Suite) -> None:
    suite.clock = ManualClock(NOON)
    async with running_suite(suite):
        agent = Agent(suite)
        profile = profile_pb2.Profile(user_id="u1", time_zone="Asia/Tokyo")
        profile.addresses.add(channel=message_pb2.CHANNEL_EMAIL, value="ada@example.com")
        await agent.profiles.UpsertProfiles(
            profile_pb2.UpsertProfilesRequest(profiles=[profile]), metadata=agent.metadata
        )
        local = message_pb2.LocalTime(time="08:00", date="2030-06-01")
        intent_id = (await agent.submit(spec("order_shipped", send_at_local=local))).intent_id

        async def scheduled() -> reach_pb2.ExplainIntentResponse | None:
            explained = await agent.explained(intent_id)
            return explained if explained.tasks else None

        explained = await eventually(scheduled)
        due_at = datetime(2030, 5, 31, 23, tzinfo=UTC)
        assert moment(explained.tasks[0].due_at) == due_at
        assert moment(explained.tasks[0].expires_at) == due_at + timedelta(days=1)
        assert not explained.intent.spec.HasField("expires_at"), "it was not asked for, and depends on the zone"
