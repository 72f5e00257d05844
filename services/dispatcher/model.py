"""What the dispatcher speaks of: tasks, their content, attempts and changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from services.catalog.rules import Channel

from .channels.port import SendOutcome
from .states import State


@dataclass(frozen=True, slots=True)
class Content:
    """A rendered message.

    Attributes:
        subject: empty where the channel has none.
        body: the text, or for a webhook the JSON document.
        html: the HTML alternative of an e-mail, or empty.
        template_version: content hash of the template.
        fingerprint: SHA-256 of what was rendered, noise masked.
    """

    subject: str
    body: str
    html: str
    template_version: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Recipient:
    """Whom a task is for: a user, with a bare address where there is no profile."""

    tenant: str
    user_id: str
    bare_channel: Channel | None = None
    bare_address: str = ""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task about to be inserted, unless its intent has one for this hop.

    Attributes:
        decision: the serialized `Decision` that made it.
        evaluate: whether it is judged again when it is due.
        run_at: when it is due; None is now, on the database's clock.
        finished: whether it is in its final state already.
    """

    id: UUID
    intent_id: UUID
    hop: int
    recipient: Recipient
    scene: str
    category: str
    template: str
    variables: Mapping[str, Any]
    wishes: tuple[Channel, ...]
    priority: int
    expires_at: datetime
    traceparent: str
    state: State
    reason: str
    channel: Channel | None
    address: str
    locale: str
    content: Content | None
    idempotency_key: str
    decision: bytes
    cap_date: date | None
    deferrals: int
    evaluate: bool
    run_at: datetime | None
    finished: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a new decision writes on a task that is about to leave."""

    channel: Channel
    address: str
    locale: str
    content: Content
    idempotency_key: str
    decision: bytes
    cap_date: date | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt to hand a message over, for the explanation."""

    provider: str
    started_at: datetime
    duration_seconds: float
    outcome: SendOutcome


@dataclass(frozen=True, slots=True)
class TaskChange:
    """What a settlement writes on its task, in the transaction that settles.

    Attributes:
        state: the state that our own step reached.
        reason: its stable reason.
        attempt: the attempt that ended, where there was one.
        decision: a serialized decision to append.
        deferrals: added to the task's deferrals.
        uncounted: the attempt that was started never began; take it off again.
        fallback: the channel that hop 1 tries, when this one failed for good.
        told: whether agents learn of it; a wait for something of ours is no news, unless they were told SENDING.
    """

    state: State
    reason: str = ""
    attempt: AttemptRecord | None = None
    decision: bytes | None = None
    deferrals: int = 0
    uncounted: bool = False
    fallback: Channel | None = None
    told: bool = True
