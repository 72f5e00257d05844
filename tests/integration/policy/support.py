"""What the tests of the policy share: a configuration, a played dispatcher, builders."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import grpc

from agent_reach.v1 import dispatcher_pb2, dispatcher_pb2_grpc
from services.policy.counters import Counters, RecentSend
from services.policy.decision import Item, UserKey
from services.policy.quotas import Spender

POLICIES = """\
version: 1
policies:
  default:
    quiet_hours: ["22:30", "08:00"]
    user_daily_cap: 3
    user_channel_daily_cap: {sms: 2}
channels:
  email: {daily_quota: 1000}
  sms: {daily_quota: 5, fallback: email}
scenes:
  code: {category: verification, channels: [email]}
  text: {channels: [sms]}
  sale: {category: marketing, channels: [email]}
  newsletter: {category: marketing, opt_in: true}
"""


class Memory:
    """What the dispatcher would remember of sends, and the operators of what they cleared: ports of ours, played."""

    def __init__(self) -> None:
        self.sends: list[RecentSend] = []
        self.cleared: dict[UserKey, datetime] = {}
        # It tells of tasks by their last change, which may be long after they were made.
        self.forgets = True
        self.questions: list[list[UserKey]] = []
        # What left on channels and for tenants, and what was asked of it.
        self.spent: dict[Spender, int] = {}
        self.counted: list[tuple[list[Spender], datetime]] = []

    async def recent_sends(self, users: Sequence[UserKey], since: datetime) -> list[RecentSend]:
        self.questions.append(list(users))
        return [send for send in self.sends if send.user in users and (send.sent_at >= since or not self.forgets)]

    async def count_sends(self, spenders: Sequence[Spender], since: datetime) -> dict[Spender, int]:
        self.counted.append((list(spenders), since))
        return {spender: count for spender, count in self.spent.items() if spender in spenders}

    async def cleared_since(self, users: Sequence[UserKey]) -> dict[UserKey, datetime]:
        return {user: moment for user, moment in self.cleared.items() if user in users}


def item(user_id: str = "ann", intent_id: str | None = None, **changes: Any) -> Item:
    values: dict[str, Any] = {"hop": 0, "tenant": "acme", "scene": "order_shipped", **changes}
    return Item(intent_id=intent_id or str(uuid.uuid4()), user_id=user_id, **values)


async def spend(counters: Counters, places: Mapping[Spender, int]) -> None:
    """Has so many other messages of today take places in quotas."""
    await counters.quotas.take(
        {spender: ([f"{uuid.uuid4()}:0" for _ in range(n)], n) for spender, n in places.items()}
    )


@dataclass
class PlayedDispatcher(dispatcher_pb2_grpc.DispatcherServiceServicer):
    """A dispatcher that answers what a test wants, over real gRPC."""

    in_flight: int = 0
    sends: list[dispatcher_pb2.RecentSend] = field(default_factory=list)
    awaited: list[dispatcher_pb2.AwaitSendingRequest] = field(default_factory=list)

    async def ListRecentSends(  # noqa: N802 - the contract's name
        self, _request: dispatcher_pb2.ListRecentSendsRequest, _context: Any
    ) -> dispatcher_pb2.ListRecentSendsResponse:
        return dispatcher_pb2.ListRecentSendsResponse(sends=self.sends)

    async def CountSends(  # noqa: N802 - the contract's name
        self, _request: dispatcher_pb2.CountSendsRequest, _context: Any
    ) -> dispatcher_pb2.CountSendsResponse:
        return dispatcher_pb2.CountSendsResponse()

    async def AwaitSending(  # noqa: N802 - the contract's name
        self, request: dispatcher_pb2.AwaitSendingRequest, _context: Any
    ) -> dispatcher_pb2.AwaitSendingResponse:
        self.awaited.append(request)
        return dispatcher_pb2.AwaitSendingResponse(in_flight=self.in_flight)


@dataclass
class Served:
    """A running policy service: where it is, a channel to it, and the dispatcher it knows."""

    target: str
    channel: grpc.aio.Channel
    dispatcher: PlayedDispatcher
    dispatcher_server: grpc.aio.Server

    def metadata(self, key: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {key}"),)


KEYS = {
    "acme-agent": ("acme", "agent"),
    "acme-operator": ("acme", "operator"),
    "globex-operator": ("globex", "operator"),
}
SERVICE_KEY = "the-services-own-key"
