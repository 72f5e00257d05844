"""Processes that are killed, paused, or killed by what they work on: real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from agent_reach.durable import Batch, Claim, Done

from .ground import DEADLY, TABLE, Ground, until

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def process(ground: Ground, mode: str) -> AsyncIterator[Process]:
    """A process on the queue; killed at the end of the block if it still lives."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.durable.process", mode, ground.dsn, cwd=ROOT, stdin=PIPE, stdout=PIPE
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            started.kill()
        # Reads to the end, so that the pipes are closed with the loop still there.
        await started.communicate()


async def said(started: Process) -> str:
    """Returns the next line that is meant for us and no log."""
    assert started.stdout is not None
    async with asyncio.timeout(60):
        async for line in started.stdout:
            if line.startswith(b"> "):
                return line[2:].decode().strip()
    raise AssertionError("the process ended without a word")


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
        assert await said(hoarder) == "full"
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
        assert await said(paused) == "started"
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
