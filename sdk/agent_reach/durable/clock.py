"""The database's clock, told from the local monotonic one.

The local wall clock plays no part: a machine whose time is wrong starts its rows at the right moment all the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

_SAMPLES = 16


class DatabaseClock:
    """An estimate of the database's clock that is never ahead of it, so that nothing starts too early.

    A reading arrives later than it was taken, by an unknown share of the round trip. Of the last few readings the
    one that travelled fastest is used; a clock that was set is followed as old readings drop out.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offsets: deque[float] = deque(maxlen=_SAMPLES)

    def observe(self, reading: datetime) -> None:
        """Notes a reading of the database's clock that has arrived just now."""
        self._offsets.append(reading.timestamp() - self._monotonic())

    def time(self) -> float:
        """Returns the database's time in seconds since the epoch; before any reading, the beginning of time."""
        if not self._offsets:
            return 0.0
        return self._monotonic() + max(self._offsets)

    def now(self) -> datetime:
        """Returns the database's time as an aware datetime."""
        return datetime.fromtimestamp(self.time(), UTC)
