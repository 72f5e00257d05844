"""PostgreSQL goes away and comes back: nothing is lost, nothing is written twice, nobody restarts anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agent_reach.durable import Batch, Done, QueueSettings
from agent_reach.local import LocalPostgres
from agent_reach.local.postgres import THROWAWAY_SETTINGS

from .ground import Ground, create_tables, until

LIMITS = QueueSettings(slots=40, concurrency=20, batch_size=10, scan_interval_seconds=0.2, failure_base_seconds=0.05)


@pytest.fixture(scope="module")
def own_postgres(scratch: Path) -> Iterator[LocalPostgres]:
    """A server that only these tests use, so that it may be stopped."""
    with LocalPostgres(scratch / "outage", THROWAWAY_SETTINGS) as server:
        yield server


@pytest.fixture
def own_ground(own_postgres: LocalPostgres) -> Ground:
    dsn = own_postgres.create_database(f"outage_{uuid4().hex}")
    create_tables(dsn)
    return Ground(dsn)


async def test_after_an_outage_everything_goes_on_by_itself(own_postgres: LocalPostgres, own_ground: Ground) -> None:
    own_ground.insert(60)
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        claims = await batch.start()
        at_work.set()
        await go_on.wait()
        for claim in claims:
            batch.settle(claim, Done(), "sent")

    async with own_ground.engine(handle, limits=LIMITS) as engine:
        await at_work.wait()
        await asyncio.to_thread(own_postgres.pause)
        go_on.set()  # these answers come while there is no database
        await until(lambda: sum(queue.settling for queue in engine.stats().queues.values()) > 0)
        await asyncio.to_thread(own_postgres.resume)
        await own_ground.until_finished(60)
        own_ground.insert(20)
        await own_ground.until_finished(80)
    outcomes = own_ground.query("SELECT id FROM work.outcomes")
    assert len(outcomes) == len(set(outcomes)) == 80


async def test_an_engine_starts_before_its_database_and_works_once_it_is_there(
    own_postgres: LocalPostgres, own_ground: Ground
) -> None:
    own_ground.insert(5)

    async def handle(batch: Batch) -> None:
        for claim in batch.claims:
            batch.settle(claim, Done())

    own_postgres.pause()

    async def bring_back() -> None:
        await asyncio.to_thread(own_postgres.resume)

    async with asyncio.TaskGroup() as group:
        group.create_task(bring_back())
        async with own_ground.engine(handle, limits=LIMITS):
            await until(lambda: not own_ground.count("finished_at IS NULL"))


async def test_a_server_that_is_read_only_for_a_while_costs_nothing(own_ground: Ground) -> None:
    own_ground.insert(30)
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        claims = await batch.start()
        at_work.set()
        await go_on.wait()
        for claim in claims:
            batch.settle(claim, Done(), "sent")

    async with own_ground.engine(handle, limits=LIMITS) as engine:
        await at_work.wait()
        own_ground.query("ALTER SYSTEM SET default_transaction_read_only = on")
        own_ground.query("SELECT pg_reload_conf()")
        go_on.set()
        await until(lambda: sum(queue.settling for queue in engine.stats().queues.values()) > 0)
        own_ground.query("ALTER SYSTEM RESET default_transaction_read_only")
        own_ground.query("SELECT pg_reload_conf()")
        await own_ground.until_finished(30)
    assert len(own_ground.query("SELECT DISTINCT id FROM work.outcomes")) == 30
