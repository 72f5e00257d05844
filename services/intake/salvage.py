"""Reads what can be read of a batch in which one intent is no valid message, so that it does not spoil the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from agent_reach.v1 import reach_pb2
from services.chassis.undecodable import Undecodable

_FIELDS = reach_pb2.SubmitStreamRequest.DESCRIPTOR.fields_by_name
_SEQUENCE, _INTENTS = _FIELDS["sequence"].number, _FIELDS["intents"].number


@dataclass(slots=True)
class Salvaged:
    """A batch of which single intents could not be read; these are None."""

    sequence: int
    intents: list[reach_pb2.IntentSpec | None]


Batch = reach_pb2.SubmitStreamRequest | Salvaged
Specs = Sequence[reach_pb2.IntentSpec | None]


async def readable_batches(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Passes batches on; one that could not be read as a whole is read intent by intent.

    What is no batch at all is passed on as it is, to be refused as such.
    """
    async for request in requests:
        yield salvage(request) if isinstance(request, Undecodable) else request


def salvage(raw: Undecodable) -> Salvaged | Undecodable:
    """Reads a batch intent by intent: a text that is not UTF-8 makes one of them unreadable, not its neighbours."""
    try:
        # A message without fields of its own keeps all of them, apart and unread.
        fields = UnknownFieldSet(Empty.FromString(raw))
    except DecodeError:
        return raw
    batch = Salvaged(0, [])
    for field in fields:  # type: ignore[attr-defined]  # the types leave its iterator out
        if field.field_number == _SEQUENCE and isinstance(field.data, int):
            batch.sequence = field.data
        elif field.field_number == _INTENTS and isinstance(field.data, bytes):
            batch.intents.append(_intent(field.data))
    return batch


def _intent(raw: bytes) -> reach_pb2.IntentSpec | None:
    try:
        return reach_pb2.IntentSpec.FromString(raw)
    except DecodeError:
        return None
