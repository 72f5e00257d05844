"""A row in a transaction that stays open beyond its time: run right after the commit, not before, and not forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from agent_reach.durable import Batch, Claim, Done, Engine, QueueSettings
from agent_reach.retry import Retries, RetrySettings

from .ground import TABLE, Ground, ids, until
from .test_claims import RARELY


def marks(engine: Engine, queue: str) -> list[datetime | None]:
    """Below which, as far as the engine knows, there is nothing to be found."""
    return engine._workers[queue]._scanner._low_water.marks


async def past(engine: Engine, queue: str, moment: datetime, seconds: float = 30) -> None:
    """Returns once the engine's scans start above a moment, so that nothing there is found by the way."""

    def above() -> bool:
        engine.wake(queue)
        return all(mark is not None and mark > moment for mark in marks(engine, queue))

    await until(above, seconds)


async def test_what_is_announced_with_its_commit_runs_then(ground: Ground) -> None:
    seen: list[Claim] = []

    async def handle(batch: Batch) -> None:
        seen.extend(batch.claims)
        for claim in batch.claims:
            batch.settle(claim, Done())

    async with ground.engine(handle, limits=RARELY) as engine:
        with psycopg.connect(ground.dsn) as late:
            planned = datetime.now(UTC) + timedelta(seconds=0.1)
            ((row_id,),) = late.execute(
                f"INSERT INTO {TABLE} (run_at) VALUES (%s) RETURNING id", (planned,)
            ).fetchall()
            late.execute("SELECT pg_notify(%s, %s)", (TABLE, str(int(planned.timestamp() * 1000))))
            await past(engine, TABLE, planned)
            assert seen == []
        await until(lambda: ids(seen) == {row_id})


async def test_what_commits_a_moment_after_it_was_stamped_is_found_by_the_next_scan(ground: Ground) -> None:
    seen: list[Claim] = []

    async def handle(batch: Batch) -> None:
        seen.extend(batch.claims)
        for claim in batch.claims:
            batch.settle(claim, Done())

    limits = QueueSettings(scan_interval_seconds=0.05, full_scan_seconds=3600)
    async with ground.engine(handle, limits=limits, listens=False) as engine:
        with psycopg.connect(ground.dsn) as late:
            ((row_id, stamped),) = late.execute(f"INSERT INTO {TABLE} DEFAULT VALUES RETURNING id, run_at").fetchall()
            await past(engine, TABLE, stamped - timedelta(seconds=1.5))
        await until(lambda: ids(seen) == {row_id})


async def test_what_nobody_announces_is_found_by_a_look_below_the_mark(ground: Ground) -> None:
    seen: list[Claim] = []

    async def handle(batch: Batch) -> None:
        seen.extend(batch.claims)
        for claim in batch.claims:
            batch.settle(claim, Done())

    limits = QueueSettings(scan_interval_seconds=0.1, full_scan_seconds=6)
    async with ground.engine(handle, limits=limits) as engine:
        with psycopg.connect(ground.dsn) as late:
            planned = datetime.now(UTC)
            ((row_id,),) = late.execute(
                f"INSERT INTO {TABLE} (run_at) VALUES (%s) RETURNING id", (planned,)
            ).fetchall()
            await past(engine, TABLE, planned)
        assert seen == []
        await until(lambda: ids(seen) == {row_id})


@pytest.mark.parametrize(
    "open_seconds", [3, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(180)])], ids="{} s".format
)
async def test_tasks_registered_in_a_transaction_that_stays_open_run_right_after_it(
    database: str, open_seconds: float
) -> None:
    # Scans and looks below the mark are too rare to explain anything: what is announced is found, else nothing.
    retry = Retries(database, settings=RetrySettings(scan_interval_seconds=3600, first_delay_seconds=0))
    retry.install()
    done: list[str] = []

    @retry.listener("note")
    async def note(word: str) -> None:
        done.append(word)

    def of_the_database() -> datetime:
        ((now,),) = Ground(database).query("SELECT clock_timestamp()")
        assert isinstance(now, datetime)
        return now

    async with retry.running() as worker:
        queue = "reach_retry.tasks"
        await past(worker.engine, queue, of_the_database() - timedelta(seconds=30))
        with psycopg.connect(database) as late:
            # In company, so that the announcements are too many to be sent one by one.
            retry.register(None, "note", "alone")
            for number in range(3):
                retry.register(late, "note", f"late {number}")
            planned = of_the_database()
            await past(worker.engine, queue, planned + timedelta(seconds=open_seconds - 2), open_seconds + 30)
            assert done == ["alone"]
        await until(lambda: sorted(done) == ["alone", "late 0", "late 1", "late 2"], 20)
