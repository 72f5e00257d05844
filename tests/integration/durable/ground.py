"""What the tests of the durable engine share: a queue table, an engine on it, and how to wait for things."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from agent_reach.durable import (
    Batch,
    Claim,
    Consumer,
    Engine,
    EngineSettings,
    Handler,
    QueueSettings,
    Settlement,
    TableQueue,
    instance_table,
    queue_columns,
    queue_indexes,
    queue_storage,
)

TABLE = "work.rows"
FAST = QueueSettings(scan_interval_seconds=0.2, preload_multiplier=10, flush_seconds=0.01, failure_base_seconds=0.05)
LEASE = EngineSettings(lease_seconds=3, heartbeat_seconds=0.2, sweep_seconds=0.2, drain_seconds=5)
# For processes that are killed: short enough to wait for, long enough for a crowded machine.
DEADLY = EngineSettings(lease_seconds=2, heartbeat_seconds=0.2, sweep_seconds=0.2, drain_seconds=5)


def create_tables(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            f"""
            CREATE SCHEMA work;
            {instance_table("work")}
            CREATE TABLE {TABLE} (
                id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
                created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
                priority smallint NOT NULL DEFAULT 5,
                {queue_columns()},
                label text NOT NULL DEFAULT '',
                state text NOT NULL DEFAULT 'PENDING'
            ) {queue_storage()};
            {queue_indexes(TABLE)}
            CREATE TABLE work.outcomes (
                id uuid NOT NULL, attempts integer NOT NULL, result text,
                written_at timestamptz NOT NULL DEFAULT clock_timestamp()
            );
            CREATE TABLE work.returned (id uuid NOT NULL, state text NOT NULL);
            """
        )


class RowQueue(TableQueue):
    """A queue with a domain: the result goes into `outcomes`, and the result "poison" breaks a constraint."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            TABLE,
            ("label", "state"),
            start_assignments="state = 'SENDING'",
            release_assignments="state = CASE WHEN t.state = 'SENDING' THEN 'PENDING' ELSE t.state END",
            **options,
        )

    async def apply(self, connection: AsyncConnection[Any], settled: Sequence[Settlement]) -> None:
        async with connection.cursor() as cursor:
            await cursor.executemany(
                "INSERT INTO work.outcomes (id, attempts, result) VALUES (%s, %s, %s)",
                [
                    (None if s.result == "poison" else s.claim.id, s.claim.attempts, s.result)
                    for s in settled
                    if s.result is not None
                ],
            )

    async def returned(self, connection: AsyncConnection[Any], ids: Sequence[UUID]) -> None:
        await connection.execute(
            f"INSERT INTO work.returned SELECT id, state FROM {TABLE} WHERE id = ANY(%s)", (list(ids),)
        )


class Ground:
    """The database of one test."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def insert(self, count: int = 1, **columns: Any) -> list[UUID]:
        """Inserts rows in one transaction; a column's value is the same for all of them."""
        names = ["id", *columns]
        with psycopg.connect(self.dsn) as connection, connection.cursor() as cursor:
            ids = [uuid4() for _ in range(count)]
            cursor.executemany(
                f"INSERT INTO {TABLE} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})",
                [(row_id, *columns.values()) for row_id in ids],
            )
        return ids

    def instance(self) -> UUID:
        """An owner with a lease, without an engine."""
        owner = uuid4()
        self.query(
            "INSERT INTO work.instance (id, name, expires_at)"
            " VALUES (%s, 'test', clock_timestamp() + interval '1 hour')",
            owner,
        )
        return owner

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def count(self, condition: str = "true") -> int:
        count: int = self.query(f"SELECT count(*) FROM {TABLE} WHERE {condition}")[0][0]
        return count

    async def until_finished(self, count: int) -> None:
        await until(lambda: self.count("finished_at IS NOT NULL") == count)

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[AsyncConnectionPool]:
        async with AsyncConnectionPool(
            self.dsn,
            min_size=1,
            max_size=8,
            open=False,
            timeout=2,
            kwargs={"prepare_threshold": None, "autocommit": True},
        ) as pool:
            yield pool

    @asynccontextmanager
    async def engine(
        self,
        handler: Handler,
        *,
        queue: TableQueue | None = None,
        limits: QueueSettings = FAST,
        settings: EngineSettings = LEASE,
        listens: bool = True,
        log: Any = None,
        starts: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[Engine]:
        """An engine that has a lease."""
        async with self.pool() as pool:
            engine = Engine(
                pool,
                "work",
                [Consumer(queue or RowQueue(), handler, limits, starts)],
                direct_dsn=self.dsn if listens else None,
                settings=settings,
                log=log,
            )
            async with engine:
                await engine.wait_ready()
                yield engine


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Returns once the condition holds; fails when it does not come to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come to pass")
        await asyncio.sleep(0.02)


async def lost(batch: Batch, claim: Claim) -> None:
    """Returns when the claim is lost."""
    told = asyncio.Event()
    batch.on_lost(claim, told.set)
    await told.wait()


def ids(claims: Sequence[Claim]) -> set[UUID]:
    return {claim.id for claim in claims}
