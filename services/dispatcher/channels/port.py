"""The port that every provider's adapter fits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from services.catalog.rules import Channel


class SendResult(StrEnum):
    """How an attempt ended."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    TRANSPORT_ERROR = "transport_error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """What an adapter reports of one attempt.

    Attributes:
        result: ACCEPTED; REJECTED for good; TRANSPORT_ERROR when the provider certainly did not take it; UNKNOWN when
            the request left and no answer came.
        code: the provider's code in our words, for example ``http_503``, ``smtp_550``, ``connect_failed``.
        provider_message_id: the provider's id of the message.
        retry_after_seconds: when the provider asked to be tried again.
    """

    result: SendResult
    code: str
    provider_message_id: str = ""
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message to hand over.

    Attributes:
        idempotency_key: the same for every send of one task.
        address: in the channel's normal form.
        html: alternative body, or empty.
    """

    idempotency_key: str
    address: str
    subject: str
    body: str
    html: str = ""


class Adapter(Protocol):
    """One provider of one channel."""

    @property
    def name(self) -> str:
        """The provider's name, as receipts and attempts carry it."""
        ...

    @property
    def channel(self) -> Channel:
        """The channel it serves."""
        ...

    @property
    def deduplicates(self) -> bool:
        """Whether a second send under the same key does no harm."""
        ...

    async def send(self, message: Message) -> SendOutcome:
        """Hands a message over. Does not raise: whatever happens is an outcome."""
        ...

    async def close(self) -> None:
        """Closes what it keeps open."""
        ...
