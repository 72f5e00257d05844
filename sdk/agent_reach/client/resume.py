"""When a call is tried again or a broken stream opened again, and when it is given up.

No I/O: the clients do the waiting. gRPC's own retries do not read the delay that a service names in `RetryInfo`, and
go on until the deadline breaks one off: "deadline exceeded" then stands where the service said what is wrong.
"""

from __future__ import annotations

import random
import time

from .errors import DeadlineExceededError, InternalError, ReachError, ResourceExhaustedError, UnavailableError

_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 5.0
# One stream may end at its deadline because its reader was slow; a second one without any answer did not.
_MAX_SILENT_STREAMS = 2
_MAX_ATTEMPTS = 4


class Patience:
    """Decides how long to wait before a stream is opened again.

    Args:
        give_up_after_seconds: longest time without any progress.
    """

    def __init__(self, give_up_after_seconds: float) -> None:
        self._give_up_after = give_up_after_seconds
        self._broken_since: float | None = None
        self._delay = _FIRST_DELAY_SECONDS
        self._silent_streams = 0

    def progress(self) -> None:
        """Notes that something arrived."""
        self._broken_since = None
        self._delay = _FIRST_DELAY_SECONDS
        self._silent_streams = 0

    def delay_after(self, error: ReachError) -> float:
        """Returns the seconds to wait before the next stream.

        Raises:
            ReachError: the error itself, when another stream would not help, or has not for too long.
        """
        if isinstance(error, DeadlineExceededError):
            self._silent_streams += 1
            if self._silent_streams >= _MAX_SILENT_STREAMS:
                raise error
            return 0.0
        if not _passes(error):
            raise error
        now = time.monotonic()
        if self._broken_since is None:
            self._broken_since = now
        if now - self._broken_since >= self._give_up_after:
            raise error
        delay = max(self._delay, error.retry_after_seconds or 0.0)
        self._delay = min(self._delay * 2, _MAX_DELAY_SECONDS)
        return _jittered(delay)


class Attempts:
    """Decides how long to wait before a unary call is tried again, all within one deadline.

    Args:
        deadline_seconds: how long all attempts together may take.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._began_at = time.monotonic()
        self._ends_at = self._began_at + deadline_seconds
        self._delay = _FIRST_DELAY_SECONDS
        self._made = 0

    def begin(self) -> float:
        """Begins the next attempt; returns the seconds that it may take."""
        self._began_at = time.monotonic()
        return max(0.001, self._ends_at - self._began_at)

    def delay_after(self, error: ReachError) -> float:
        """Returns the seconds to wait before the next attempt.

        Raises:
            ReachError: the error itself, when another attempt would not help, or would hardly end in time: one that
                the deadline breaks off leaves open what it did, and this answer does not.
        """
        self._made += 1
        if not isinstance(error, UnavailableError) or self._made >= _MAX_ATTEMPTS:
            raise error
        now = time.monotonic()
        delay = _jittered(max(self._delay, error.retry_after_seconds or 0.0))
        if now + delay + (now - self._began_at) >= self._ends_at:
            raise error
        self._delay *= 2
        return delay


def _jittered(delay: float) -> float:
    # Many clients of one server must not come back at the same instant.
    return delay * random.uniform(1.0, 1.5)  # noqa: S311 - no secret


def _passes(error: ReachError) -> bool:
    """Says whether another stream may succeed where this one broke."""
    if isinstance(error, ResourceExhaustedError):
        return error.retry_after_seconds is not None
    if isinstance(error, InternalError):
        # Our services name a reason. Without one it is gRPC itself: a reset by a proxy, or a write that met the end of
        # its stream, in whose place `grpc.aio` reports "Internal error from Core" and not the status of the stream.
        return not error.reason
    return isinstance(error, UnavailableError)
