"""Places for rows in this process: reserved ones, and the single one for suspects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self
from uuid import UUID

from .claims import Claim


class Reservation:
    """Free places of a queue, kept for rows that the caller's own transaction inserts as already claimed.

    A context manager; places not used by its end are given back. The first ``granted`` rows are inserted with
    ``owner = reservation.owner`` and ``claim_no = 1``, the others without an owner; after the commit, :meth:`adopt`
    hands the claims to the engine. If that is forgotten the engine finds the rows itself, some seconds later.

    Attributes:
        owner: the instance that the rows are inserted for.
        granted: how many places there are; 0 when the engine is full, stopping, or without a lease, and while rows wait
            in the table that this one would slip past.
    """

    def __init__(
        self, owner: UUID, granted: int, adopt: Callable[[UUID, Sequence[Claim]], None], release: Callable[[int], None]
    ) -> None:
        self.owner = owner
        self.granted = granted
        self._adopt = adopt
        self._release = release
        self._left = granted

    def adopt(self, claims: Sequence[Claim]) -> None:
        """Takes committed rows into the engine, to be handed out when they are due.

        Raises:
            ValueError: more than was granted, or claims of another owner.
        """
        if len(claims) > self._left:
            raise ValueError(f"{len(claims)} claims for {self._left} reserved places")
        if any(claim.owner != self.owner for claim in claims):
            raise ValueError("claims to adopt must carry the reservation's owner")
        self._left -= len(claims)
        self._release(len(claims))
        self._adopt(self.owner, claims)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left, self._left = self._left, 0
        self._release(left)


class SuspectGate:
    """Lets one suspect at a time into the process, whatever its queue: if it kills us, it is to blame alone."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        """Whether a suspect is at work."""
        return self._busy

    def listen(self, freed: Callable[[], None]) -> None:
        """Has ``freed`` called whenever the gate opens."""
        self._waiting.append(freed)

    def enter(self) -> None:
        """Closes the gate behind one suspect."""
        assert not self._busy
        self._busy = True

    def leave(self) -> None:
        """Opens the gate again."""
        self._busy = False
        for freed in self._waiting:
            freed()
