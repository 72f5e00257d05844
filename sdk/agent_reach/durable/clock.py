"""The database's clock, told from the local monotonic one.

The local wall clock plays no part: a machine whose time is wrong starts its rows at the right moment all the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

_SAMPLES = 16
# What rounding may make of two readings of one clock.
_TOLERANCE_SECONDS = 0.001


class DatabaseClock:
    """An estimate of the database's clock that is never ahead of it, so that nothing starts too early.

    A reading arrives later than it was taken, by an unknown share of the round trip. Of the last few readings the
    one that travelled fastest is used. A clock that was set is followed at once: forward, since the new reading is the
    highest; back, since a reading cannot have been taken before it was asked for.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offsets: deque[float] = deque(maxlen=_SAMPLES)
        self._best: float | None = None
        self._step = 0.0

    def observe(self, reading: datetime, asked_at: float) -> None:
        """Notes a reading of the database's clock that has arrived just now.

        Args:
            reading: the database's clock.
            asked_at: the local monotonic clock before it was asked for.
        """
        seconds, known = reading.timestamp(), self._best
        if known is not None and known > seconds - asked_at + _TOLERANCE_SECONDS:
            self._offsets.clear()
        self._offsets.append(seconds - self._monotonic())
        self._best = max(self._offsets)
        if known is not None:
            self._step = max(self._step, self._offsets[-1] - known)

    def take_step(self) -> float:
        """Returns how much further than the local clock it has run between two readings at most, since last asked.

        In seconds. More than a slow answer explains means that it was set forward, or that its host has slept. Whoever
        has to heed that is not always who reads the clock first after it.
        """
        step, self._step = self._step, 0.0
        return step

    def time(self) -> float:
        """Returns the database's time in seconds since the epoch; before any reading, the beginning of time."""
        return 0.0 if self._best is None else self._monotonic() + self._best

    def now(self) -> datetime:
        """Returns the database's time as an aware datetime."""
        return datetime.fromtimestamp(self.time(), UTC)
