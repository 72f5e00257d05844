"""Stopping hands back what has not started, lets the rest end, and leaves nothing owned."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from agent_reach.durable import Batch, Done, QueueSettings

from .ground import FAST, LEASE, TABLE, Ground, until


async def _nothing(batch: Batch) -> None:
    raise AssertionError("nothing is due")


async def test_rows_in_the_heap_go_back_without_costing_an_attempt(ground: Ground) -> None:
    moment = datetime.now(UTC) + timedelta(minutes=5)
    ground.insert(30, run_at=moment)
    limits = replace(FAST, scan_interval_seconds=300)
    async with ground.engine(_nothing, limits=limits) as engine:
        await until(lambda: engine.stats().queues[TABLE].heap == 30)
        assert ground.count("owner IS NOT NULL") == 30
    assert ground.query(f"SELECT DISTINCT run_at, owner, attempts, suspect FROM {TABLE}") == [(moment, None, 0, False)]
    assert ground.query("SELECT * FROM work.instance") == []


async def test_running_rows_end_and_the_batch_behind_them_does_not_start(ground: Ground) -> None:
    ground.insert(20)
    running, go_on = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        first = await batch.start(batch.claims[:4])
        running.set()
        await go_on.wait()
        assert await batch.start() == first, "while the engine stops nothing new starts"
        for claim in first:
            batch.settle(claim, Done(), "sent")

    limits = QueueSettings(slots=20, concurrency=10, batch_size=10, scan_interval_seconds=0.2)
    async with ground.engine(handle, limits=limits) as engine:
        await running.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.stop())
            # The other ten go back at once, while the handler is still at work.
            await until(lambda: ground.count("owner IS NULL") >= 10)
            assert engine.reserve(TABLE, 1).granted == 0
            go_on.set()
    assert ground.count("finished_at IS NOT NULL AND attempts = 1") == 4
    assert ground.count("finished_at IS NULL AND attempts = 0 AND owner IS NULL AND state = 'PENDING'") == 16
    assert len(ground.query("SELECT * FROM work.outcomes")) == 4


async def test_a_handler_that_does_not_end_is_cancelled_and_its_rows_go_back_with_the_attempt_spent(
    ground: Ground,
) -> None:
    ground.insert(3)
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        await batch.start()
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with ground.engine(handle, settings=replace(LEASE, drain_seconds=0.1)):
        await running.wait()
    assert cancelled.is_set()
    assert ground.count("owner IS NULL AND attempts = 1 AND NOT suspect AND state = 'PENDING'") == 3
    assert ground.query("SELECT DISTINCT state, count(*) OVER () FROM work.returned") == [("PENDING", 3)]


async def test_stopping_twice_or_before_the_start_is_harmless(ground: Ground) -> None:
    async with ground.engine(_nothing) as engine:
        await engine.stop()
        await engine.stop()


async def test_a_handler_that_starts_nothing_may_still_answer_while_the_engine_stops(ground: Ground) -> None:
    ground.insert(5)
    running, go_on = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        claims = batch.claims
        running.set()
        await go_on.wait()
        for claim in claims:
            batch.settle(claim, Done(), "pumped")

    async with ground.engine(handle) as engine:
        await running.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.stop())
            await asyncio.sleep(0)
            go_on.set()
    assert ground.count("finished_at IS NOT NULL") == 5
