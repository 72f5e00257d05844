"""The deadline of the running RPC, inherited by every call that it makes."""

from __future__ import annotations

import time
from contextvars import ContextVar

_ends_at: ContextVar[float | None] = ContextVar("reach_deadline", default=None)


def set_deadline(seconds: float | None) -> None:
    """Sets the time that is left for the running RPC; None means no limit."""
    _ends_at.set(None if seconds is None else time.monotonic() + seconds)


def remaining_seconds(at_most: float) -> float:
    """Returns the time that an outgoing call may take: what is left of the RPC, `at_most` outside of one."""
    ends_at = _ends_at.get()
    return at_most if ends_at is None else max(0.001, min(at_most, ends_at - time.monotonic()))
