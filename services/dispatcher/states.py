"""The whole table of a task's states: what may follow what, and who may say so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """States of a task, as they stand in the database."""

    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    SENDING = "SENDING"
    SENT = "SENT"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"
    SUPPRESSED = "SUPPRESSED"
    EXPIRED = "EXPIRED"


class ReceiptKind(StrEnum):
    """Facts that a provider reports."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    COMPLAINED = "complained"
    OPENED = "opened"
    CLICKED = "clicked"
    UNSUBSCRIBED = "unsubscribed"


RANK: dict[State, int] = {
    State.PENDING: 0,
    State.SCHEDULED: 1,
    State.SENDING: 2,
    State.SENT: 3,
    State.DELIVERED: 4,
    State.FAILED: 10,
    State.SUPPRESSED: 10,
    State.EXPIRED: 10,
}
# The message has not left; it can still be withdrawn.
WITHDRAWABLE = frozenset({State.PENDING, State.SCHEDULED})
# Somebody outside has told us more than we know ourselves; our own late result changes nothing.
BEYOND_SENDING = frozenset(state for state, rank in RANK.items() if rank > RANK[State.SENDING])

_REACHES: dict[ReceiptKind, State] = {
    ReceiptKind.ACCEPTED: State.SENT,
    ReceiptKind.DELIVERED: State.DELIVERED,
    # Who opens a message has got it.
    ReceiptKind.OPENED: State.DELIVERED,
    ReceiptKind.CLICKED: State.DELIVERED,
    ReceiptKind.REJECTED: State.FAILED,
    ReceiptKind.BOUNCED: State.FAILED,
}


@dataclass(frozen=True, slots=True)
class Transition:
    """What an event from outside does to a task.

    Attributes:
        state: the state afterwards.
        reason: the reason afterwards.
        changed: whether the state moved.
        announced: whether agents are told, also where the state stays.
    """

    state: State
    reason: str
    changed: bool
    announced: bool


def receive(state: State, reason: str, kind: ReceiptKind, code: str = "") -> Transition:
    """Returns what a provider's fact does to a task: forward by rank, or kept and ignored.

    A bounce counts also after DELIVERED; a delivery after FAILED leaves the state and is told as `delivered_late`.
    """
    target = _REACHES.get(kind)
    if target is None:
        return Transition(state, reason, changed=False, announced=False)
    if kind is ReceiptKind.DELIVERED and state is State.FAILED:
        return Transition(state, "delivered_late", changed=False, announced=True)
    if kind is ReceiptKind.REJECTED and state is State.DELIVERED:
        return Transition(state, reason, changed=False, announced=False)
    if RANK[target] <= RANK[state]:
        return Transition(state, reason, changed=False, announced=False)
    failed = target is State.FAILED
    return Transition(target, f"{kind.value}:{code}" if failed and code else kind.value if failed else "", True, True)  # noqa: FBT003
