"""Finds the rows to claim: when to look, and for how many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any, Protocol
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from .claims import Claim, Claimed
from .clock import DatabaseClock
from .lease import Lease
from .log import Log
from .low_water import LowWater
from .outage import Outage, statement
from .queue import PRIORITIES, TableQueue
from .settings import QueueSettings

# As the `run_at` of a wake-up: nobody knows how old the rows are, look at all.
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

# Rows taken by one statement at most: it lasts a few milliseconds then. Beyond, a row costs hardly less, and a bigger
# bite would take from other replicas what they could do meanwhile.
_MAX_CLAIM = 100
# While the memory is too full to claim all that lies ahead, rows become due unclaimed: look again this soon.
_CROWDED_SECONDS = 1.0
# Where fewer can be started at once, they are claimed ahead of that, to be there when a place comes free.
_LEAST_STARTED = 8
# Rows are claimed for the moment when a place comes free only when none has come free by itself for so long.
_BUSY_SECONDS = 0.005


class Hands(Protocol):
    """Who takes the rows, and how many more it can hold."""

    @property
    def draining(self) -> bool:
        """Whether nothing must be claimed any more."""

    @property
    def places(self) -> int:
        """How many more rows that are due could start with their claim."""

    @property
    def room(self) -> int:
        """How many more rows that are due make sense."""

    @property
    def room_ahead(self) -> int:
        """How many more rows may be claimed ahead of their time."""

    @property
    def idle(self) -> bool:
        """Whether nothing that is due waits there any more."""

    @property
    def wants_suspect(self) -> bool:
        """Whether a suspect could be handed out."""

    def take(self, owner: UUID, claims: Sequence[Claim]) -> None:
        """Takes rows that were claimed for an owner."""

    def set_aside(self, owner: UUID, unreadable: Sequence[tuple[Claim, Exception]]) -> None:
        """Takes rows that were claimed for an owner and cannot be read."""


class Scanner:
    """Scans one queue by the clock, when it is woken, and when hands come free while rows wait.

    Rows that are due are claimed as far as they can soon run, so that replicas share a backlog by what they do.
    Only when none are left are rows claimed ahead. Beside the scans it is looked below the low-water mark from time to
    time, which may take long while somebody holds a snapshot; no claim waits for it.

    Args:
        pool: where connections come from.
        queue: the table.
        settings: the queue's limits.
        lease: under whose id rows are claimed.
        clock: learns the database's time from every claim.
        hands: who takes the rows.
        log: where failures go.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        queue: TableQueue,
        settings: QueueSettings,
        lease: Lease,
        clock: DatabaseClock,
        hands: Hands,
        log: Log,
    ) -> None:
        self._pool = pool
        self._queue = queue
        self._settings = settings
        self._lease = lease
        self._clock = clock
        self._hands = hands
        self._log = log
        self._low_water = LowWater()
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._wanted = True
        self._started_at = -_BUSY_SECONDS
        self._event = asyncio.Event()
        self._back_event = asyncio.Event()
        self.behind = False

    def wake(self, run_at: datetime | None = None) -> None:
        """Scans at once, from ``run_at`` on where that may lie in the past; `LONG_AGO` has the whole table looked at."""
        if run_at == LONG_AGO:
            self._back_event.set()
        elif run_at is not None:
            self._low_water.lower(run_at)
        self._wanted = True
        self._event.set()

    def look_again(self) -> None:
        """Notes that hands may have come free, or are draining."""
        self._event.set()
        if self._hands.draining:
            self._back_event.set()

    async def run(self) -> None:
        """Claims until the hands are draining."""
        outage = Outage("claim", self._log, queue=self._queue.name)
        scan_at = 0.0
        while not self._hands.draining:
            self._event.clear()
            await self._lease.wait_registered()
            pause = scan_at - time.monotonic()
            if pause <= 0:
                self._wanted = True
            limit, start = self._bite() if (self._wanted or self.behind) and self._lease.live else (0, False)
            if limit and not start and (busy := self._started_at + _BUSY_SECONDS - time.monotonic()) > 0:
                await wait(self._event, busy)
                continue
            if not limit:
                # Without room or lease there is nothing to do but to look again, by and by.
                await wait(self._event, pause if pause > 0 else _CROWDED_SECONDS)
                continue
            full_round, self._wanted = self._wanted, False
            try:
                crowded = await self._round(limit, start=start, full_round=full_round)
            except Exception as error:  # noqa: BLE001 - whatever it is, the queue must go on when it has passed
                self._wanted = self._wanted or full_round
                await asyncio.sleep(outage.failed(error))
                continue
            outage.succeeded()
            if full_round:
                # Replicas that started together should not scan together for ever.
                interval = self._settings.scan_interval_seconds * self._random.uniform(0.9, 1.0)
                scan_at = time.monotonic() + (min(_CROWDED_SECONDS, interval) if crowded else interval)

    async def look_back(self) -> None:
        """Looks below the marks, by the clock and when it is woken, until the hands are draining."""
        outage = Outage("look-back", self._log, queue=self._queue.name)
        while True:
            await wait(self._back_event, self._settings.full_scan_seconds)
            self._back_event.clear()
            if self._hands.draining:
                return
            try:
                async with statement(self._pool) as connection:
                    found = await self._queue.oldest(connection, self._low_water.marks)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                self._back_event.set()
                await asyncio.sleep(outage.failed(error))
                continue
            outage.succeeded()
            for priority, run_at in found.items():
                self._low_water.lower(run_at, priority)
            if found:
                self.wake()

    def _bite(self) -> tuple[int, bool]:
        """Says how many rows that are due are worth a claim now, and whether work on them starts with it.

        Rows are started for half of the places at a time, and one batch at most, so that the next ones are on their way
        while these are at work. Else it is for half a batch at least where there is something to do yet, since a claim
        costs the same for one row.
        """
        batch_size, concurrency = self._settings.batch_size, self._settings.concurrency
        started = min(batch_size, concurrency // 2, _MAX_CLAIM)
        if self._hands.places >= started >= _LEAST_STARTED:
            return started, True
        half, room = max(1, min(batch_size, concurrency) // 2), self._hands.room
        return (min(room, _MAX_CLAIM) if room >= half or self._hands.idle else 0), False

    async def _round(self, limit: int, *, start: bool, full_round: bool) -> bool:
        """Claims what is due; in a full round also a suspect and what lies ahead.

        Args:
            limit: how many rows that are due at most.
            start: work on these starts with the claim.
            full_round: whether it is one.

        Returns:
            Whether more lies ahead than there is room for.
        """
        due = await self._claim(limit, low_water=self._low_water.begin(), start=start)
        if start and due.claims:
            self._started_at = time.monotonic()
        self.behind = len(due.claims) + len(due.unreadable) >= limit
        if due.oldest is not None:
            self._low_water.scanned(due.oldest, due.now)
        if not full_round:
            return False
        if self._hands.wants_suspect:
            # Suspects are few and have an index of their own.
            await self._claim(1, suspects=True)
        while not self.behind and not self._hands.draining and (limit := min(self._hands.room_ahead, _MAX_CLAIM)) > 0:
            ahead = await self._claim(
                limit, low_water=self._low_water.marks, horizon_seconds=self._settings.preload_seconds
            )
            if len(ahead.claims) + len(ahead.unreadable) < limit:
                return False
        return True

    async def _claim(
        self,
        limit: int,
        *,
        low_water: Sequence[datetime | None] = (None,) * len(PRIORITIES),
        horizon_seconds: float = 0.0,
        suspects: bool = False,
        start: bool = False,
    ) -> Claimed:
        owner = self._lease.instance_id
        async with statement(self._pool) as connection:
            asked_at = time.monotonic()
            claimed = await self._queue.claim(
                connection,
                owner,
                limit,
                horizon_seconds=horizon_seconds,
                low_water=low_water,
                priority_boost_seconds=self._settings.priority_boost_seconds,
                suspects=suspects,
                start=start,
            )
            self._clock.observe(claimed.now, asked_at)
        self._hands.take(owner, claimed.claims)
        self._hands.set_aside(owner, claimed.unreadable)
        return claimed


async def wait(event: asyncio.Event, seconds: float | None) -> None:
    """Waits for an event, for so long at most."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
