"""What an engine holds at a moment, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What one queue holds in this process, in rows.

    Attributes:
        heap: claimed and waiting to be handed out.
        in_flight: with the handler, not settled.
        settling: answered, not yet committed.
        reserved: kept free for rows that are being inserted as already claimed.
        free: what could still be claimed.
    """

    heap: int
    in_flight: int
    settling: int
    reserved: int
    free: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at this moment.

    Attributes:
        lease_age_seconds: since the lease was last renewed; infinite without one.
        queues: by the queue's name.
    """

    lease_age_seconds: float
    queues: Mapping[str, QueueStats]
