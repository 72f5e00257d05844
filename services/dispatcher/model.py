"""What the dispatcher speaks of: tasks, their content, attempts and changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
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


class Hold(StrEnum):
    """What holds a task until it is judged again: a gate, or that its place in the caps is gone."""

    SCHEDULE = "schedule"
    DIGEST = "digest"
    QUIET_HOURS = "quiet_hours"
    CAPS = "caps"


@dataclass(frozen=True, slots=True)
class Gathering:
    """How a task is gathered: into the open digest of its kind, or a new one.

    Attributes:
        until: when a new digest is due.
        max_items: a digest that holds so many is due at once; None lets it wait.
    """

    until: datetime
    max_items: int | None


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task about to be inserted, unless its intent has one for this hop.

    Attributes:
        content: what it was rendered to; None where it is rendered when it is due, or never.
        decision: the serialized `Decision` that made it; empty where there was none.
        decided_at: when that was made.
        submitted_at: when its intent was submitted.
        hold: what holds it, until `run_at`; then it is judged again. None is about to leave, or has ended.
        run_at: when it is due; None is now, on the database's clock.
        finished: whether it is in its final state already.
        gathering: how it is gathered, where a digest holds it.
        send_at: the earliest moment at which it may leave.
        send_at_local: that moment by the recipient's clock, a serialized `LocalTime`.
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
    decided_at: datetime
    submitted_at: datetime
    cap_date: date | None = None
    hold: Hold | None = None
    run_at: datetime | None = None
    finished: bool = False
    gathering: Gathering | None = None
    send_at: datetime | None = None
    send_at_local: bytes | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a new decision writes on a task that is about to leave."""

    channel: Channel
    address: str
    locale: str
    content: Content
    idempotency_key: str
    decision: bytes
    decided_at: datetime
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
        hold: what it waits for, until `planned_at` where there is one; then it is judged again.
        planned_at: until when it is held.
        gathering: how it is gathered, where a digest holds it.
        fallback: the channel that hop 1 tries, when this one failed for good.
        told: whether agents learn of it; a wait for something of ours is no news, unless they were told SENDING.
    """

    state: State
    reason: str = ""
    attempt: AttemptRecord | None = None
    decision: bytes | None = None
    hold: Hold | None = None
    planned_at: datetime | None = None
    gathering: Gathering | None = None
    fallback: Channel | None = None
    told: bool = True
