"""The one clock: wall-clock decisions ask it, so that a test can set the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> datetime:
        """Returns the present moment, in UTC and timezone-aware."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Returns the machine's time in UTC."""
        return datetime.now(UTC)


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: datetime) -> None:
        self._now = now.astimezone(UTC)

    def now(self) -> datetime:
        """Returns the moment that was set."""
        return self._now

    def set(self, now: datetime) -> None:
        """Jumps to a moment."""
        self._now = now.astimezone(UTC)

    def advance(self, seconds: float) -> None:
        """Moves on by some seconds."""
        self._now += timedelta(seconds=seconds)
