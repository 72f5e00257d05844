"""One queue in one process: keeps rows until they are due, hands them out, takes the answers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from random import Random
from typing import Any
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from .backoff import exponential_jitter
from .batch import Batch
from .claims import Claim, ClaimKey, Release, Settlement
from .clock import DatabaseClock
from .completer import Answer, Completer
from .consumer import Consumer
from .heap import ClaimHeap
from .lease import Lease
from .log import Log
from .outage import Outage, is_transient, statement, transaction
from .scan import LONG_AGO, Scanner, wait
from .slots import Reservation, SuspectGate
from .stats import QueueStats
from .tasks import cancel_and_wait

# How long a cancelled handler has to end.
_CANCEL_SECONDS = 5.0
# A row that somebody here is still at work on under an earlier claim is looked at again after so long.
_LINGERING_SECONDS = 1.0


class Worker:
    """The runtime of one queue; the engine makes one for each consumer.

    Args:
        pool: where connections come from.
        consumer: the table, who gets the batches, and the limits.
        lease: under whose id rows are claimed.
        clock: the database's.
        gate: shared by all queues of the process.
        announce: tells other processes about rows that wait again.
        log: where failures go.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        consumer: Consumer,
        lease: Lease,
        clock: DatabaseClock,
        gate: SuspectGate,
        announce: Callable[[str, datetime | None], None],
        log: Log,
    ) -> None:
        self.pool = pool
        self.queue = queue = consumer.queue
        self._handler = consumer.handler
        self._starts_at_once = consumer.starts_at_once
        self._settings = settings = consumer.settings
        self._lease = lease
        self._clock = clock
        self._gate = gate
        self._announce = announce
        self._heap = ClaimHeap(settings.priority_boost_seconds)
        self._scanner = Scanner(pool, queue, settings, lease, clock, self, log)
        self._completer = Completer(pool, queue, settings, self._stored, log)
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._log = log.bind(queue=queue.name)
        self._batches: set[Batch] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._in_flight = 0
        self._reserved = 0
        self._failures = 0
        self._strays: set[ClaimKey] = set()
        self._draining = False
        self._dispatch_event = asyncio.Event()
        gate.listen(self._dispatch_event.set)

    # -- for the engine ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until :meth:`drain` has ended."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._completer.run())
            loops = (self._scanner.run(), self._scanner.look_back(), self._dispatch())
            self._loops = [group.create_task(loop) for loop in loops]

    def wake(self, run_at: datetime | None = None) -> None:
        """Scans at once. Give the earliest ``run_at`` of the new rows where it may lie in the past."""
        self._scanner.wake(run_at)

    def reserve(self, count: int, *, ahead_of_others: bool) -> Reservation:
        """Keeps up to ``count`` free places; while rows wait in the table, only for who may go ahead of them."""
        can = self._lease.live and not self._draining and (ahead_of_others or not self._scanner.behind)
        granted = max(0, min(count, self._free)) if can else 0
        self._reserved += granted
        return Reservation(self._lease.instance_id, granted, self.take, self._unreserve)

    def lease_lost(self) -> None:
        """Drops what was held under the old lease and tells the handlers."""
        dropped = len(self._heap.clear())
        dropped += sum(batch.lose() for batch in list(self._batches))
        if dropped:
            self._log.warning("durable.claims_lost", rows=dropped)
        self.wake(LONG_AGO)

    async def reconcile(self) -> None:
        """Compares what we think we hold with what the table says.

        A claim that the table gave to somebody else (an operator's cancel raises ``claim_no``) is lost, and its handler
        is told. A row that the table holds for us and we do not know (the answer to a claim or an adoption went missing)
        is released when it is seen twice, since it may just be on its way to us.
        """
        owner = self._lease.instance_id
        before = self._watched()
        async with transaction(self.pool) as connection:
            held = {claim.key: claim for claim in await self.queue.held(connection, owner)}
            if owner != self._lease.instance_id:
                return
            if gone := (before & self._watched()) - held.keys():
                self._heap.remove(gone)
                for batch in list(self._batches):
                    batch.lose(gone)
                self._log.warning("durable.claims_lost", rows=len(gone))
                self._freed()
            settling = {settlement.claim.key for settlement in self._completer.pending_settlements()}
            opened = {claim.key for batch in self._batches for claim in batch.claims}
            strays = held.keys() - before - self._watched() - settling - opened
            again = strays & self._strays
            self._strays = set(strays)
            if again:
                await self.queue.settle(connection, [Settlement(held[key], Release(counted=False)) for key in again])
        if again:
            self._log.warning("durable.strays_released", rows=len(again))
            self.wake(min(held[key].run_at for key in again))

    async def drain(self, seconds: float) -> None:
        """Stops claiming, hands back what has not started, and waits for the rest.

        Args:
            seconds: how long running handlers may go on before they are cancelled.
        """
        self._draining = True
        self._freed()
        # A claim under way may bring rows yet; cut off, they would wait for a sweep.
        if self._loops:
            await asyncio.wait(self._loops, timeout=_CANCEL_SECONDS)
            await cancel_and_wait(self._loops)
        self._hand_back(self._heap.clear())
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=seconds)
        if self._handlers:
            self._log.warning("durable.handlers_cancelled", batches=len(self._handlers))
            for task in self._handlers:
                task.cancel()
            await asyncio.wait(self._handlers, timeout=_CANCEL_SECONDS)
        self._completer.close()

    def stats(self) -> QueueStats:
        """Returns what is held at this moment."""
        return QueueStats(
            heap=len(self._heap),
            in_flight=self._in_flight,
            settling=self._completer.pending,
            reserved=self._reserved,
            free=max(0, self._free),
        )

    # -- for batches (see `Office`) ---------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Whether work must not start any more."""
        return self._draining

    async def begin(self, claims: Sequence[Claim]) -> dict[UUID, int]:
        """Notes in the table that work starts; waits for PostgreSQL while it is away."""
        outage = Outage("start", self._log)
        opened = statement if self.queue.starts_in_one_statement else transaction
        while True:
            try:
                async with opened(self.pool) as connection:
                    started = await self.queue.start(connection, claims)
            except Exception as error:
                if not is_transient(error):
                    raise
                await asyncio.sleep(outage.failed(error))
            else:
                outage.succeeded()
                return started

    def submit(self, settlement: Settlement, *, urgent: bool) -> Answer:
        """Takes an answer to be written."""
        return self._completer.submit(settlement, urgent=urgent)

    def closed(self, count: int) -> None:
        """Notes that this many rows are no longer with the handler."""
        self._in_flight -= count
        self._freed()

    # -- for the scanner (see `Hands`) ------------------------------------------------------------------------------

    @property
    def places(self) -> int:
        """How many rows could start with their claim: be handed out when it comes back, and be at work at once."""
        if not self._starts_at_once():
            return 0
        return max(0, min(self._settings.concurrency - self._in_flight - self._heap.due, self._free))

    @property
    def room(self) -> int:
        """How many rows that are due make sense here now: what can run, and one batch to follow."""
        runnable = self._settings.concurrency - self._in_flight + self._settings.batch_size - self._heap.due
        return max(0, min(runnable, self._free))

    @property
    def room_ahead(self) -> int:
        """How many rows may be claimed ahead: never so many that rows which are due find no place."""
        return max(0, self._free - self._settings.concurrency)

    @property
    def idle(self) -> bool:
        """Whether nothing that is due waits here any more."""
        return self._heap.due == 0

    @property
    def wants_suspect(self) -> bool:
        """Whether a suspect could be handed out."""
        return not self._heap.suspects and not self._gate.busy

    def take(self, owner: UUID, claims: Sequence[Claim]) -> None:
        """Takes rows that were claimed, or inserted as claimed, for an owner."""
        if not claims:
            return
        if owner != self._lease.instance_id or self._draining:
            self._hand_back(claims)
            return
        busy = self._overtake(claims)
        self._heap.push([claim for claim in claims if not claim.started], busy)
        # So that whoever counts places, here and in the next scan, counts these too.
        self._heap.advance(self._clock.time())
        self._hand_out_started([claim for claim in claims if claim.started], busy)
        self._dispatch_event.set()

    def set_aside(self, owner: UUID, unreadable: Sequence[tuple[Claim, Exception]]) -> None:
        """Settles rows that no handler can be given, as the queue says."""
        if owner != self._lease.instance_id:
            return
        for claim, error in unreadable:
            # Not the error's text, which may quote what nobody shall read in a log.
            self._log.error("durable.row_unreadable", id=str(claim.id), error=type(error).__name__)
            self._completer.submit(self.queue.unreadable(claim, error), urgent=True)

    @property
    def _free(self) -> int:
        held = len(self._heap) + self._in_flight + self._completer.pending + self._reserved
        return self._settings.slots - held

    def _overtake(self, claims: Sequence[Claim]) -> set[UUID]:
        """Tells handlers of rows that were claimed again meanwhile; returns those that they are still at work on."""
        by_id = {claim.id: claim for claim in claims}
        busy: set[UUID] = set()
        lost = 0
        for batch in list(self._batches):
            if at_work := batch.at_work_on(by_id.keys()):
                busy |= at_work
                lost += batch.lose(batch.overtaken_by(by_id))
        if lost:
            self._log.warning("durable.claims_lost", rows=lost)
        return busy

    def _at_work(self, ids: AbstractSet[UUID]) -> set[UUID]:
        return {row_id for batch in self._batches for row_id in batch.at_work_on(ids)}

    def _unreserve(self, count: int) -> None:
        self._reserved -= count
        self._freed()

    def _hand_back(self, claims: Iterable[Claim], *, after_seconds: float = 0.0) -> None:
        for claim in claims:
            self._completer.submit(Settlement(claim, Release(after_seconds, counted=False)), urgent=True)

    def _freed(self) -> None:
        self._scanner.look_again()
        self._dispatch_event.set()

    # -- handing out ------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while not self._draining:
            self._dispatch_event.clear()
            if parked := self._heap.parked:
                self._heap.unpark(busy=self._at_work(parked))
            next_due = self._heap.advance(self._clock.time())
            handed_out = self._hand_out_suspect()
            while (places := self._settings.concurrency - self._in_flight) > 0 and self._heap.due:
                self._hand_out(self._heap.pop_due(min(places, self._settings.batch_size)))
                handed_out = True
            if handed_out:
                self._scanner.look_again()
            await wait(self._dispatch_event, None if next_due is None else next_due - self._clock.time())

    def _hand_out_suspect(self) -> bool:
        if self._gate.busy or self._in_flight >= self._settings.concurrency:
            return False
        claim = self._heap.pop_suspect(self._clock.time())
        if claim is None:
            return False
        self._gate.enter()
        self._hand_out([claim])
        return True

    def _hand_out_started(self, claims: Sequence[Claim], busy: AbstractSet[UUID]) -> None:
        """Hands out what has started with its claim, a batch at most. Nothing waits as started: the rest goes back."""
        places = self.places if self._lease.live else 0
        ready = [claim for claim in claims if claim.id not in busy]
        if at_work := ready[:places]:
            self._hand_out(at_work)
        self._hand_back(ready[places:])
        self._hand_back((claim for claim in claims if claim.id in busy), after_seconds=_LINGERING_SECONDS)

    def _hand_out(self, claims: Sequence[Claim]) -> None:
        assert self._group is not None
        batch = Batch(self, claims)
        self._in_flight += len(claims)
        self._batches.add(batch)
        task = self._group.create_task(self._serve(batch, suspect=claims[0].suspect))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, batch: Batch, *, suspect: bool) -> None:
        failure: BaseException | None = None
        try:
            if any(claim.started for claim in batch.claims) and not self._starts_at_once():
                # It did when they were handed out, but has got something else to wait for in this very turn of the loop.
                batch.leave(lambda *_: Release(counted=False))
            elif batch.claims:  # not lost on their way
                await self._handler(batch)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # by us: the engine stops
            failure = error
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything; its rows, and all others, go on
            failure = error
        finally:
            self._batches.discard(batch)
            self._dispatch_event.set()  # for rows that were parked until this handler's end
            self._clean_up(batch, failure)
            if suspect:
                await self._let_next_suspect_in(batch)
        if isinstance(failure, KeyboardInterrupt):
            # It met our handler, but is meant for the process: whoever looks after that signal shall have it.
            signal.raise_signal(signal.SIGINT)

    async def _let_next_suspect_in(self, batch: Batch) -> None:
        """Opens the gate once the answer is stored: the next suspect may kill us, and this one would pay for it."""
        try:
            await batch.wait_stored()
        finally:
            self._gate.leave()
            self.wake()

    def _clean_up(self, batch: Batch, failure: BaseException | None) -> None:
        """Releases what the handler left open, a while later each time it does so."""
        if self._draining:
            batch.leave(lambda _, started: Release(counted=started))
            return
        left = batch.leave(self._put_off)
        if failure is None and not left:
            self._failures = 0
            return
        self._failures += 1
        self._log.error(
            "durable.handler_failed", rows=len(left), first=str(left[0].id) if left else None, exc_info=failure
        )

    def _put_off(self, claim: Claim, started: bool) -> Release:  # noqa: FBT001 - called by `Batch.leave` only
        settings = self._settings
        # A row that was not started has no attempts to count by; then it is how often the handler has failed lately,
        # within bounds, since that may have been other rows' doing.
        failures = claim.attempts if started else min(self._failures + 1, 6)
        return Release(
            exponential_jitter(
                failures, settings.failure_base_seconds, settings.failure_cap_seconds, 0.3, self._random
            ),
            counted=started,
        )

    # -- keeping account ----------------------------------------------------------------------------------------------

    def _watched(self) -> set[ClaimKey]:
        claims = [*self._heap.claims(), *(claim for batch in self._batches for claim in batch.watched())]
        return {claim.key for claim in claims}

    def _stored(self, settlements: Sequence[Settlement]) -> None:
        """Looks after rows that may be due before the next scan by the clock: here, or elsewhere if we are leaving."""
        self._freed()
        now = self._clock.time()
        soon = [
            settlement
            for settlement in settlements
            if (seconds := settlement.waits_seconds(now)) is not None and seconds < self._settings.preload_seconds
        ]
        if not soon:
            return
        earliest = min(settlement.claim.run_at for settlement in soon)
        if self._draining:
            self._announce(self.queue.name, earliest)
        else:
            self.wake(earliest)
