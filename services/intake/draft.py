"""An intent as it is about to be stored: checked, complete, with the keys by which it is known again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from services.catalog.rules import Channel


@dataclass(frozen=True, slots=True)
class Draft:
    """A valid intent.

    Attributes:
        key_hash: by which a repetition is known, within the tenant.
        content_hash: by which the same key with other content is known.
        earlier_key_hash: of a derived key, the key of the time bucket before.
        window_seconds: of a derived key, for how long the same content is a repetition.
        send_at: the earliest moment at which it may leave.
        send_at_local: that moment by the recipient's clock, a serialized `LocalTime`.
        lifetime_seconds: how long it lives after the moment that the policy finds for `send_at_local`; None where
            `expires_at` is exact already, and not only the latest that it can be.
    """

    id: UUID
    tenant: str
    agent: str
    user_id: str
    bare_channel: Channel | None
    bare_address: str
    scene: str
    category: str
    template: str
    template_version: str
    variables_json: str
    wishes: tuple[Channel, ...]
    priority: int
    expires_at: datetime
    intent_key: str
    key_hash: bytes
    content_hash: bytes
    created_at: datetime
    traceparent: str
    send_at: datetime | None = None
    send_at_local: bytes | None = None
    lifetime_seconds: float | None = None
    earlier_key_hash: bytes | None = None
    window_seconds: float = 0.0
