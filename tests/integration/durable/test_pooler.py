"""Through PgBouncer in transaction mode all works: no session state is used, and LISTEN goes past it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection

from agent_reach.durable import Batch, Consumer, Done, Engine, Later
from agent_reach.retry import Context, Retries, RetrySettings, State
from agent_reach.retry.worker import configure
from tests.support.pgbouncer import pgbouncer

from .ground import FAST, LEASE, TABLE, Ground, RowQueue, until
from .test_claims import RARELY


@pytest.fixture
def pooled(ground: Ground, scratch: Path) -> Iterator[Ground]:
    """The same database as `ground`, seen through the pooler."""
    directory = scratch / "pooler"
    with pgbouncer(ground.dsn, directory) as dsn:
        yield Ground(dsn)
    shutil.rmtree(directory)


def nobody_prepared_anything(pooled: Ground) -> bool:
    """Whether none of the server's connections behind the pooler holds a prepared statement."""
    with (
        psycopg.connect(pooled.dsn) as first,
        psycopg.connect(pooled.dsn) as second,
        psycopg.connect(pooled.dsn) as all_of,
    ):
        # Three transactions at once have all three connections.
        statement = "SELECT pg_backend_pid(), (SELECT count(*) FROM pg_prepared_statements)"
        rows = [connection.execute(statement).fetchone() for connection in (first, second, all_of)]
    assert len({row[0] for row in rows if row}) == 3
    return all(row is not None and row[1] == 0 for row in rows)


async def test_the_engine_works_behind_a_pooler(ground: Ground, pooled: Ground) -> None:
    ground.insert(300)

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            if claim.attempts == 1:
                batch.settle(claim, Later(after_seconds=0.01))
                continue
            async with batch.transaction(claim, result="sent") as connection:
                await connection.execute("SELECT pg_backend_pid()")

    async with pooled.pool() as pool:
        consumers = [Consumer(RowQueue(), handle, FAST)]
        # Without a direct connection string the heartbeat goes through the pooler too.
        async with Engine(pool, "work", consumers, settings=LEASE):
            await ground.until_finished(300)
    assert ground.count("attempts = 2 AND NOT suspect") == 300
    assert ground.query("SELECT count(*), count(DISTINCT id) FROM work.outcomes") == [(300, 300)]
    assert nobody_prepared_anything(pooled)


async def test_notifications_are_heard_past_the_pooler(ground: Ground, pooled: Ground) -> None:
    async def handle(batch: Batch) -> None:
        for claim in batch.claims:
            batch.settle(claim, Done())

    ground.insert(1, label="first")
    async with pooled.pool() as pool:
        engine = Engine(pool, "work", [Consumer(RowQueue(), handle, RARELY)], direct_dsn=ground.dsn, settings=LEASE)
        async with engine:
            await ground.until_finished(1)
            ground.insert(1)
            engine.notifier.poke(TABLE)
            await ground.until_finished(2)


async def test_a_workers_statements_are_parsed_once_where_nobody_is_in_between_and_planned_each_time(
    ground: Ground, pooled: Ground
) -> None:
    counted = "SELECT custom_plans > 5, generic_plans FROM pg_prepared_statements WHERE statement LIKE %s"
    prepared = {}
    for dsn in (ground.dsn, pooled.dsn):
        async with await AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            await configure(connection)
            for number in range(10):
                await connection.execute(f"SELECT id FROM {TABLE} WHERE priority = %s", (number,))
            cursor = await connection.execute(counted, ("%priority%",), prepare=False)
            prepared[dsn] = await cursor.fetchall()
    # A plan that is kept is one for the table as it was, and a queue is empty before it is full.
    assert prepared == {ground.dsn: [(True, 0)], pooled.dsn: []}


async def test_retries_are_registered_and_done_behind_a_pooler(ground: Ground, pooled: Ground) -> None:
    settings = RetrySettings(scan_interval_seconds=3600, first_delay_seconds=0)
    retry = Retries(pooled.dsn, direct_dsn=ground.dsn, settings=settings)
    retry.install()
    ground.query("CREATE TABLE effects (number integer NOT NULL, attempt integer NOT NULL)")

    @retry.listener("note", interval_seconds=0.01)
    async def note(number: int, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise OSError("once is not enough")
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s, %s)", (number, ctx.attempt))

    def register() -> None:
        for number in range(20):
            retry.register(None, "note", number)
        with psycopg.connect(pooled.dsn, prepare_threshold=None) as connection:
            for number in range(20, 40):
                retry.register(connection, "note", number)

    async with retry.running():
        # In a thread: whoever waits for a connection on the loop stops those that have one.
        await asyncio.to_thread(register)
        async with await AsyncConnection.connect(pooled.dsn, prepare_threshold=None) as connection:
            for number in range(40, 60):
                await retry.register_async(connection, "note", number, unique_key=str(number))
        ended = "SELECT count(*) FROM reach_retry.tasks WHERE state = %s"
        await until(lambda: ground.query(ended, State.SUCCEEDED.value) == [(60,)])
    assert sorted(ground.query("SELECT number, attempt FROM effects")) == [(number, 2) for number in range(60)]
    assert nobody_prepared_anything(pooled)
