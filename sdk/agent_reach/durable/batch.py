"""The rows that a handler gets at once, and how it answers for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol
from uuid import UUID

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from .claims import Action, Claim, ClaimKey, Done, Release, Settlement
from .completer import Answer
from .queue import TableQueue


class ClaimLostError(Exception):
    """Somebody else has the say over this row by now: what was written for it was rolled back."""


class Office(Protocol):
    """What a batch needs of the worker that made it."""

    pool: AsyncConnectionPool[Any]
    queue: TableQueue

    @property
    def draining(self) -> bool:
        """Whether work must not start any more."""

    async def begin(self, claims: Sequence[Claim]) -> dict[UUID, int]:
        """Notes in the table that work starts; returns the attempts by id of those still ours."""

    def submit(self, settlement: Settlement, *, urgent: bool) -> Answer:
        """Takes an answer to be written."""

    def closed(self, count: int) -> None:
        """Notes that this many places are free again, and that the handler may be through with a row."""


class Batch:
    """Up to ``batch_size`` claims with their handler; a suspect comes alone.

    What the handler leaves unsettled, by returning or raising, is released with a backoff and logged.

    A claim may get lost while it is at work: somebody cancelled it, or our lease has expired. If this process claims the
    row again, its new claim waits until the handler is through with the lost one: when it settles that, too, or ends.
    """

    def __init__(self, office: Office, claims: Sequence[Claim]) -> None:
        self._office = office
        self._open = {claim.id: claim for claim in claims}
        self._begun: set[UUID] = set()  # by `start`; a row may have started with its claim, and wait for that
        self._committing: set[UUID] = set()
        self._answers: list[Answer] = []
        self._lost: set[UUID] = set()
        self._lingering: dict[UUID, Claim] = {}
        self._on_lost: dict[UUID, Callable[[], None]] = {}

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._office.queue.name

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims that are neither settled nor lost, the most urgent first."""
        return tuple(self._open.values())

    async def start(self, claims: Iterable[Claim] | None = None) -> list[Claim]:
        """Commits that work on these claims starts: their attempts rise, and their owner's death makes them suspects.

        To be called right before the effect that must not be repeated lightly; waiting belongs before it. A handler
        that never calls it spends no attempts, and its rows are never suspects. Where rows started with their claim
        (``Consumer.starts_at_once``) nothing is left to be written.

        Args:
            claims: which of this batch; all of it if not given.

        Returns:
            Those that are still ours, with their new ``attempts``. The rest is dropped from the batch: lost, or handed
            back because the engine is stopping.
        """
        wanted = [
            self._open[claim.id] for claim in (self.claims if claims is None else claims) if claim.id in self._open
        ]
        if self._office.draining:
            for claim in wanted:
                if claim.id not in self._begun:
                    self.settle(claim, Release(counted=False))
            return [claim for claim in wanted if claim.id in self._open]
        if waiting := [claim for claim in wanted if not claim.started]:
            attempts = await self._office.begin(waiting)
            for claim in waiting:
                if claim.id not in attempts:
                    self.lose({claim.key})
                elif claim.id in self._open:
                    self._open[claim.id] = claim.start(attempts[claim.id])
        started = [self._open[claim.id] for claim in wanted if claim.id in self._open]
        self._begun.update(claim.id for claim in started)
        return started

    def settle(self, claim: Claim, action: Action, result: object = None, *, urgent: bool = False) -> Answer:
        """Says what becomes of a claim. Its place is free at once; the answer is written soon, with others.

        Args:
            claim: one of this batch. For one that is lost it says only that the handler is through with it.
            action: what becomes of the row.
            result: for the queue's ``apply``.
            urgent: write it at once, because losing it would mean doing something twice.

        Returns:
            What becomes of the answer; it need not be awaited.

        Raises:
            ValueError: the claim is not of this batch, or settled already.
        """
        held = self._close(claim)
        if held is None:
            if not self.lost(claim):
                raise ValueError(f"claim {claim.id} is not in this batch, or settled already")
            refused = Answer(Settlement(claim, action, result))
            refused.resolve(stored=False)
            return refused
        answer = self._office.submit(Settlement(held, action, result), urgent=urgent or held.suspect)
        self._answers.append(answer)
        return answer

    @asynccontextmanager
    async def transaction(
        self, claim: Claim, action: Action | None = None, result: object = None
    ) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction of the handler's own in which the claim is settled: its effects commit with it, or not at all.

        Args:
            claim: one of this batch. If the block raises, it stays open and can be settled otherwise.
            action: what becomes of the row; :class:`Done` if not given.
            result: for the queue's ``apply``, called in this transaction.

        Yields:
            The connection to write with.

        Raises:
            ClaimLostError: the row is no longer ours; everything is rolled back.
        """
        if claim.id not in self._open:
            self._refuse(claim)
        settlement = Settlement(self._open[claim.id], Done() if action is None else action, result)
        try:
            async with self._office.pool.connection() as connection, connection.transaction():
                yield connection
                self._committing.add(claim.id)
                if not await self._office.queue.settle(connection, [settlement]):
                    self._refuse(claim)
                if not isinstance(settlement.action, Release):
                    await self._office.queue.apply(connection, [settlement])
        except ClaimLostError:
            self.lose({settlement.claim.key})
            raise
        finally:
            self._committing.discard(claim.id)
        self._close(claim)

    def hold(self, claim: Claim) -> None:
        """Notes that a thread settles a claim in a transaction of its own, with ``TableQueue.settle``.

        Until :meth:`let_go` nobody here takes the claim for lost because its row is not ours any more.

        Raises:
            ClaimLostError: it is lost already.
        """
        if claim.id not in self._open:
            self._refuse(claim)
        self._committing.add(claim.id)

    def let_go(self, claim: Claim, *, settled: bool) -> None:
        """Notes how the transaction announced by :meth:`hold` has ended: committed, or rolled back."""
        self._committing.discard(claim.id)
        if settled:
            self._close(claim)

    def lost(self, claim: Claim) -> bool:
        """Says whether this process has lost the claim: whatever is done for it from now on counts for nothing."""
        return claim.id in self._lost

    def on_lost(self, claim: Claim, call: Callable[[], None]) -> None:
        """Has a function called, on the loop, when the claim is lost; at once if it is lost already.

        There is one function for a claim, the one that was named last.
        """
        if self.lost(claim):
            call()
        else:
            self._on_lost[claim.id] = call

    def _close(self, claim: Claim) -> Claim | None:
        """Notes that the handler is through with a claim; returns it as it was started, unless it is lost."""
        held = self._open.pop(claim.id, None)
        # Also so that batch and callback do not hold each other, which the garbage collector would have to find out.
        self._on_lost.pop(claim.id, None)
        if held is not None:
            self._office.closed(1)
        elif self._lingering.pop(claim.id, None) is not None:
            self._office.closed(0)
        return held

    def _refuse(self, claim: Claim) -> NoReturn:
        raise ClaimLostError(f"claim {claim.id} is not ours any more")

    # -- for the worker ---------------------------------------------------------------------------------------------

    def lose(self, keys: Container[ClaimKey] | None = None) -> int:
        """Drops open claims that are no longer ours and signals it; all of them if no keys are given."""
        lost = [claim for claim in self._open.values() if keys is None or claim.key in keys]
        for claim in lost:
            del self._open[claim.id]
            self._lost.add(claim.id)
            self._lingering[claim.id] = claim
        for claim in lost:
            if (call := self._on_lost.pop(claim.id, None)) is not None:
                call()
        self._office.closed(len(lost))
        return len(lost)

    def at_work_on(self, ids: AbstractSet[UUID]) -> set[UUID]:
        """Returns those of these rows that the handler is not through with."""
        return (self._open.keys() & ids) | (self._lingering.keys() & ids)

    def overtaken_by(self, claims: Mapping[UUID, Claim]) -> set[ClaimKey]:
        """Returns the open claims that cannot be ours any more, since their rows were claimed again.

        Args:
            claims: of this process, by the row's id.
        """
        return {
            claim.key for claim in self.watched() if claim.id in claims and claim.claim_no < claims[claim.id].claim_no
        }

    def watched(self) -> list[Claim]:
        """Returns the open claims that must still be ours in the table."""
        return [claim for claim in self._open.values() if claim.id not in self._committing]

    async def wait_stored(self) -> None:
        """Returns once every answer given so far is committed or refused."""
        for answer in self._answers:
            await answer

    def leave(self, action: Callable[[Claim, bool], Release]) -> list[Claim]:
        """Releases what is still open, as ``action(claim, started)`` says; returns it."""
        left = list(self._open.values())
        for claim in left:
            self.settle(claim, action(claim, claim.id in self._begun))
        return left
