"""Several queues in one engine: one lease for all, one suspect at a time, and no queue suffers from another."""

from __future__ import annotations

import asyncio

from agent_reach.durable import Batch, Consumer, Done, Engine, TableQueue, queue_columns, queue_indexes

from .ground import FAST, LEASE, TABLE, Ground, RowQueue, until

OTHER = "work.others"


def create_other(ground: Ground) -> None:
    ground.query(
        f"CREATE TABLE {OTHER} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), priority smallint NOT NULL DEFAULT 5,"
        f" {queue_columns()})"
    )
    ground.query(queue_indexes(OTHER))


async def test_two_queues_share_one_lease_and_suspects_of_both_run_one_at_a_time(ground: Ground) -> None:
    create_other(ground)
    ground.insert(6, suspect=True)
    ground.query(f"INSERT INTO {OTHER} (suspect) SELECT true FROM generate_series(1, 6)")
    at_work = most = 0

    async def handle(batch: Batch) -> None:
        nonlocal at_work, most
        assert len(batch.claims) == 1
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.02)
        at_work -= 1
        batch.settle(batch.claims[0], Done())

    async with ground.pool() as pool:
        consumers = [Consumer(RowQueue(), handle, FAST), Consumer(TableQueue(OTHER), handle, FAST)]
        async with Engine(pool, "work", consumers, direct_dsn=ground.dsn, settings=LEASE) as engine:
            await ground.until_finished(6)
            unfinished = f"SELECT count(*) FROM {OTHER} WHERE finished_at IS NULL"
            await until(lambda: ground.query(unfinished) == [(0,)])
            assert ground.query("SELECT id FROM work.instance") == [(engine.instance_id,)]
    assert most == 1


async def test_a_queue_whose_sweep_fails_keeps_no_other_from_being_swept(ground: Ground) -> None:
    create_other(ground)

    class BrokenQueue(RowQueue):
        async def returned(self, *_: object) -> None:
            raise RuntimeError("a defect")

    async def handle(batch: Batch) -> None:
        for claim in batch.claims:
            batch.settle(claim, Done())

    orphan = "owner = gen_random_uuid(), claim_no = 1, started_at = now()"
    ground.insert(1)
    ground.query(f"INSERT INTO {OTHER} DEFAULT VALUES")
    ground.query(f"UPDATE {TABLE} SET {orphan}")
    ground.query(f"UPDATE {OTHER} SET {orphan}")
    async with ground.pool() as pool:
        consumers = [Consumer(BrokenQueue(), handle, FAST), Consumer(TableQueue(OTHER), handle, FAST)]
        async with Engine(pool, "work", consumers, direct_dsn=ground.dsn, settings=LEASE):
            await until(lambda: ground.query(f"SELECT finished_at IS NOT NULL FROM {OTHER}") == [(True,)])
    assert ground.count("owner IS NOT NULL") == 1
