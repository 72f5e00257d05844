"""The rows that a process holds and has not handed out yet."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from uuid import UUID

from .claims import Claim


class ClaimHeap:
    """Claims in two heaps: those that are not due yet, by time, and those that are, by rank.

    The rank of a due claim is its ``run_at``, brought forward by the boost for each step of its priority: the more
    urgent first, the older first, and nothing starves.

    Args:
        priority_boost_seconds: the age that one step of priority is worth.
    """

    def __init__(self, priority_boost_seconds: float) -> None:
        self._boost = priority_boost_seconds
        self._future: list[tuple[float, int, Claim]] = []
        self._due: list[tuple[float, int, Claim]] = []
        self._suspects: list[tuple[float, int, Claim]] = []
        self._order = count()  # breaks ties, so that claims themselves are never compared

    def __len__(self) -> int:
        return len(self._future) + len(self._due) + len(self._suspects)

    @property
    def due(self) -> int:
        """How many claims are due and no suspects, as of the last :meth:`advance`."""
        return len(self._due)

    @property
    def suspects(self) -> int:
        """How many suspects are held, due or not."""
        return len(self._suspects)

    def push(self, claims: Iterable[Claim]) -> None:
        """Adds claims."""
        for claim in claims:
            heap = self._suspects if claim.suspect else self._future
            heapq.heappush(heap, (claim.run_at.timestamp(), next(self._order), claim))

    def advance(self, now: float) -> float | None:
        """Moves what has become due.

        Args:
            now: the database's time, in seconds since the epoch.

        Returns:
            When the next claim becomes due, on the same clock; None when there is none.
        """
        while self._future and self._future[0][0] <= now:
            due, order, claim = heapq.heappop(self._future)
            heapq.heappush(self._due, (due - claim.priority * self._boost, order, claim))
        coming = [heap[0][0] for heap in (self._future, self._suspects) if heap and heap[0][0] > now]
        return min(coming, default=None)

    def pop_due(self, limit: int) -> list[Claim]:
        """Takes up to ``limit`` due claims, the first in rank first; no suspects."""
        return [heapq.heappop(self._due)[2] for _ in range(min(limit, len(self._due)))]

    def pop_suspect(self, now: float) -> Claim | None:
        """Takes one suspect that is due, if there is one."""
        if self._suspects and self._suspects[0][0] <= now:
            return heapq.heappop(self._suspects)[2]
        return None

    def remove(self, lost: set[tuple[UUID, int]]) -> int:
        """Drops the claims with these ``(id, claim_no)``; returns how many were there."""
        before = len(self)
        for heap in (self._future, self._due, self._suspects):
            heap[:] = [entry for entry in heap if (entry[2].id, entry[2].claim_no) not in lost]
            heapq.heapify(heap)
        return before - len(self)

    def clear(self) -> list[Claim]:
        """Takes all claims out and returns them."""
        heaps = (self._future, self._due, self._suspects)
        claims = [entry[2] for heap in heaps for entry in heap]
        for heap in heaps:
            heap.clear()
        return claims

    def claims(self) -> list[Claim]:
        """Returns all claims, in no order."""
        return [entry[2] for heap in (self._future, self._due, self._suspects) for entry in heap]
