"""What the policy asks of the dispatcher: what was sent, and what is leaving in this moment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import grpc

from agent_reach.v1 import dispatcher_pb2, dispatcher_pb2_grpc
from services.catalog.rules import Category, Channel
from services.catalog.wire import category_from_wire, channel_from_wire, channel_to_wire
from services.chassis.errors import UnavailableError
from services.chassis.moments import moment, timestamp

from .counters import RecentSend
from .decision import Address, UserKey
from .quotas import Spender, Tenant
from .translate import address_to_wire

_SERVICE = "dispatcher"
_MAX_USERS = 500
_RECENT_SENDS_SECONDS = 5.0
# It may be all of a day.
_COUNT_SENDS_SECONDS = 8.0


class Dispatcher:
    """The dispatcher, asked over gRPC. Is a `counters.RecentSends` and a `silence.Departures`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = dispatcher_pb2_grpc.DispatcherServiceStub(channel)

    async def recent_sends(self, users: Sequence[UserKey], since: datetime) -> list[RecentSend]:
        """Returns the messages that left for these users since a moment; 500 users per question.

        Raises:
            UnavailableError: the dispatcher cannot be asked at the moment.
        """
        sends: list[RecentSend] = []
        for first in range(0, len(users), _MAX_USERS):
            request = dispatcher_pb2.ListRecentSendsRequest(since=timestamp(since))
            for user in users[first : first + _MAX_USERS]:
                request.users.add(tenant=user.tenant, user_id=user.user_id)
            try:
                response = await self._stub.ListRecentSends(request, timeout=_RECENT_SENDS_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise _unavailable("the users' sends cannot be counted anew", error) from error
            for send in response.sends:
                channel = channel_from_wire(send.channel)
                if channel is None or not send.cap_date:  # counts on no cap
                    continue
                user = UserKey(send.user.tenant, send.user.user_id)
                message = f"{send.intent_id}:{send.hop}"
                sent_at = moment(send.sent_at)
                category = category_from_wire(send.category) or Category.NOTIFICATION
                sends.append(
                    RecentSend(user, message, channel, send.cap_date, sent_at, category, uncertain=send.uncertain)
                )
        return sends

    async def count_sends(self, spenders: Sequence[Spender], since: datetime) -> dict[Spender, int]:
        """Returns how many messages left on channels and for tenants since a moment; see `quotas.SendCounts`."""
        request = dispatcher_pb2.CountSendsRequest(
            tenants=[spender.name for spender in spenders if isinstance(spender, Tenant)],
            channels=[channel_to_wire(spender) for spender in spenders if isinstance(spender, Channel)],
            since=timestamp(since),
        )
        try:
            response = await self._stub.CountSends(request, timeout=_COUNT_SENDS_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise _unavailable("what was spent today cannot be counted anew", error) from error
        counts: dict[Spender, int] = {Tenant(each.tenant): each.count for each in response.tenants}
        for each in response.channels:
            channel = channel_from_wire(each.channel)
            if channel is not None:
                counts[channel] = each.count
        return counts

    async def await_sending(
        self, tenant: str, user_ids: Sequence[str], addresses: Sequence[Address], wait_seconds: float
    ) -> int:
        """Waits, bounded, until nothing to these recipients is being handed over; see `silence.Departures`."""
        request = dispatcher_pb2.AwaitSendingRequest(
            tenant=tenant, user_ids=user_ids, addresses=[address_to_wire(address) for address in addresses]
        )
        try:
            response = await self._stub.AwaitSending(request, timeout=wait_seconds)
        except grpc.aio.AioRpcError as error:
            message = "the wishes are stored, but what is leaving just now could not be waited for; call again"
            raise _unavailable(message, error) from error
        return int(response.in_flight)


def _unavailable(message: str, error: grpc.aio.AioRpcError) -> UnavailableError:
    return UnavailableError(f"{message} ({error.code().name})", metadata={"service": _SERVICE})
