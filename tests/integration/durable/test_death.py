"""Processes that are killed, paused, or killed by what they work on: real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection

from agent_reach.durable import Batch, Claim, Done, Settlement

from .ground import DEADLY, TABLE, Ground, RowQueue, until
from .processes import process, said


async def test_what_a_killed_process_held_is_done_by_another_and_only_what_had_started_is_suspect(
    ground: Ground,
) -> None:
    ground.insert(100)
    seen: list[tuple[Claim, int]] = []

    async def handle(batch: Batch) -> None:
        seen.extend((claim, len(batch.claims)) for claim in batch.claims)
        for claim in await batch.start():
            batch.settle(claim, Done(), "sent")

    async with process(ground, "hoard") as hoarder:
        assert [await said(hoarder), await said(hoarder)] == ["ready", "full"]
        await until(lambda: ground.count("started_at IS NOT NULL") >= 2)
        held, started = ground.count("owner IS NOT NULL"), ground.count("started_at IS NOT NULL")
        assert started < held
        os.kill(hoarder.pid, signal.SIGKILL)
        async with ground.engine(handle, settings=DEADLY):
            await ground.until_finished(100)
    assert len(ground.query("SELECT * FROM work.outcomes")) == 100
    suspects = [size for claim, size in seen if claim.suspect]
    assert suspects == [1] * started
    assert ground.count("attempts = 1") == 100
    assert ground.count("claim_no = 2") == held
    assert ground.query("SELECT state FROM work.returned") == [("PENDING",)] * started


async def test_a_row_that_kills_its_process_spends_only_its_own_attempts(ground: Ground) -> None:
    ground.insert(60)
    ground.insert(1, label="kill")
    ground.insert(39)
    deaths = 0
    while ground.count("finished_at IS NULL"):
        async with process(ground, "work") as worker:
            end = asyncio.ensure_future(worker.wait())
            await until(lambda end=end: end.done() or not ground.count("finished_at IS NULL"), 60)  # type: ignore[misc]
            deaths += end.done()
            if deaths == 1:
                assert ground.count("started_at IS NOT NULL AND claim_no = 1") == 100, "they are at work together"
            worker.kill() if not end.done() else None
            await end
    assert deaths == 4
    assert ground.query(
        f"SELECT label, result, t.attempts, count(*)::int FROM {TABLE} t JOIN work.outcomes USING (id)"
        " GROUP BY 1, 2, 3 ORDER BY 1"
    ) == [("", "sent", 1, 99), ("kill", "failed", 4, 1)]


async def test_a_process_paused_beyond_its_lease_learns_that_its_row_is_gone(ground: Ground) -> None:
    ground.insert(1)

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            batch.settle(claim, Done(), "in time")

    async with process(ground, "slow") as paused:
        assert [await said(paused), await said(paused)] == ["ready", "started"]
        os.kill(paused.pid, signal.SIGSTOP)
        async with ground.engine(handle, settings=DEADLY):
            await ground.until_finished(1)
        os.kill(paused.pid, signal.SIGCONT)
        assert paused.stdin is not None
        paused.stdin.write(b"\n")
        assert await said(paused) == "lost=True stored=False"
    assert ground.query("SELECT result FROM work.outcomes") == [("in time",)]


async def test_suspects_run_one_at_a_time(ground: Ground) -> None:
    ground.insert(8, suspect=True)
    ground.insert(20)
    at_work = most = 0

    async def handle(batch: Batch) -> None:
        nonlocal at_work, most
        if batch.claims[0].suspect:
            assert len(batch.claims) == 1
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.01)
            at_work -= 1
        for claim in await batch.start():
            batch.settle(claim, Done())

    async with ground.engine(handle):
        await ground.until_finished(28)
    assert most == 1


async def test_the_next_suspect_waits_until_the_answer_to_the_one_before_is_stored(ground: Ground) -> None:
    ground.insert(4, suspect=True)
    started: list[int] = []

    class SlowQueue(RowQueue):
        async def apply(self, connection: AsyncConnection[Any], settled: Sequence[Settlement]) -> None:
            # Long enough for the next one to start, if it were let in.
            await asyncio.sleep(0.1)
            await super().apply(connection, settled)

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            # If this one killed the process now, no other would be blamed.
            started.append(ground.count("started_at IS NOT NULL"))
            batch.settle(claim, Done())

    async with ground.engine(handle, queue=SlowQueue()):
        await ground.until_finished(4)
    assert started == [1, 1, 1, 1]
