"""Checks of what the other services send; one bad item is named, and its batch refused before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date
from typing import NoReturn
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import dispatcher_pb2, message_pb2
from services.chassis.errors import Violation
from services.chassis.moments import moment
from services.chassis.tenants import check_tenant
from services.chassis.validation import check_storable

_ACCEPTED_TEXTS = ("user_id", "scene", "template", "traceparent")
_RECEIPT_TEXTS = ("provider", "idempotency_key", "provider_message_id", "code")


def check_accepted(items: Iterable[dispatcher_pb2.AcceptItem]) -> list[Violation]:
    """Returns what is wrong with decided intents, by field."""
    return [violation for index, item in enumerate(items) for violation in _accepted(f"items[{index}]", item)]


def check_receipts(items: Iterable[dispatcher_pb2.AdvanceItem]) -> list[Violation]:
    """Returns what is wrong with receipts, by field."""
    return [violation for index, item in enumerate(items) for violation in _receipt(f"items[{index}]", item)]


def _accepted(path: str, item: dispatcher_pb2.AcceptItem) -> Iterator[Violation]:
    yield from _uuid(f"{path}.intent_id", item.intent_id)
    yield from check_tenant(f"{path}.tenant", item.tenant)
    for name in _ACCEPTED_TEXTS:
        yield from check_storable(f"{path}.{name}", getattr(item, name))
    yield from check_storable(f"{path}.address", item.address.value)
    yield from _object(f"{path}.variables_json", item.variables_json)
    if not 0 <= item.priority <= 9:
        yield Violation(f"{path}.priority", "must be 0 to 9")
    for name in ("expires_at", "send_at", "submitted_at"):
        yield from _moment(f"{path}.{name}", getattr(item, name))
    for name in ("until", "decided_at"):
        yield from _moment(f"{path}.decision.{name}", getattr(item.decision, name))
    if item.decision.action == message_pb2.ACTION_DEFER and not item.decision.HasField("until"):
        yield Violation(f"{path}.decision.until", "is required to defer")
    for name in ("reason", "address", "locale"):
        yield from check_storable(f"{path}.decision.{name}", getattr(item.decision, name))
    if item.decision.cap_date:
        try:
            date.fromisoformat(item.decision.cap_date)
        except ValueError:
            yield Violation(f"{path}.decision.cap_date", "is no date (YYYY-MM-DD)")


def _receipt(path: str, item: dispatcher_pb2.AdvanceItem) -> Iterator[Violation]:
    yield from _uuid(f"{path}.receipt_id", item.receipt_id)
    for name in _RECEIPT_TEXTS:
        yield from check_storable(f"{path}.{name}", getattr(item, name))
    yield from _moment(f"{path}.occurred_at", item.occurred_at)


def _uuid(field: str, text: str) -> Iterator[Violation]:
    try:
        UUID(text)
    except ValueError:
        yield Violation(field, "is not a UUID")


def _moment(field: str, stamp: Timestamp) -> Iterator[Violation]:
    try:
        moment(stamp)
    except (ValueError, OverflowError):
        yield Violation(field, "is no moment that a calendar knows")


def _object(field: str, document: str) -> Iterator[Violation]:
    """Checks that a text is a JSON object that PostgreSQL can store as `jsonb`."""
    try:
        value = json.loads(document or "{}", parse_constant=_no_json)
        # Escaped, NUL and half a surrogate pair are only seen once they are read.
        texts = list(_texts(value))
    except (ValueError, RecursionError):
        yield Violation(field, "is no JSON")
        return
    if not isinstance(value, dict):
        yield Violation(field, "is no JSON object")
    for text in texts:
        yield from check_storable(field, text)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, item in value.items():
                yield name
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _no_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
