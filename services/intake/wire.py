"""Intake's rows as the contract writes them, and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from agent_reach.v1 import message_pb2, reach_pb2
from services.catalog.rules import Category, Channel
from services.catalog.wire import category_to_wire, channel_to_wire
from services.chassis.errors import InvalidFieldsError, Violation
from services.chassis.moments import timestamp


def intent_to_wire(row: Mapping[str, Any]) -> reach_pb2.Intent:
    """Returns an intent row as a message."""
    spec = reach_pb2.IntentSpec(
        scene=row["scene"],
        template=row["template"],
        variables_json=row["variables_json"],
        intent_key=row["intent_key"],
        priority=row["priority"],
        channels=[channel_to_wire(Channel(name)) for name in row["wishes"]],
    )
    if row["lifetime_seconds"] is None:
        # Else it depends on a moment that only its task knows.
        spec.expires_at.CopyFrom(timestamp(row["expires_at"]))
    if row["send_at"] is not None:
        spec.send_at.CopyFrom(timestamp(row["send_at"]))
    if row["send_at_local"] is not None:
        spec.send_at_local.MergeFromString(row["send_at_local"])
    if row["bare_address"]:
        spec.address.channel = channel_to_wire(Channel(row["bare_channel"]))
        spec.address.value = row["bare_address"]
    else:
        spec.user_id = row["user_id"]
    return reach_pb2.Intent(
        intent_id=str(row["id"]),
        spec=spec,
        agent=row["agent"],
        category=category_to_wire(Category(row["category"])),
        state=message_pb2.State.Value(f"STATE_{row['state']}"),
        state_reason=_reason(row),
        state_at=timestamp(row["state_at"]),
        created_at=timestamp(row["created_at"]),
        traceparent=row["traceparent"],
    )


def _reason(row: Mapping[str, Any]) -> str:
    """Returns why an intent is where it is; of a fallback that helped nobody, first of all why it was needed."""
    if row["fallback_after"] and row["state_reason"]:
        return f"{row['fallback_after']}; fallback: {row['state_reason']}"
    return str(row["state_reason"])


def page_token(row: Mapping[str, Any]) -> str:
    """Returns the token that continues after an intent."""
    return base64.urlsafe_b64encode(f"{row['created_at'].isoformat()} {row['id']}".encode()).decode()


def read_page_token(token: str) -> tuple[datetime, UUID] | None:
    """Reads a page token.

    Raises:
        InvalidFieldsError: it is none of ours.
    """
    if not token:
        return None
    try:
        moment, _, intent_id = base64.urlsafe_b64decode(token.encode()).decode().partition(" ")
        created_at = datetime.fromisoformat(moment)
        if created_at.tzinfo is not None:
            return created_at, UUID(intent_id)
    except (ValueError, binascii.Error):
        pass
    raise InvalidFieldsError([Violation("page_token", "is none that this list has given")])
