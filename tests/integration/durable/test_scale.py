"""What a claim touches does not grow with what lies in the table, or with what vacuum may not take away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from psycopg import AsyncConnection, IsolationLevel

from agent_reach.durable import Batch, Claim, Done, QueueSettings

from .explain import ExplainedQueue, explained
from .ground import TABLE, Ground, RowQueue, ids, until

# Pages that a claim may look at beside those of its rows: ten index descents, and what was finished in the seconds
# just below the low-water mark. A walk over what lies finished touches thousands.
FEW = 500


async def finish(batch: Batch) -> None:
    for claim in batch.claims:
        batch.settle(claim, Done())


@asynccontextmanager
async def held_snapshot(ground: Ground) -> AsyncIterator[None]:
    """What `pg_dump` does to everybody else: while it lasts, no dead row and no index entry is cleared away."""
    async with await AsyncConnection.connect(ground.dsn) as dump:
        await dump.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        await dump.execute(f"SELECT count(*) FROM {TABLE}")
        yield


def finish_by_hand(ground: Ground, count: int) -> None:
    """Leaves what claims and completions leave: finished rows, whose index entries are dead."""
    ground.query(
        f"INSERT INTO {TABLE} (run_at) SELECT clock_timestamp() - interval '1 hour' + n * interval '1 ms'"
        " FROM generate_series(1, %s) AS n",
        count,
    )
    ground.query(f"UPDATE {TABLE} SET finished_at = clock_timestamp() WHERE finished_at IS NULL AND run_at < now()")


async def test_under_a_held_snapshot_only_the_first_scan_walks_over_what_was_finished(ground: Ground) -> None:
    limits = QueueSettings(scan_interval_seconds=0.05, full_scan_seconds=0.05)
    queue = ExplainedQueue()
    async with held_snapshot(ground):
        finish_by_hand(ground, 40_000)
        async with ground.engine(finish, queue=queue, limits=limits):
            await until(lambda: len(queue.costs) >= 2)
            for done in range(1, 21):
                ground.insert(5)
                await until(lambda done=done: ground.count("claim_no = 1") == 5 * done)  # type: ignore[misc]
    first, *others = (cost for cost in queue.costs if cost.buffers)
    assert first.beside_its_rows > FEW, "else this proves nothing"
    assert max(cost.beside_its_rows for cost in others) < FEW


async def test_a_row_below_the_mark_is_found_though_the_scans_start_above_it(ground: Ground) -> None:
    seen: list[Claim] = []

    async def handle(batch: Batch) -> None:
        seen.extend(batch.claims)
        await finish(batch)

    limits = QueueSettings(scan_interval_seconds=0.05, full_scan_seconds=0.3)
    queue = ExplainedQueue()
    async with held_snapshot(ground), ground.engine(handle, queue=queue, limits=limits, listens=False):
        finish_by_hand(ground, 20_000)
        await until(lambda: len(queue.costs) >= 3)
        late = ground.query(
            f"INSERT INTO {TABLE} (priority, run_at) SELECT n, now() - interval '2 hours'"
            " FROM generate_series(0, 9) AS n RETURNING id"
        )
        await until(lambda: ids(seen) == {row_id for (row_id,) in late})


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_claim_stays_cheap_during_300_000_completions_under_a_held_snapshot(
    ground: Ground,
) -> None:
    total, wave = 300_000, 20_000
    queue = ExplainedQueue(every=10)
    async with held_snapshot(ground), ground.engine(finish, queue=queue, limits=QueueSettings()) as engine:
        for done in range(wave, total + 1, wave):
            ground.query(f"INSERT INTO {TABLE} (label) SELECT 'x' FROM generate_series(1, %s)", wave)
            engine.wake(TABLE)
            await until(lambda done=done: queue.settled >= done, 120)  # type: ignore[misc]
    assert ground.count("finished_at IS NOT NULL AND claim_no = 1") == total
    costs = [cost.beside_its_rows for cost in queue.costs]
    # The faster the engine, the more was finished in the seconds below the mark; a walk over all would be ten times it.
    assert max(costs) < 2 * FEW, "it must not grow with what was completed"
    print(queue.timing())  # noqa: T201 - for people; what is asserted are pages, on whatever machine


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_million_finished_and_a_hundred_thousand_future_rows_cost_a_scan_nothing(ground: Ground) -> None:
    ground.query(
        f"INSERT INTO {TABLE} (run_at, priority, claim_no, attempts, finished_at)"
        " SELECT now() - n * interval '1 s', n %% 10, 1, 1, now() - n * interval '1 s'"
        " FROM generate_series(1, 1000000) AS n"
    )
    ground.query(
        f"INSERT INTO {TABLE} (run_at, priority) SELECT now() + interval '1 hour' + n * interval '1 s', n %% 10"
        " FROM generate_series(1, 100000) AS n"
    )
    ground.query(f"ANALYZE {TABLE}")
    ground.insert(300)
    queue = ExplainedQueue()
    async with ground.engine(finish, queue=queue, limits=QueueSettings()) as engine:
        await until(lambda: queue.settled == 300)
        print(queue.timing())  # noqa: T201 - for people
        owner = engine.instance_id
        async with await AsyncConnection.connect(ground.dsn, autocommit=True) as connection:
            others = [
                await explained(connection, lambda c: queue.oldest(c, [None] * 10)),
                await explained(connection, lambda c: queue.sweep(c, 1000)),
                await explained(connection, lambda c: queue.held(c, owner)),
                await explained(connection, lambda c: RowQueue.claim(queue, c, owner, 1, suspects=True)),
            ]
    assert max(cost.beside_its_rows for cost in (*queue.costs, *others)) < 200
