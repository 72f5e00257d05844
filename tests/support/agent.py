"""An agent of tenant acme, speaking plain gRPC to a suite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_reach.v1 import (
    message_pb2,
    profile_pb2,
    profile_pb2_grpc,
    reach_pb2,
    reach_pb2_grpc,
    suppression_pb2,
    suppression_pb2_grpc,
)
from tests.support.suite import Suite, bearer, eventually

FINAL = frozenset(
    {message_pb2.STATE_SENT, message_pb2.STATE_FAILED, message_pb2.STATE_SUPPRESSED, message_pb2.STATE_EXPIRED}
)


def alert_spec(user_id: str, title: str = "Disk full", **fields: Any) -> reach_pb2.IntentSpec:
    """Returns an alert, which leaves at any hour and over the webhook first."""
    variables = json.dumps({"title": title, "detail": "db-1"})
    return reach_pb2.IntentSpec(user_id=user_id, scene="alert", variables_json=variables, **fields)


class Agent:
    """Calls what an agent calls."""

    def __init__(self, suite: Suite) -> None:
        self.metadata = bearer(suite.agent_key)
        self.reach: Any = reach_pb2_grpc.ReachServiceStub(suite.channel("intake"))
        policy = suite.channel("policy")
        self.profiles: Any = profile_pb2_grpc.ProfileServiceStub(policy)
        self.suppressions: Any = suppression_pb2_grpc.SuppressionServiceStub(policy)

    async def has_users(self, user_ids: Sequence[str], url: str) -> None:
        """Gives users a webhook."""
        address = message_pb2.Address(channel=message_pb2.CHANNEL_WEBHOOK, value=url)
        profiles = [profile_pb2.Profile(user_id=user, addresses=[address], time_zone="UTC") for user in user_ids]
        await self.profiles.UpsertProfiles(
            profile_pb2.UpsertProfilesRequest(profiles=profiles), metadata=self.metadata
        )

    async def has_addresses(self, user_id: str, addresses: Mapping[message_pb2.Channel.ValueType, str]) -> None:
        """Gives a user an address on each of some channels."""
        profile = profile_pb2.Profile(
            user_id=user_id,
            addresses=[message_pb2.Address(channel=channel, value=value) for channel, value in addresses.items()],
            time_zone="UTC",
        )
        await self.profiles.UpsertProfiles(
            profile_pb2.UpsertProfilesRequest(profiles=[profile]), metadata=self.metadata
        )

    async def submit(self, spec: reach_pb2.IntentSpec) -> reach_pb2.SubmitResponse:
        """Submits one intent."""
        response: reach_pb2.SubmitResponse = await self.reach.Submit(
            reach_pb2.SubmitRequest(intent=spec), metadata=self.metadata
        )
        return response

    async def submit_batches(
        self, batches: Sequence[Sequence[reach_pb2.IntentSpec]]
    ) -> list[reach_pb2.SubmitStreamResponse]:
        """Submits batches over one stream, each after the answer to the one before."""
        call = self.reach.SubmitStream(metadata=self.metadata)
        answers = []
        for number, batch in enumerate(batches, 1):
            await call.write(reach_pb2.SubmitStreamRequest(sequence=number, intents=batch))
            answers.append(await call.read())
        await call.done_writing()
        return answers

    async def suppresses(self, user_id: str) -> suppression_pb2.SuppressResponse:
        """Notes that a user unsubscribed."""
        suppression = suppression_pb2.Suppression(
            user_id=user_id, source=suppression_pb2.SUPPRESSION_SOURCE_UNSUBSCRIBE
        )
        response: suppression_pb2.SuppressResponse = await self.suppressions.Suppress(
            suppression_pb2.SuppressRequest(suppressions=[suppression]), metadata=self.metadata
        )
        return response

    async def intent(self, intent_id: str) -> reach_pb2.Intent:
        """Returns an intent."""
        answer = await self.reach.GetIntent(reach_pb2.GetIntentRequest(intent_id=intent_id), metadata=self.metadata)
        intent: reach_pb2.Intent = answer.intent
        return intent

    async def ended(self, intent_id: str) -> reach_pb2.Intent:
        """Waits until an intent has been sent, or has ended otherwise."""

        async def probe() -> reach_pb2.Intent | None:
            intent = await self.intent(intent_id)
            return intent if intent.state in FINAL else None

        intent: reach_pb2.Intent = await eventually(probe)
        return intent

    async def explained(self, intent_id: str) -> reach_pb2.ExplainIntentResponse:
        """Returns the whole story of an intent."""
        response: reach_pb2.ExplainIntentResponse = await self.reach.ExplainIntent(
            reach_pb2.ExplainIntentRequest(intent_id=intent_id), metadata=self.metadata
        )
        return response
