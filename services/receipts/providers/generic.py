"""The generic format: one JSON object per event, or a list of them.

::

    {"event_id": "e-1", "kind": "delivered", "idempotency_key": "…", "provider_message_id": "…",
     "occurred_at": "2026-03-07T17:00:00Z", "code": "2.0.0"}

`event_id`, `kind` and one of the two names of the message are needed. Fields that we do not know are left alone.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, ValidationError

from services.chassis.errors import InvalidFieldsError, Violation
from services.receipts.facts import Fact, Kind, Read, check_fact


def _in_utc(moment: datetime) -> datetime:
    # A moment at the edge of the calendar has none in UTC, and no client of the database could read it back.
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is no moment between the years 1 and 9999") from None


class _Event(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    event_id: str
    kind: Kind
    idempotency_key: str | None = None
    provider_message_id: str | None = None
    occurred_at: Annotated[AwareDatetime, AfterValidator(_in_utc)] | None = None
    code: str | None = None


def read_post(body: bytes) -> list[Read]:
    """Reads a post of the generic format.

    Raises:
        InvalidFieldsError: it is not JSON, or neither an object nor a list.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidFieldsError([Violation("body", f"is not JSON{where}")]) from error
    if isinstance(document, dict):
        return [_read_event(document, "")]
    if isinstance(document, list):
        return [_read_event(item, f"[{number}].") for number, item in enumerate(document)]
    raise InvalidFieldsError([Violation("body", "must be a JSON object or a list of them")])


def _read_event(item: Any, path: str) -> Read:
    if not isinstance(item, dict):
        return [Violation(path.rstrip(".") or "body", "must be a JSON object")]
    try:
        event = _Event.model_validate(item)
    except ValidationError as error:
        return [
            Violation(path + ".".join(str(part) for part in fault["loc"]), fault["msg"])
            for fault in error.errors(include_input=False, include_url=False, include_context=False)
        ]
    fact = Fact(
        event_id=event.event_id,
        kind=event.kind,
        idempotency_key=event.idempotency_key or "",
        provider_message_id=event.provider_message_id or "",
        code=event.code or "",
        occurred_at=event.occurred_at,
    )
    return check_fact(fact, path) or fact
