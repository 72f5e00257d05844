"""The low-water mark: below it, as far as this process knows, no row waits.

While somebody holds a long snapshot (a dump, a report), vacuum cannot remove the index entries of rows that were
claimed and finished, and every scan from the oldest row on would wade through them. The mark lets a scan start
where the last one ended. It is a hint only: rows can appear below it (a transaction that stayed open, a row that
was freed), so whoever puts them there lowers it, and from time to time a scan goes without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from .claims import Claim
from .queue import PRIORITIES

# Rows are stamped before they are committed; this much later they are still found by the next scan.
_MARGIN = timedelta(seconds=2)


class LowWater:
    """The marks of one queue in one process, one for each priority.

    Args:
        full_scan_seconds: how often a scan goes without the marks.
    """

    def __init__(self, full_scan_seconds: float) -> None:
        self._full_scan_seconds = full_scan_seconds
        self._marks: list[datetime | None] = [None] * len(PRIORITIES)
        self._lowered: datetime | None = None
        self._full_scan_due = 0.0

    def marks(self, monotonic: float) -> list[datetime | None]:
        """Returns the bounds of the next scan, by priority; None is no bound.

        Args:
            monotonic: seconds on the monotonic clock, now.
        """
        if monotonic >= self._full_scan_due:
            self._full_scan_due = monotonic + self._full_scan_seconds
            self.forget()
        self._lowered = None
        return list(self._marks)

    def scanned(self, claims: Sequence[Claim], now: datetime, *, exhausted: bool) -> None:
        """Raises the marks after a scan for rows that are due.

        Args:
            claims: what it took.
            now: the database's clock when it ran.
            exhausted: it took less than it might have, so that no due row was left.
        """
        seen: dict[int, datetime] = dict.fromkeys(PRIORITIES, now) if exhausted else {}
        if not exhausted:
            for claim in claims:
                # Within a priority rows are taken in order of run_at: what lies before is taken.
                seen[claim.priority] = max(claim.run_at, seen.get(claim.priority, claim.run_at))
        for priority, until in seen.items():
            # Never above the present: rows that are due now may be inserted at any moment.
            mark = min(until, now) - _MARGIN
            if self._lowered is not None:
                # Put there while the scan ran: whether it was seen is unknown.
                mark = min(mark, self._lowered)
            known = self._marks[priority]
            self._marks[priority] = mark if known is None or self._lowered is not None else max(known, mark)

    def lower(self, run_at: datetime) -> None:
        """Notes that a row with this ``run_at`` waits again."""
        self._lowered = run_at if self._lowered is None else min(self._lowered, run_at)
        self._marks = [None if mark is None else min(mark, run_at) for mark in self._marks]

    def forget(self) -> None:
        """Makes the next scan a full one."""
        self._marks = [None] * len(PRIORITIES)
