"""How an engine behaves, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The limits of one queue in one process.

    Attributes:
        slots: rows this process may hold at once: waiting in its heap, reserved, and at work. When they are taken
            the scan pauses; nothing is dropped.
        concurrency: rows that may be with the handler at once. A row counts until it is settled, so a slow row does
            not hold back its batch mates.
        batch_size: rows handed to the handler in one batch at most, 1 to 500.
        scan_interval_seconds: pause between two scans for due rows when nobody wakes the queue.
        preload_multiplier: rows due within ``scan_interval_seconds * preload_multiplier`` are claimed ahead and then
            started to the millisecond. At least 1, or rows due between two scans would be late.
        flush_seconds: how long an answer may wait for others to be written together with it.
        full_scan_seconds: how often it is looked below the low-water mark, from which scans start. A row that
            appeared there and that nobody announced waits this long at most.
        priority_boost_seconds: one step of priority is worth this much age: with 60, a row of priority 5 that has
            waited over 4 minutes goes before a fresh one of priority 9. So nothing starves.
        failure_base_seconds: a row whose handler failed without an answer waits this long, doubling up to
        failure_cap_seconds: this long.
    """

    slots: int = 1000
    concurrency: int = 400
    batch_size: int = 100
    scan_interval_seconds: float = 20.0
    preload_multiplier: float = 2.0
    flush_seconds: float = 0.05
    full_scan_seconds: float = 60.0
    priority_boost_seconds: float = 60.0
    failure_base_seconds: float = 1.0
    failure_cap_seconds: float = 60.0

    def __post_init__(self) -> None:
        _require(1 <= self.batch_size <= 500, "batch_size must be 1 to 500")
        _require(self.concurrency >= 1, "concurrency must be at least 1")
        _require(self.slots >= self.concurrency, "slots must be at least concurrency")
        _require(self.scan_interval_seconds > 0, "scan_interval_seconds must be positive")
        _require(self.preload_multiplier >= 1, "preload_multiplier must be at least 1")
        _require(0 <= self.flush_seconds <= 1, "flush_seconds must be 0 to 1")
        _require(self.full_scan_seconds > 0, "full_scan_seconds must be positive")
        _require(self.priority_boost_seconds >= 0, "priority_boost_seconds must not be negative")
        _require(
            0 < self.failure_base_seconds <= self.failure_cap_seconds,
            "failure_base_seconds must be positive and at most failure_cap_seconds",
        )

    @property
    def preload_seconds(self) -> float:
        """How far ahead rows are claimed."""
        return self.scan_interval_seconds * self.preload_multiplier


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What holds for a whole engine.

    Attributes:
        lease_seconds: a process that did not renew its lease for this long counts as dead. 30 or more in production:
            a process that merely hangs must not be taken for dead.
        heartbeat_seconds: pause between two renewals; at most a third of the lease.
        sweep_seconds: pause between two searches for rows of dead processes.
        drain_seconds: how long :meth:`Engine.stop` waits for running handlers before it cancels them.
    """

    lease_seconds: float = 30.0
    heartbeat_seconds: float = 3.0
    sweep_seconds: float = 5.0
    drain_seconds: float = 20.0

    def __post_init__(self) -> None:
        _require(self.heartbeat_seconds > 0, "heartbeat_seconds must be positive")
        _require(self.lease_seconds >= 3 * self.heartbeat_seconds, "lease_seconds must be 3 heartbeats or more")
        _require(self.sweep_seconds > 0, "sweep_seconds must be positive")
        _require(self.drain_seconds >= 0, "drain_seconds must not be negative")


def _require(condition: bool, message: str) -> None:  # noqa: FBT001 - it is the sentence's subject
    if not condition:
        raise ValueError(message)
