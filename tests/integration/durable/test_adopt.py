"""Our own transaction may insert rows that we hold already, as far as there is room."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from agent_reach.durable import Batch, Claim, Done, QueueSettings

from .ground import TABLE, Ground, ids, until

LIMITS = QueueSettings(slots=10, concurrency=5, batch_size=5, scan_interval_seconds=0.2)


async def test_adopted_rows_are_handed_out_without_a_claim(ground: Ground) -> None:
    seen: list[Claim] = []

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            seen.append(claim)
            batch.settle(claim, Done())

    async with ground.engine(handle, limits=LIMITS) as engine:
        # Until the first scan has shown that nothing older waits, nothing is granted.
        with engine.reserve(TABLE, 4) as places:
            assert places.granted == 4
            rows = ground.insert(4, owner=places.owner, claim_no=1)
            now = datetime.now(UTC)
            places.adopt([Claim(row, places.owner, 1, 0, now, row={"label": "", "state": "PENDING"}) for row in rows])
        await ground.until_finished(4)
    assert ids(seen) == set(rows)
    assert ground.count("claim_no = 1 AND attempts = 1") == 4


async def test_no_more_places_are_granted_than_there_are_and_unused_ones_come_back(ground: Ground) -> None:
    async def handle(batch: Batch) -> None:
        raise AssertionError("there is nothing to do")

    async with ground.engine(handle, limits=LIMITS) as engine:
        with engine.reserve(TABLE, 7) as first, engine.reserve(TABLE, 7) as second:
            assert (first.granted, second.granted) == (7, 3)
            assert engine.stats().queues[TABLE].free == 0
            with engine.reserve(TABLE, 1) as third:
                assert third.granted == 0
                with pytest.raises(ValueError, match="reserved places"):
                    third.adopt([Claim(engine.instance_id, engine.instance_id, 1, 0, datetime.now(UTC))])
        assert engine.stats().queues[TABLE].free == 10


async def test_while_older_rows_wait_in_the_table_newer_ones_do_not_slip_past(ground: Ground) -> None:
    ground.insert(50)
    go_on = asyncio.Event()

    async def handle(batch: Batch) -> None:
        await go_on.wait()
        for claim in batch.claims:
            batch.settle(claim, Done())

    async with ground.engine(handle, limits=replace(LIMITS, slots=12)) as engine:
        await until(lambda: engine.stats().queues[TABLE].in_flight == 5)
        assert engine.reserve(TABLE, 1).granted == 0
        with engine.reserve(TABLE, 1, ahead_of_others=True) as place:
            assert place.granted == 1, "who waits for this very row may have it go first"
        go_on.set()
        await ground.until_finished(50)
