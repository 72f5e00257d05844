"""The low-water mark: below it, as far as this process knows, no row waits.

While somebody holds a long snapshot (a dump, a report), vacuum cannot remove the index entries of rows that were
claimed and finished, and every scan from the oldest row on would wade through them. The mark lets a scan start
where the last one saw the oldest row. It is a hint only: rows can appear below it (a transaction that stayed open, a
row that was freed), so whoever puts them there lowers it, and from time to time somebody looks below it, beside the
scans.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from .queue import PRIORITIES

# Rows are stamped before they are committed; this much later they are still found by the next scan.
_MARGIN = timedelta(seconds=2)


class LowWater:
    """The marks of one queue in one process, one for each priority."""

    def __init__(self) -> None:
        self._marks: list[datetime | None] = [None] * len(PRIORITIES)
        self._lowered: dict[int, datetime] = {}
        self._now: datetime | None = None

    @property
    def marks(self) -> list[datetime | None]:
        """The bounds by priority; None is no bound."""
        return list(self._marks)

    def begin(self) -> list[datetime | None]:
        """Returns the bounds of a scan that begins; the one before it has ended."""
        self._lowered.clear()
        return self.marks

    def scanned(self, oldest: Mapping[int, datetime], now: datetime) -> None:
        """Raises the marks after a scan for rows that are due.

        Args:
            oldest: the ``run_at`` of the oldest row that it saw, by priority.
            now: the database's clock when it ran.
        """
        if self._now is not None and now < self._now:
            # The database's clock was set back: rows are stamped below what it showed before.
            self._marks = [None] * len(PRIORITIES)
        self._now = now
        for priority, known in enumerate(self._marks):
            # Never above the present: rows that are due now may be inserted at any moment.
            mark = min(oldest.get(priority, now), now) - _MARGIN
            if priority in self._lowered:
                # A row was put there while the scan ran: whether it was seen is unknown.
                self._marks[priority] = min(mark, self._lowered[priority])
            elif known is None or mark > known:
                self._marks[priority] = mark

    def lower(self, run_at: datetime, priority: int | None = None) -> None:
        """Notes that a row with this ``run_at`` waits.

        Args:
            run_at: when the row had, or has, to run.
            priority: its priority; if not given, any.
        """
        for each in PRIORITIES if priority is None else (priority,):
            self._lowered[each] = min(run_at, self._lowered.get(each, run_at))
            known = self._marks[each]
            if known is not None:
                self._marks[each] = min(known, run_at)
