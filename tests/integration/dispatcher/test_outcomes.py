"""Outcomes: every one once and in order, whoever writes them and however long that takes."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import psycopg
import pytest

from agent_reach.v1 import dispatcher_pb2, message_pb2
from services.chassis.postgres import open_pool
from services.dispatcher import outcomes
from services.dispatcher.outcomes import Cursor, OutcomeReader
from tests.conftest import Dsns
from tests.support.dispatching import Dispatching, drop, intent
from tests.support.suite import Suite, running_suite

_INSERT = """
    INSERT INTO dispatcher.outcomes (tenant, intent_id, task_id, hop, user_id, scene, state, reason, channel, attempts)
    VALUES (%s, %s, gen_random_uuid(), 0, 'u', 's', 'SENT', %s, 'email', 1)
"""
_WRITERS, _EACH = 8, 60


@asynccontextmanager
async def reader_of(dsns: Dsns) -> AsyncIterator[OutcomeReader]:
    async with open_pool("engine", dsns.engine, 4) as pool:
        yield OutcomeReader(pool)


async def write(dsn: str, *reasons: str, tenant: str = "acme") -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        for reason in reasons:
            await connection.execute(_INSERT, (tenant, uuid.uuid4(), reason))


async def test_no_outcome_is_lost_and_none_comes_twice_while_transactions_commit_in_any_order(
    migrated: Dsns,
) -> None:
    rng = random.Random(7)
    written = 0

    async def writer(number: int) -> None:
        nonlocal written
        async with await psycopg.AsyncConnection.connect(migrated.engine, autocommit=True) as connection:
            for round_number in range(_EACH):
                async with connection.transaction():
                    await connection.execute(_INSERT, ("acme", uuid.uuid4(), f"{number}:{round_number}:a"))
                    # Some stay open while many others commit.
                    await asyncio.sleep(rng.choice((0, 0, 0.005, 0.05)))
                    await connection.execute(_INSERT, ("acme", uuid.uuid4(), f"{number}:{round_number}:b"))
                written += 2

    async with reader_of(migrated) as reader, open_pool("engine", migrated.engine, 1) as pool:
        seen: list[str] = []
        by_sequence: list[str] = []
        cursor, place = await reader.start("", from_now=False), 0
        writers = asyncio.gather(*(writer(number) for number in range(_WRITERS)))
        while True:
            ended = writers.done()
            rows, cursor = await reader.page(cursor, "", [], limit=50)
            seen += [row["reason"] for row in rows]
            # What a cursor on a plain sequence would have read meanwhile.
            async with pool.connection() as connection:
                query = "SELECT seq, reason FROM dispatcher.outcomes WHERE seq > %s ORDER BY seq"
                plain = await (await connection.execute(query, (place,))).fetchall()
            if plain:
                place = plain[-1][0]
                by_sequence += [row[1] for row in plain]
            if ended and not rows:
                break
        await writers
    assert len(seen) == len(set(seen)) == written == _WRITERS * _EACH * 2
    assert len(by_sequence) < written, "the control shows that such loads do make a plain sequence lose rows"


async def test_what_a_running_transaction_holds_back_comes_when_it_has_ended(migrated: Dsns) -> None:
    async with reader_of(migrated) as reader:
        cursor = await reader.start("", from_now=False)
        async with await psycopg.AsyncConnection.connect(migrated.engine) as slow:
            await slow.execute(_INSERT, ("acme", uuid.uuid4(), "slow"))
            await write(migrated.engine, "quick")
            rows, cursor = await reader.page(cursor, "", [])
            assert rows == []
        rows, cursor = await reader.page(cursor, "", [])
        assert [row["reason"] for row in rows] == ["slow", "quick"]
        assert (await reader.page(cursor, "", []))[0] == []


async def test_any_cursor_resumes_right_after_it(migrated: Dsns) -> None:
    async with reader_of(migrated) as reader:
        await write(migrated.engine, "1", "2", "3")
        await write(migrated.engine, "4")
        cursor = await reader.start("", from_now=False)
        for expected in "1234":
            (row,), cursor = await reader.page(cursor, "", [], limit=1)
            assert row["reason"] == expected
            cursor = await reader.start(str(cursor), from_now=False)


async def test_a_filtered_reader_moves_on_past_what_is_not_for_it(migrated: Dsns) -> None:
    async with reader_of(migrated) as reader:
        start = await reader.start("", from_now=False)
        await write(migrated.engine, "theirs", tenant="other")
        rows, after = await reader.page(start, "acme", [])
        assert rows == []
        assert after > start, "or it would read the others' outcomes over and over"
        await write(migrated.engine, "ours")
        rows, _ = await reader.page(after, "acme", [])
        assert [row["reason"] for row in rows] == ["ours"]


async def test_from_now_leaves_out_what_was_before(migrated: Dsns) -> None:
    async with reader_of(migrated) as reader:
        await write(migrated.engine, "before")
        cursor = await reader.start("", from_now=True)
        await write(migrated.engine, "after")
        rows, _ = await reader.page(cursor, "", [])
        assert [row["reason"] for row in rows] == ["after"]


# -- over gRPC ------------------------------------------------------------------------------------------------------


async def pages(line: Dispatching, count: int, **request: Any) -> list[dispatcher_pb2.StreamOutcomesResponse]:
    call = line.stub.StreamOutcomes(dispatcher_pb2.StreamOutcomesRequest(**request), metadata=line.metadata)
    try:
        return [await call.read() for _ in range(count)]
    finally:
        call.cancel()


async def test_a_stream_gives_a_tenants_outcomes_then_checkpoints_and_resumes_after_any_of_them(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "CHECKPOINT_SECONDS", 0.3)
    async with running_suite(suite, "dispatcher"):
        line = Dispatching(suite)
        items = [intent(drop(f"r{number}")) for number in range(3)]
        await line.accept(*items, intent(drop("theirs"), tenant="other"))
        page, checkpoint = await pages(line, 2, tenant="acme")
        assert {outcome.reason for outcome in page.outcomes} == {"r0", "r1", "r2"}
        assert {outcome.state for outcome in page.outcomes} == {message_pb2.STATE_SUPPRESSED}
        assert not checkpoint.outcomes
        assert Cursor.parse(checkpoint.cursor) >= Cursor.parse(page.cursor)
        await line.accept(intent(drop("next")))
        for cursor in (page.cursor, checkpoint.cursor):
            (resumed,) = await pages(line, 1, tenant="acme", cursor=cursor)
            assert [outcome.reason for outcome in resumed.outcomes] == ["next"]
        (single,) = await pages(line, 1, tenant="acme", intent_ids=[items[1].intent_id])
        assert [outcome.reason for outcome in single.outcomes] == ["r1"]


async def test_a_cursor_from_before_the_database_was_restored_is_refused(suite: Suite, migrated: Dsns) -> None:
    async with running_suite(suite, "dispatcher"):
        line = Dispatching(suite)
        await line.accept(intent(drop("r")))
        (page,) = await pages(line, 1)
        async with await psycopg.AsyncConnection.connect(migrated.owner) as connection:
            await connection.execute("UPDATE dispatcher.outcome_epoch SET epoch = 2")
        for cursor in (page.cursor, "nonsense"):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await pages(line, 1, cursor=cursor)
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
