"""What was judged, as the dispatcher streams it to a simulation."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import psycopg
import pytest

from agent_reach.v1 import dispatcher_pb2, message_pb2
from tests.conftest import Dsns
from tests.support.dispatching import Dispatching, defer, drop, intent, moment, send_now
from tests.support.suite import Suite, bearer, running_suite

EMAIL = message_pb2.CHANNEL_EMAIL
JUDGED: dict[str, Any] = {"policy_version": "v1"}


async def streamed(dispatching: Dispatching, **filters: Any) -> list[list[dispatcher_pb2.PastDecision]]:
    values = {"tenant": "acme", "since": moment(-3_600), "before": moment(3_600), **filters}
    call = dispatching.stub.StreamDecisions(
        dispatcher_pb2.StreamDecisionsRequest(**values), metadata=dispatching.metadata
    )
    return [list(response.decisions) async for response in call]


async def test_every_judgement_of_a_message_comes_as_it_was_judged(suite: Suite, migrated: Dsns) -> None:
    async with running_suite(suite, "policy", "dispatcher"):
        dispatching = Dispatching(suite)
        later = moment(7_200)
        scheduled = message_pb2.Decision(
            action=message_pb2.ACTION_DEFER, reason="scheduled", held_by=message_pb2.GATE_SCHEDULE, **JUDGED
        )
        scheduled.until.FromDatetime(later)
        item = intent(scheduled, scene="order_shipped", template="order_shipped", channels=[EMAIL], send_at=later)
        await dispatching.accept(item)
        quiet = defer(EMAIL, "a@example.com", later + timedelta(hours=8))
        quiet.policy_version, quiet.held_by = "v2", message_pb2.GATE_QUIET_HOURS
        last = send_now(EMAIL, "a@example.com", policy_version="v3")
        async with await psycopg.AsyncConnection.connect(migrated.engine) as connection:
            await connection.execute(
                "UPDATE dispatcher.tasks SET decisions = decisions || %s::bytea[], deferrals = 1, scheduled = true",
                ([quiet.SerializeToString(), last.SerializeToString()],),
            )
        (page,) = await streamed(dispatching)
        assert [past.decision.policy_version for past in page] == ["v1", "v2", "v3"]
        assert {past.item.intent_id for past in page} == {item.intent_id}
        assert {tuple(past.item.channels) for past in page} == {(EMAIL,)}
        assert [(past.item.scheduled, past.item.deferrals) for past in page] == [(False, 0), (True, 0), (True, 1)]
        assert [past.item.HasField("planned_at") for past in page] == [False, True, True]
        assert page[2].item.planned_at.ToDatetime(UTC) == later + timedelta(hours=8)
        assert page[0].item.send_at.ToDatetime(UTC) == later


async def test_a_long_history_comes_whole_and_in_order_page_by_page(suite: Suite) -> None:
    async with running_suite(suite, "policy", "dispatcher"):
        dispatching = Dispatching(suite)
        count = 1_203
        items = [intent(drop("user_unsubscribed"), user_id=f"u{number}") for number in range(count)]
        for item in items:
            item.decision.policy_version = "v1"
        for first in range(0, count, 400):
            await dispatching.accept(*items[first : first + 400])
        pages = await streamed(dispatching)
        assert [len(page) for page in pages] == [500, 500, 203]
        assert Counter(past.item.user_id for page in pages for past in page) == Counter(i.user_id for i in items)


async def test_only_what_is_asked_for_comes(suite: Suite) -> None:
    async with running_suite(suite, "policy", "dispatcher"):
        dispatching = Dispatching(suite)
        dropped = drop("user_unsubscribed")
        dropped.policy_version = "v1"
        own, other_scene, other_tenant = (
            intent(dropped, **fields) for fields in ({}, {"scene": "spring_sale"}, {"tenant": "globex"})
        )
        await dispatching.accept(own, other_scene, other_tenant)
        # Nobody judged a message that was cancelled before.
        await dispatching.cancel(intent(dropped, intent_id=str(uuid.uuid4())))

        async def found(**filters: Any) -> set[str]:
            return {past.item.intent_id for page in await streamed(dispatching, **filters) for past in page}

        assert await found() == {own.intent_id, other_scene.intent_id}
        assert await found(scene="spring_sale") == {other_scene.intent_id}
        assert await found(tenant="globex") == {other_tenant.intent_id}
        assert await found(since=datetime.now(UTC) + timedelta(minutes=1)) == set()
        assert await found(before=datetime.now(UTC) - timedelta(minutes=1)) == set()


async def test_only_services_may_read_it(suite: Suite) -> None:
    async with running_suite(suite, "policy", "dispatcher"):
        dispatching = Dispatching(suite)
        dispatching.metadata = bearer(suite.operator_key)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await streamed(dispatching)
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
