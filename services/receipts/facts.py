"""What a provider can say about a message, and what it must say for us to keep it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from services.chassis.errors import Violation
from services.chassis.validation import check_text

MAX_BODY_BYTES = 1024 * 1024
MAX_BATCH = 500
MAX_EVENT_ID = 256
MAX_KEY = 256
MAX_MESSAGE_ID = 512
MAX_CODE = 256

_PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


class Kind(StrEnum):
    """What happened to the message; the contract's `ReceiptKind`, in lower case."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    COMPLAINED = "complained"
    OPENED = "opened"
    CLICKED = "clicked"
    UNSUBSCRIBED = "unsubscribed"


class Source(StrEnum):
    """Where a wish for silence comes from; some of the contract's `SuppressionSource`, in lower case."""

    UNSUBSCRIBE = "unsubscribe"
    COMPLAINT = "complaint"
    BOUNCE = "bounce"


_SILENCE = {
    Kind.UNSUBSCRIBED: Source.UNSUBSCRIBE,
    Kind.COMPLAINED: Source.COMPLAINT,
    Kind.BOUNCED: Source.BOUNCE,
}


def silence_wanted(kind: Kind, code: str) -> Source | None:
    """Returns why an address must not be written to any more after an event; None where it may.

    A bounce whose enhanced status is `4.x.x` (RFC 3463) passes: the mailbox is full, say, and not gone.
    """
    if kind is Kind.BOUNCED and code.startswith("4"):
        return None
    return _SILENCE.get(kind)


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a provider says.

    Attributes:
        event_id: the provider's own id of it, by which a repetition is known.
        kind: what happened.
        idempotency_key: our key of the message, where the provider repeats it; else empty.
        provider_message_id: the provider's id of the message; else empty. One of the two is there.
        code: the provider's own code, for example an enhanced SMTP status; may be empty.
        occurred_at: when it happened, aware; None where the provider does not say.
    """

    event_id: str
    kind: Kind
    idempotency_key: str = ""
    provider_message_id: str = ""
    code: str = ""
    occurred_at: datetime | None = None


# What became of one item of a batch: a fact, or what is wrong with it.
Read = Fact | Sequence[Violation]


def check_fact(fact: Fact, path: str = "") -> list[Violation]:
    """Returns what keeps a fact from being stored.

    Args:
        fact: the fact.
        path: what its field names start with, for example ``"[3]."``.
    """
    violations = [
        *check_text(f"{path}event_id", fact.event_id, max_length=MAX_EVENT_ID, required=True),
        *check_text(f"{path}idempotency_key", fact.idempotency_key, max_length=MAX_KEY),
        *check_text(f"{path}provider_message_id", fact.provider_message_id, max_length=MAX_MESSAGE_ID),
        *check_text(f"{path}code", fact.code, max_length=MAX_CODE),
    ]
    if not (fact.idempotency_key or fact.provider_message_id):
        violations.append(Violation(f"{path}idempotency_key", "is required where provider_message_id is not given"))
    return violations


def is_provider_name(name: str) -> bool:
    """Says whether this can be a provider's name: lower-case letters, digits, ``_ . -``, at most 64."""
    return _PROVIDER_NAME.fullmatch(name) is not None
