"""The whole service over real gRPC: who may call what, what is refused, and what is answered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agent_reach.v1 import (
    dispatcher_pb2,
    message_pb2,
    policy_pb2,
    policy_pb2_grpc,
    profile_pb2,
    profile_pb2_grpc,
    suppression_pb2,
    suppression_pb2_grpc,
)
from services.chassis.clock import ManualClock

from .support import SERVICE_KEY, Served

EMAIL = message_pb2.CHANNEL_EMAIL
AGENT, OPERATOR, STRANGER = "acme-agent", "acme-operator", "globex-operator"


def address(value: str, channel: message_pb2.Channel.ValueType = EMAIL) -> message_pb2.Address:
    return message_pb2.Address(channel=channel, value=value)


def profile(user_id: str = "ann", **changes: Any) -> profile_pb2.Profile:
    return profile_pb2.Profile(
        user_id=user_id, **{"addresses": [address("Ann@Example.com")], "locale": "de-CH", **changes}
    )


def evaluation(intent_id: str = "i1", **changes: Any) -> policy_pb2.EvaluateItem:
    values = {"tenant": "acme", "user_id": "ann", "scene": "order_shipped", **changes}
    return policy_pb2.EvaluateItem(intent_id=intent_id, **values)


async def upsert(
    served: Served, *profiles: profile_pb2.Profile, key: str = AGENT
) -> profile_pb2.UpsertProfilesResponse:
    stub = profile_pb2_grpc.ProfileServiceStub(served.channel)
    request = profile_pb2.UpsertProfilesRequest(profiles=profiles)
    return await stub.UpsertProfiles(request, metadata=served.metadata(key))


async def suppress(
    served: Served, *wishes: suppression_pb2.Suppression, key: str = AGENT, tenant: str = ""
) -> suppression_pb2.SuppressResponse:
    stub = suppression_pb2_grpc.SuppressionServiceStub(served.channel)
    request = suppression_pb2.SuppressRequest(tenant=tenant, suppressions=wishes)
    return await stub.Suppress(request, metadata=served.metadata(key), timeout=10)


def unsubscribe(user_id: str = "ann", **changes: Any) -> suppression_pb2.Suppression:
    source = suppression_pb2.SUPPRESSION_SOURCE_UNSUBSCRIBE
    return suppression_pb2.Suppression(user_id=user_id, source=source, **changes)


async def evaluate(served: Served, *items: policy_pb2.EvaluateItem) -> policy_pb2.EvaluateResponse:
    (response,) = await evaluate_batches(served, [policy_pb2.EvaluateRequest(sequence=7, items=items)])
    return response


async def evaluate_batches(
    served: Served, requests: Sequence[policy_pb2.EvaluateRequest]
) -> list[policy_pb2.EvaluateResponse]:
    stub = policy_pb2_grpc.PolicyServiceStub(served.channel)
    call = stub.Evaluate(iter(requests), metadata=served.metadata(SERVICE_KEY))
    return [response async for response in call]


def violations(error: grpc.aio.AioRpcError) -> dict[str, str]:
    status = rpc_status.from_call(error)
    bad_request = error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(bad_request)
    return {violation.field: violation.description for violation in bad_request.field_violations}


async def test_a_profile_comes_back_in_normal_form_and_to_its_tenant_only(served: Served) -> None:
    stored = await upsert(served, profile(time_zone="Asia/Tokyo"))
    assert stored.profiles[0].addresses[0].value == "ann@example.com"
    stub = profile_pb2_grpc.ProfileServiceStub(served.channel)
    request = profile_pb2.GetProfilesRequest(user_ids=["ann", "bob"])
    own = await stub.GetProfiles(request, metadata=served.metadata(OPERATOR))
    assert own.profiles == stored.profiles
    assert not (await stub.GetProfiles(request, metadata=served.metadata(STRANGER))).profiles


async def test_every_wrong_field_of_every_profile_is_named_and_nothing_is_stored(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await upsert(
            served,
            profile("fine"),
            profile("a\x00b"),
            profile(time_zone="Asia/Nowhere"),
            profile("fine"),
            profile("x" * 300),
            profile("addressed", addresses=[address("a@example.com"), address("b@example.com"), address("no")]),
            profile("tongue", locale="deutsch und deutlich"),
            profile("at home", time_zone="localtime"),
        )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert set(violations(caught.value)) == {
        "profiles[1].user_id",
        "profiles[2].time_zone",
        "profiles[3].user_id",
        "profiles[4].user_id",
        "profiles[5].addresses[1].channel",
        "profiles[5].addresses[2].value",
        "profiles[6].locale",
        "profiles[7].time_zone",
    }
    stub = profile_pb2_grpc.ProfileServiceStub(served.channel)
    request = profile_pb2.GetProfilesRequest(user_ids=["fine"])
    assert not (await stub.GetProfiles(request, metadata=served.metadata(AGENT))).profiles


async def test_batches_have_a_size(served: Served) -> None:
    for profiles in ([], [profile(f"u{number}") for number in range(1_001)]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await upsert(served, *profiles)
        assert "profiles" in violations(caught.value)


async def test_activity_in_the_future_or_in_no_zone_is_refused(served: Served, clock: ManualClock) -> None:
    stub = profile_pb2_grpc.ProfileServiceStub(served.channel)
    future = Timestamp()
    future.FromDatetime(clock.now() + timedelta(hours=1))
    activities = [
        profile_pb2.Activity(user_id="ann", time_zone="Asia/Tokyo", seen_at=future),
        profile_pb2.Activity(user_id="ann"),
    ]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ReportActivity(
            profile_pb2.ReportActivityRequest(activities=activities), metadata=served.metadata(AGENT)
        )
    assert set(violations(caught.value)) == {"activities[0].seen_at", "activities[1].time_zone"}
    seen = profile_pb2.ReportActivityRequest(activities=[profile_pb2.Activity(user_id="ann", time_zone="Asia/Tokyo")])
    await stub.ReportActivity(seen, metadata=served.metadata(AGENT))


async def test_a_decision_arrives_with_its_whole_trace(served: Served) -> None:
    await upsert(served, profile())
    response = await evaluate(served, evaluation(), evaluation("i2", user_id="nobody"))
    assert response.sequence == 7
    sent, dropped = response.decisions
    assert sent.action == message_pb2.ACTION_SEND_NOW
    assert (sent.channel, sent.address, sent.locale) == (EMAIL, "ann@example.com", "de-CH")
    assert [entry.gate for entry in sent.trace] == [1, 2, 3, 4, 5]
    assert len(sent.policy_version) == 64
    assert (dropped.action, dropped.reason) == (message_pb2.ACTION_DROP, "no_address")


async def test_a_bad_batch_is_answered_with_its_faults_and_the_stream_goes_on(served: Served) -> None:
    await upsert(served, profile())
    responses = await evaluate_batches(
        served,
        [
            policy_pb2.EvaluateRequest(sequence=1, items=[evaluation("a b")]),
            policy_pb2.EvaluateRequest(sequence=2, items=[evaluation("i1")]),
            policy_pb2.EvaluateRequest(sequence=3),
        ],
    )
    assert [(response.sequence, response.error.code) for response in responses] == [(1, 3), (2, 0), (3, 3)]
    assert "items[0].intent_id" in responses[0].error.message


async def test_agents_may_not_ask_the_policy_itself(served: Served) -> None:
    stub = policy_pb2_grpc.PolicyServiceStub(served.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.Evaluate(iter([policy_pb2.EvaluateRequest()]), metadata=served.metadata(AGENT)):
            pass
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_user_who_unsubscribed_a_moment_ago_gets_nothing(served: Served) -> None:
    await upsert(served, profile())
    served.dispatcher.in_flight = 2
    answer = await suppress(served, unsubscribe(note="by link"))
    assert answer.in_flight == 2
    assert answer.suppressions[0].created_by == AGENT
    assert served.dispatcher.awaited == [dispatcher_pb2.AwaitSendingRequest(tenant="acme", user_ids=["ann"])]
    decision = (await evaluate(served, evaluation())).decisions[0]
    assert decision.reason == "user_unsubscribed"


async def test_the_last_look_finds_suppressions_by_user_and_by_address(served: Served) -> None:
    bounce = suppression_pb2.Suppression(
        address=address("Ann@EXAMPLE.com"), source=suppression_pb2.SUPPRESSION_SOURCE_BOUNCE
    )
    await suppress(served, bounce, unsubscribe("bob", channel=EMAIL), tenant="acme", key=SERVICE_KEY)

    def departure(user_id: str, value: str, **changes: Any) -> policy_pb2.CheckSuppressedItem:
        values = {"tenant": "acme", "category": message_pb2.CATEGORY_NOTIFICATION, **changes}
        return policy_pb2.CheckSuppressedItem(user_id=user_id, address=address(value), **values)

    request = policy_pb2.CheckSuppressedRequest(
        items=[
            departure("ann", "ann@example.com"),
            departure("bob", "bob@example.com"),
            departure("bob", "bob@example.com", category=message_pb2.CATEGORY_VERIFICATION),
            departure("ann", "ann@example.com", tenant="globex"),
            departure("carol", "carol@example.com"),
        ]
    )
    stub = policy_pb2_grpc.PolicyServiceStub(served.channel)
    call = stub.CheckSuppressed(iter([request]), metadata=served.metadata(SERVICE_KEY))
    (response,) = [response async for response in call]
    assert list(response.reasons) == ["address_bounced", "user_unsubscribed", "", "", ""]


async def test_an_agent_suppresses_for_its_own_tenant_whatever_it_writes(served: Served) -> None:
    await upsert(served, profile(), key=STRANGER)
    await suppress(served, unsubscribe(), tenant="globex")
    decision = (await evaluate(served, evaluation(tenant="globex"))).decisions[0]
    assert decision.action == message_pb2.ACTION_SEND_NOW


async def test_what_cannot_be_waited_for_is_stored_and_said(served: Served) -> None:
    await served.dispatcher_server.stop(0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await suppress(served, unsubscribe())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "are stored" in (caught.value.details() or "")
    listed = await suppression_pb2_grpc.SuppressionServiceStub(served.channel).ListSuppressions(
        suppression_pb2.ListSuppressionsRequest(), metadata=served.metadata(AGENT)
    )
    assert [entry.user_id for entry in listed.suppressions] == ["ann"]


async def test_wrong_suppressions_are_named_field_by_field(served: Served) -> None:
    both = unsubscribe(address=address("a@example.com"))
    neither = suppression_pb2.Suppression(source=suppression_pb2.SUPPRESSION_SOURCE_IMPORT)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await suppress(
            served,
            both,
            neither,
            suppression_pb2.Suppression(user_id="ann"),
            unsubscribe(note="n" * 600),
            unsubscribe("", address=address("ann@example.com"), channel=message_pb2.CHANNEL_SMS),
            unsubscribe("", address=address("ann@example.com"), channel=message_pb2.CHANNEL_EMAIL),
        )
    assert set(violations(caught.value)) == {
        "suppressions[0].user_id",
        "suppressions[1].user_id",
        "suppressions[2].source",
        "suppressions[3].note",
        "suppressions[4].channel",
    }


async def test_an_operator_lists_and_lifts_and_the_user_is_reached_again(served: Served) -> None:
    await upsert(served, profile())
    await suppress(served, *(unsubscribe(user) for user in ("ann", "bob", "carol")))
    stub = suppression_pb2_grpc.SuppressionServiceStub(served.channel)
    metadata = served.metadata(OPERATOR)
    first = await stub.ListSuppressions(suppression_pb2.ListSuppressionsRequest(page_size=2), metadata=metadata)
    rest = await stub.ListSuppressions(
        suppression_pb2.ListSuppressionsRequest(page_size=2, page_token=first.next_page_token), metadata=metadata
    )
    entries = [*first.suppressions, *rest.suppressions]
    assert {entry.user_id for entry in entries} == {"ann", "bob", "carol"}
    assert not rest.next_page_token
    request = suppression_pb2.LiftSuppressionsRequest(suppression_ids=[entry.suppression_id for entry in entries])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.LiftSuppressions(request, metadata=served.metadata(AGENT))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert (await stub.LiftSuppressions(request, metadata=served.metadata(STRANGER))).lifted == 0
    assert (await stub.LiftSuppressions(request, metadata=metadata)).lifted == 3
    assert (await evaluate(served, evaluation())).decisions[0].action == message_pb2.ACTION_SEND_NOW


async def test_reservations_are_settled_and_sends_remembered_by_the_dispatcher_count(
    served: Served, clock: ManualClock
) -> None:
    await upsert(served, profile())
    sent_at = Timestamp()
    sent_at.FromDatetime(datetime.now(UTC))
    served.dispatcher.sends = [
        dispatcher_pb2.RecentSend(
            user=dispatcher_pb2.UserRef(tenant="acme", user_id="ann"),
            intent_id=f"earlier-{number}",
            channel=EMAIL,
            cap_date=clock.now().date().isoformat(),
            sent_at=sent_at,
        )
        for number in range(2)
    ]
    response = await evaluate(served, evaluation("i1"), evaluation("i2"))
    assert [decision.reason for decision in response.decisions] == ["", "user_daily_cap"]
    settle = policy_pb2.SettleRequest(
        sequence=3,
        items=[
            policy_pb2.SettleItem(
                intent_id="i1",
                tenant="acme",
                user_id="ann",
                channel=EMAIL,
                cap_date=response.decisions[0].cap_date,
                reservation=policy_pb2.RESERVATION_RELEASED,
            )
        ],
    )
    stub = policy_pb2_grpc.PolicyServiceStub(served.channel)
    call = stub.Settle(iter([settle, settle]), metadata=served.metadata(SERVICE_KEY))
    answers = [answer async for answer in call]
    assert [(answer.sequence, answer.error.code) for answer in answers] == [(3, 0), (3, 0)]
    assert (await evaluate(served, evaluation("i2"))).decisions[0].action == message_pb2.ACTION_SEND_NOW
