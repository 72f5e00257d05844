"""The rows that a process holds and has not handed out yet."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet
from itertools import count
from uuid import UUID

from .claims import Claim, ClaimKey


class ClaimHeap:
    """Claims in two heaps: those that are not due yet, by time, and those that are, by rank.

    The rank of a due claim is its ``run_at``, brought forward by the boost for each step of its priority: the more
    urgent first, the older first, and nothing starves. Of each row there is one claim at most, the latest. Claims of
    rows that an earlier claim is still at work on lie parked until :meth:`unpark`.

    Args:
        priority_boost_seconds: the age that one step of priority is worth.
    """

    def __init__(self, priority_boost_seconds: float) -> None:
        self._boost = priority_boost_seconds
        self._held: dict[UUID, Claim] = {}
        self._future: list[tuple[float, int, Claim]] = []
        self._due: list[tuple[float, int, Claim]] = []
        self._suspects: list[tuple[float, int, Claim]] = []
        self._parked: set[UUID] = set()
        self._order = count()  # breaks ties, so that claims themselves are never compared

    def __len__(self) -> int:
        return len(self._held)

    @property
    def due(self) -> int:
        """How many claims are due and no suspects, as of the last :meth:`advance`."""
        return len(self._due)

    @property
    def suspects(self) -> int:
        """How many suspects are held and not parked, due or not."""
        return len(self._suspects)

    @property
    def parked(self) -> AbstractSet[UUID]:
        """The rows of the claims that are parked."""
        return self._parked

    def push(self, claims: Iterable[Claim], busy: Container[UUID] = ()) -> None:
        """Adds claims.

        Args:
            claims: each in the place of an earlier claim of its row, if there is one.
            busy: rows that an earlier claim is still at work on; their claims are parked.
        """
        for claim in claims:
            known = self._held.get(claim.id)
            if known is not None:
                if known.claim_no >= claim.claim_no:
                    continue  # the answer to this claim was overtaken by that to a later one
                self.remove({known.key})
            self._held[claim.id] = claim
            if claim.id in busy:
                self._parked.add(claim.id)
            else:
                self._place(claim)

    def unpark(self, busy: Container[UUID]) -> None:
        """Has the parked claims go on whose rows nobody is at work on any more.

        Args:
            busy: the rows that somebody is.
        """
        for row_id in [row_id for row_id in self._parked if row_id not in busy]:
            self._parked.remove(row_id)
            self._place(self._held[row_id])

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
        return [self._pop(self._due) for _ in range(min(limit, len(self._due)))]

    def pop_suspect(self, now: float) -> Claim | None:
        """Takes one suspect that is due, if there is one."""
        if self._suspects and self._suspects[0][0] <= now:
            return self._pop(self._suspects)
        return None

    def remove(self, lost: AbstractSet[ClaimKey]) -> int:
        """Drops these claims; returns how many were there."""
        gone = [claim for row_id, claim_no in lost if (claim := self._held.get(row_id)) and claim.claim_no == claim_no]
        for claim in gone:
            del self._held[claim.id]
            self._parked.discard(claim.id)
        if gone:
            for heap in (self._future, self._due, self._suspects):
                heap[:] = [entry for entry in heap if entry[2].id in self._held]
                heapq.heapify(heap)
        return len(gone)

    def clear(self) -> list[Claim]:
        """Takes all claims out and returns them."""
        claims = self.claims()
        for place in (self._held, self._future, self._due, self._suspects, self._parked):
            place.clear()
        return claims

    def claims(self) -> list[Claim]:
        """Returns all claims, in no order."""
        return list(self._held.values())

    def _place(self, claim: Claim) -> None:
        heap = self._suspects if claim.suspect else self._future
        heapq.heappush(heap, (claim.run_at.timestamp(), next(self._order), claim))

    def _pop(self, heap: list[tuple[float, int, Claim]]) -> Claim:
        claim = heapq.heappop(heap)[2]
        del self._held[claim.id]
        return claim
