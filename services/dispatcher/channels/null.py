"""A provider that takes every message and throws it away: for load tests."""

from __future__ import annotations

from services.catalog.rules import Channel

from .port import Message, SendOutcome, SendResult


class NullAdapter:
    """Accepts everything at once."""

    name = "null"
    deduplicates = True

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def send(self, message: Message) -> SendOutcome:
        """Accepts the message."""
        return SendOutcome(SendResult.ACCEPTED, "null", provider_message_id=message.idempotency_key)

    async def close(self) -> None:
        """Has nothing to close."""
