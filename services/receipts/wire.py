"""Facts and events as the contract writes them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import dispatcher_pb2, receipt_pb2, timeline_pb2
from services.chassis.batch_stream import BatchClient
from services.chassis.errors import Violation

from .apply import Event, Result
from .facts import Fact, Kind, Read, check_fact

_PREFIX = "RECEIPT_KIND_"
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

    async def advance(self, events: Sequence[Event]) -> list[Result]:
        """Applies 1 to 500 events; returns what each did, in order. Errors as of `BatchClient.call`."""
        request = dispatcher_pb2.AdvanceRequest(items=[_advance_item(event) for event in events])
        response = await self._client.call(request)
        # A result that this version does not know is a task that is not known yet: it is asked about again.
        return [_RESULTS.get(result, Result.TASK_UNKNOWN) for result in response.results]


def _advance_item(event: Event) -> dispatcher_pb2.AdvanceItem:
    occurred_at = Timestamp()
    occurred_at.FromDatetime(event.occurred_at.astimezone(UTC))
    return dispatcher_pb2.AdvanceItem(
        receipt_id=str(event.id),
        provider=event.provider,
        idempotency_key=event.idempotency_key,
        provider_message_id=event.provider_message_id,
        kind=timeline_pb2.ReceiptKind.Value(_PREFIX + event.kind.name),
        occurred_at=occurred_at,
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
            occurred_at = receipt.occurred_at.ToDatetime(UTC)
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
