"""The places that messages hold in users' caps: confirmed when they leave, given back when they never will."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from agent_reach.v1 import policy_pb2
from services.catalog.rules import Channel
from services.catalog.wire import channel_to_wire
from services.chassis.batch_stream import BatchClient
from services.chassis.errors import ServiceError

from .model import NewTask

_log = structlog.get_logger(__name__)

# Messages wait for the answer.
_ASK_SECONDS = 5.0

SettleClient = BatchClient[policy_pb2.SettleRequest, policy_pb2.SettleResponse]


class Reservations:
    """Settles reservations with the policy, in batches."""

    def __init__(self, client: SettleClient) -> None:
        self._client = client

    async def confirm(self, rows: Sequence[Mapping[str, Any]]) -> set[int]:
        """Confirms the places of messages that are about to leave, each with a channel.

        Returns:
            The positions of those whose place is gone: they must be judged again before they leave.

        Raises:
            UnavailableError: the policy does not answer; the messages must not leave yet.
        """
        return await self._settle(rows, policy_pb2.RESERVATION_CONFIRMED)

    async def release(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Gives places back. When the policy does not answer they are counted until the set is rebuilt or ends."""
        try:
            await self._settle(rows, policy_pb2.RESERVATION_RELEASED)
        except ServiceError as error:
            _log.warning("reservations_not_released", count=len(rows), error=error.message)

    async def release_new(self, tasks: Sequence[NewTask]) -> None:
        """Gives back the places of tasks that failed before they waited."""
        await self.release(
            [
                {
                    "intent_id": task.intent_id,
                    "hop": task.hop,
                    "tenant": task.recipient.tenant,
                    "user_id": task.recipient.user_id,
                    "channel": task.channel,
                    "cap_date": task.cap_date,
                }
                for task in tasks
            ]
        )

    async def _settle(
        self, rows: Iterable[Mapping[str, Any]], reservation: policy_pb2.Reservation.ValueType
    ) -> set[int]:
        items = [
            policy_pb2.SettleItem(
                intent_id=str(row["intent_id"]),
                hop=row["hop"],
                tenant=row["tenant"],
                user_id=row["user_id"],
                channel=channel_to_wire(Channel(row["channel"])),
                cap_date=row["cap_date"].isoformat() if row["cap_date"] else "",
                reservation=reservation,
            )
            for row in rows
            if row["channel"]
        ]
        if not items:
            return set()
        response = await self._client.call(policy_pb2.SettleRequest(items=items), deadline_seconds=_ASK_SECONDS)
        return set(response.lost)
