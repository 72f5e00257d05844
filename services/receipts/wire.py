"""Facts and events as the contract writes them, and back."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from agent_reach.v1 import (
    dispatcher_pb2,
    message_pb2,
    receipt_pb2,
    suppression_pb2,
    suppression_pb2_grpc,
    timeline_pb2,
)
from services.catalog.wire import category_from_wire, category_to_wire, channel_from_wire, channel_to_wire
from services.chassis.batch_stream import BatchClient
from services.chassis.errors import UnavailableError, Violation
from services.chassis.moments import moment, timestamp

from .apply import Advanced, Event, Recipient, Result, Wish
from .facts import Fact, Kind, Read, check_fact

_PREFIX = "RECEIPT_KIND_"
# The policy waits that long for what is just being handed over; a receipt need not wait for more.
_SUPPRESS_SECONDS = 5.0
_NOTE = "by a receipt of the provider"
_RESULTS = {
    dispatcher_pb2.ADVANCE_RESULT_APPLIED: Result.APPLIED,
    dispatcher_pb2.ADVANCE_RESULT_IGNORED: Result.IGNORED,
    dispatcher_pb2.ADVANCE_RESULT_TASK_UNKNOWN: Result.TASK_UNKNOWN,
}


class DispatcherClient:
    """The dispatcher behind its stream of batches.

    Args:
        client: of `DispatcherService.Advance`.
    """

    def __init__(self, client: BatchClient[dispatcher_pb2.AdvanceRequest, dispatcher_pb2.AdvanceResponse]) -> None:
        self._client = client

    async def advance(self, events: Sequence[Event]) -> list[Advanced]:
        """Applies 1 to 500 events; returns what each did, in order. Errors as of `BatchClient.call`."""
        request = dispatcher_pb2.AdvanceRequest(items=[_advance_item(event) for event in events])
        response = await self._client.call(request)
        return [
            # A result that this version does not know is a task that is not known yet: it is asked about again.
            Advanced(_RESULTS.get(result, Result.TASK_UNKNOWN), _recipient(recipient))
            for result, recipient in zip(response.results, response.recipients, strict=True)
        ]


class PolicyClient:
    """The policy's suppressions.

    Args:
        channel: to the policy.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = suppression_pb2_grpc.SuppressionServiceStub(channel)

    async def suppress(self, tenant: str, wishes: Sequence[Wish]) -> None:
        """Stores up to 1,000 wishes of a tenant; repeating it is harmless.

        Raises:
            UnavailableError: they are not stored, or nobody knows.
        """
        request = suppression_pb2.SuppressRequest(tenant=tenant, suppressions=[_suppression(wish) for wish in wishes])
        try:
            await self._stub.Suppress(request, timeout=_SUPPRESS_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(f"the policy did not store suppressions ({error.code().name})") from error


def _recipient(recipient: dispatcher_pb2.ReceiptRecipient) -> Recipient | None:
    channel = channel_from_wire(recipient.address.channel)
    if channel is None:
        return None
    category = category_from_wire(recipient.category)
    return Recipient(recipient.tenant, recipient.user_id, channel, recipient.address.value, category)


def _suppression(wish: Wish) -> suppression_pb2.Suppression:
    recipient = wish.recipient
    channel = channel_to_wire(recipient.channel)
    suppression = suppression_pb2.Suppression(
        source=suppression_pb2.SuppressionSource.Value(f"SUPPRESSION_SOURCE_{wish.source.name}"), note=_NOTE
    )
    if wish.of_user:
        suppression.user_id = recipient.user_id
        suppression.channel = channel
        suppression.category = category_to_wire(recipient.category)
    else:
        suppression.address.CopyFrom(message_pb2.Address(channel=channel, value=recipient.address))
    return suppression


def _advance_item(event: Event) -> dispatcher_pb2.AdvanceItem:
    return dispatcher_pb2.AdvanceItem(
        receipt_id=str(event.id),
        provider=event.provider,
        idempotency_key=event.idempotency_key,
        provider_message_id=event.provider_message_id,
        kind=timeline_pb2.ReceiptKind.Value(_PREFIX + event.kind.name),
        occurred_at=timestamp(event.occurred_at),
        code=event.code,
    )


def read_receipt(receipt: receipt_pb2.Receipt) -> Read:
    """Returns the fact in a receipt, or everything that is wrong with it."""
    violations: list[Violation] = []
    kind = Kind.ACCEPTED
    try:
        kind = Kind(timeline_pb2.ReceiptKind.Name(receipt.kind).removeprefix(_PREFIX).lower())
    except ValueError:
        violations.append(Violation("kind", "must be one of ReceiptKind's values, and set"))
    occurred_at = None
    if receipt.HasField("occurred_at"):
        try:
            occurred_at = moment(receipt.occurred_at)
        except (ValueError, OverflowError):
            violations.append(Violation("occurred_at", "is not a moment between the years 1 and 9999"))
    fact = Fact(
        event_id=receipt.provider_event_id,
        kind=kind,
        idempotency_key=receipt.idempotency_key,
        provider_message_id=receipt.provider_message_id,
        code=receipt.code,
        occurred_at=occurred_at,
    )
    violations += [
        Violation("provider_event_id", one.description) if one.field == "event_id" else one for one in check_fact(fact)
    ]
    return violations or fact
