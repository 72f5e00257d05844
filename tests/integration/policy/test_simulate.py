"""Simulations over real gRPC that somebody gives up, of a history without end; only the dispatcher is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agent_reach.v1 import dispatcher_pb2, message_pb2, policy_admin_pb2, policy_admin_pb2_grpc, policy_pb2
from services.chassis.clock import ManualClock
from tests.support.suite import eventually

from .support import POLICIES, PlayedDispatcher, Served

OPERATOR = "acme-operator"


class Endless:
    """A history that never ends, and who reads it."""

    def __init__(self) -> None:
        self.readers = 0
        self.pages = 0

    async def stream(self) -> AsyncGenerator[dispatcher_pb2.StreamDecisionsResponse]:
        self.readers += 1
        try:
            while True:
                self.pages += 1
                yield dispatcher_pb2.StreamDecisionsResponse(decisions=[past(self.pages)])
                await asyncio.sleep(0)
        finally:
            self.readers -= 1


def past(number: int) -> dispatcher_pb2.PastDecision:
    """Returns a message that was dropped for its address, which it has by now: every policy decides otherwise."""
    decision = message_pb2.Decision(action=message_pb2.ACTION_DROP, reason="no_address", policy_version="v0")
    decision.decided_at.FromDatetime(datetime.now(UTC))
    item = policy_pb2.EvaluateItem(intent_id=f"i{number}", tenant="acme", user_id=f"u{number}", scene="code")
    item.address.channel, item.address.value = message_pb2.CHANNEL_EMAIL, "ann@example.com"
    return dispatcher_pb2.PastDecision(item=item, decision=decision)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    """To be asked for before `served`, whose dispatcher streams it."""
    history = Endless()

    async def stream(_self: Any, _request: Any, _context: Any) -> AsyncIterator[Any]:
        async with aclosing(history.stream()) as responses:
            async for response in responses:
                yield response

    monkeypatch.setattr(PlayedDispatcher, "StreamDecisions", stream)
    return history


def simulation(clock: ManualClock, policies: str = POLICIES, **fields: Any) -> policy_admin_pb2.SimulatePolicyRequest:
    request = policy_admin_pb2.SimulatePolicyRequest(policies_yaml=policies.encode())
    request.since.FromDatetime(fields.get("since", clock.now() - timedelta(hours=1)))
    request.before.FromDatetime(fields.get("before", clock.now()))
    return request


def simulate(served: Served, request: policy_admin_pb2.SimulatePolicyRequest) -> Any:
    stub = policy_admin_pb2_grpc.PolicyAdminServiceStub(served.channel)
    return stub.SimulatePolicy(request, metadata=served.metadata(OPERATOR))


async def test_one_that_is_given_up_stops_reading_and_makes_room_for_the_next(
    endless: Endless, served: Served, clock: ManualClock
) -> None:
    clock.set(datetime.now(UTC))
    first = simulate(served, simulation(clock))
    response = await first.read()
    assert response.changes[0].actual.reason == "no_address"
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await simulate(served, simulation(clock)).read()
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    first.cancel()

    async def nobody_reads() -> bool:
        return not endless.readers

    await eventually(nobody_reads)

    async def there_is_room() -> bool:
        second = simulate(served, simulation(clock))
        try:
            return bool((await second.read()).changes)
        except grpc.aio.AioRpcError:
            return False
        finally:
            second.cancel()

    await eventually(there_is_room)
    await eventually(nobody_reads)


@pytest.mark.parametrize(
    ("since", "policies", "told"),
    [
        (timedelta(days=40), POLICIES, {"since": "lies more than 31 days back"}),
        (timedelta(hours=-1), POLICIES, {"since": "does not lie before the end"}),
        (timedelta(hours=1), "", {"policies_yaml": "has 0 bytes; 1 to 1 MiB are allowed"}),
        (timedelta(hours=1), "version: [", {"policies_yaml": "line "}),
        (
            timedelta(hours=1),
            "version: 1\npolicies: {}\nchannels: {email: {}}\n",
            {"policies_yaml": "line 2: policies: "},
        ),
    ],
)
async def test_a_wrong_simulation_is_told_field_by_field(
    served: Served, clock: ManualClock, since: timedelta, policies: str, told: dict[str, str]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await simulate(served, simulation(clock, policies, since=clock.now() - since)).read()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    bad_request = error_details_pb2.BadRequest()
    for detail in rpc_status.from_call(refusal.value).details:
        detail.Unpack(bad_request)
    (violation,) = bad_request.field_violations
    ((field, description),) = told.items()
    assert violation.field == field
    assert violation.description.startswith(description)


async def test_a_file_names_no_other_file_of_the_server(endless: Endless, served: Served, clock: ManualClock) -> None:
    clock.set(datetime.now(UTC))
    call = simulate(served, simulation(clock, f"{POLICIES}\nshadow: {{file: nowhere.yaml}}\n"))
    assert (await call.read()).replayed == 1
    call.cancel()

    async def nobody_reads() -> bool:
        return not endless.readers

    await eventually(nobody_reads)


async def test_without_a_history_it_says_that_it_cannot_be_read(served: Served, clock: ManualClock) -> None:
    await served.dispatcher_server.stop(0)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await simulate(served, simulation(clock)).read()
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the history cannot be read" in (refusal.value.details() or "")
