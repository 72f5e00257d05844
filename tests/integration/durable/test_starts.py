"""Where a consumer says so, work on what can be handed out starts with its claim: one statement, and as exact."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from agent_reach.durable import Action, Batch, Claim, Done, Engine, EngineSettings, QueueSettings, Release
from agent_reach.durable.claims import Claimed

from .ground import FAST, LEASE, TABLE, Ground, RowQueue, ids, until
from .test_fence import Overtaken

AS_IT_WAS = "owner IS NULL AND attempts = 0 AND started_at IS NULL AND NOT suspect AND state = 'PENDING'"


def at_once() -> bool:
    """What a consumer says whose handler starts its rows first of all."""
    return True


class StartingQueue(RowQueue):
    """Notes whose start it was asked for beside their claim."""

    def __init__(self) -> None:
        super().__init__()
        self.started_later: set[UUID] = set()

    async def start(self, connection: AsyncConnection[Any], claims: Sequence[Claim]) -> dict[UUID, int]:
        self.started_later |= ids(claims)
        return await super().start(connection, claims)


class OneOddClaim(StartingQueue):
    """The first claim that brings rows is committed, and then something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.odd: UUID | None = None

    async def claim(self, connection: AsyncConnection[Any], owner: UUID, limit: int, **options: Any) -> Claimed:
        claimed = await super().claim(connection, owner, limit, **options)
        if claimed.claims and self.odd is None:
            assert all(claim.started for claim in claimed.claims), "else this proves nothing"
            self.odd = owner
            return await self.happen(claimed)
        return claimed

    async def happen(self, claimed: Claimed) -> Claimed:
        raise NotImplementedError


async def test_one_statement_claims_and_starts_what_can_be_handed_out(ground: Ground) -> None:
    queue, seen = StartingQueue(), list[tuple[bool, int]]()

    async def handle(batch: Batch) -> None:
        at_work = ground.count("state = 'SENDING' AND started_at IS NOT NULL")
        before = [claim.started for claim in batch.claims]
        for claim in await batch.start():
            seen.append((all(before), claim.attempts))
            batch.settle(claim, Done())
        assert at_work >= len(before)

    ground.insert(30)
    async with ground.engine(handle, queue=queue, starts=at_once):
        await ground.until_finished(30)
    assert seen == [(True, 1)] * 30
    assert queue.started_later == set()
    assert ground.count("attempts = 1 AND claim_no = 1") == 30


async def test_never_are_more_started_than_can_be_at_work(ground: Ground) -> None:
    queue, go, at_work = StartingQueue(), asyncio.Event(), set[UUID]()

    async def handle(batch: Batch) -> None:
        at_work.update(ids(await batch.start()))
        await go.wait()
        for claim in batch.claims:
            batch.settle(claim, Done())

    ground.insert(100)
    limits = QueueSettings(slots=60, concurrency=20, batch_size=10, scan_interval_seconds=0.2)
    async with ground.engine(handle, queue=queue, limits=limits, starts=at_once):
        await until(lambda: ground.count("owner IS NOT NULL") == 30 and len(at_work) == 20)
        assert {row for (row,) in ground.query(f"SELECT id FROM {TABLE} WHERE started_at IS NOT NULL")} == at_work
        go.set()
        await ground.until_finished(100)
    assert queue.started_later, "those that were claimed for the places to come"
    assert ground.count("attempts = 1") == 100


async def test_where_few_can_be_at_work_rows_are_claimed_ahead_of_their_start(ground: Ground) -> None:
    queue = StartingQueue()

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            batch.settle(claim, Done())

    rows = ground.insert(30)
    limits = QueueSettings(slots=60, concurrency=3, batch_size=3, scan_interval_seconds=0.2)
    async with ground.engine(handle, queue=queue, limits=limits, starts=at_once):
        await ground.until_finished(30)
    assert queue.started_later == set(rows)
    assert ground.count("attempts = 1") == 30


async def test_what_was_just_claimed_when_the_engine_stops_is_handed_back_as_it_was(ground: Ground) -> None:
    class Slow(OneOddClaim):
        claimed, stopping = asyncio.Event(), asyncio.Event()

        async def happen(self, claimed: Claimed) -> Claimed:
            self.claimed.set()
            await self.stopping.wait()
            return claimed

    def full(engine: Engine) -> bool:
        with engine.reserve(TABLE, 1, ahead_of_others=True) as place:
            return not place.granted

    async def handle(batch: Batch) -> None:
        raise AssertionError(f"{len(batch.claims)} rows were handed out")

    queue = Slow()
    ground.insert(5)
    async with ground.engine(handle, queue=queue, starts=at_once) as engine:
        await queue.claimed.wait()
        assert ground.count("attempts = 1 AND state = 'SENDING'") == 5
        stopped = asyncio.create_task(engine.stop())
        await until(lambda: full(engine))
        queue.stopping.set()
        await stopped
    assert ground.count(AS_IT_WAS) == 5
    assert ground.query("SELECT id FROM work.returned") == []


async def test_what_cannot_be_at_work_when_its_claim_comes_back_goes_back_as_it_was(ground: Ground) -> None:
    class Changing(OneOddClaim):
        async def happen(self, claimed: Claimed) -> Claimed:
            return claimed

    queue = Changing()
    seen: list[tuple[bool, int]] = []

    async def handle(batch: Batch) -> None:
        seen.extend((claim.started, claim.claim_no) for claim in batch.claims)
        for claim in await batch.start():
            batch.settle(claim, Done())

    ground.insert(5)
    # As soon as the first claim is on its way, the handler would not go to work at once any more.
    async with ground.engine(handle, queue=queue, starts=lambda: queue.odd is None):
        await ground.until_finished(5)
    assert seen == [(False, 2)] * 5
    assert ground.count("attempts = 1") == 5
    assert ground.query("SELECT id FROM work.returned") == []


async def test_a_lease_lost_while_a_claim_comes_back_makes_no_suspects(ground: Ground) -> None:
    class Late(OneOddClaim):
        async def happen(self, claimed: Claimed) -> Claimed:
            ground.query("DELETE FROM work.instance WHERE id = %s", self.odd)
            await until(lambda: engine.instance_id != self.odd)
            return claimed

    seen: list[tuple[bool, int]] = []

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            seen.append((claim.suspect, claim.attempts))
            batch.settle(claim, Done())

    ground.insert(5)
    # Nobody sweeps: they must come back by themselves.
    rarely = EngineSettings(lease_seconds=3, heartbeat_seconds=0.2, sweep_seconds=600)
    async with ground.engine(handle, queue=Late(), starts=at_once, settings=rarely) as engine:
        await ground.until_finished(5)
    assert seen == [(False, 1)] * 5
    assert ground.query("SELECT id FROM work.returned") == []


async def test_a_process_that_sleeps_beyond_its_lease_before_it_reads_a_claim_does_not_go_to_work_on_it(
    ground: Ground,
) -> None:
    class Asleep(OneOddClaim):
        async def happen(self, claimed: Claimed) -> Claimed:
            time.sleep(2 * LEASE.lease_seconds)  # noqa: ASYNC251 - the loop stands still, and the heartbeat with it
            return claimed

    seen: list[int] = []

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            seen.append(claim.claim_no)
            batch.settle(claim, Done())

    ground.insert(5)
    async with ground.engine(handle, queue=Asleep(), starts=at_once):
        await ground.until_finished(5)
    # Whoever lives may have taken the rows meanwhile: whether they are ours is for the fence to say.
    assert len(seen) == 5
    assert 1 not in seen


async def test_a_row_that_its_handler_is_still_at_work_on_goes_back_until_that_has_ended(ground: Ground) -> None:
    class NothingAhead(RowQueue):
        async def claim(self, connection: AsyncConnection[Any], owner: UUID, limit: int, **options: Any) -> Claimed:
            return await super().claim(connection, owner, 0 if options["horizon_seconds"] else limit, **options)

    ground.insert(1)
    handler = Overtaken(ground)
    async with ground.engine(handler, queue=NothingAhead(), starts=at_once):
        await handler.told.wait()
        # 1 was lost, 2 is the operator's, 3 and 4 meet the handler.
        await until(lambda: ground.count("claim_no >= 4") == 1)
        handler.go_on.set()
        await ground.until_finished(1)
    assert ground.count("claim_no < 20") == 1, "it must not be claimed over and over"
    assert ground.query("SELECT result FROM work.outcomes") == [("attempt 2, lost: False",)]
    assert ground.query("SELECT id FROM work.returned") == []


async def test_a_claim_whose_answer_went_missing_costs_no_attempt(ground: Ground) -> None:
    class Forgetful(OneOddClaim):
        async def happen(self, claimed: Claimed) -> Claimed:
            return claimed._replace(claims=[])

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            batch.settle(claim, Done())

    queue = Forgetful()
    ground.insert(5)
    async with ground.engine(handle, queue=queue, starts=at_once) as engine:
        await ground.until_finished(5)
        assert engine.instance_id == queue.odd, "its lease was not lost: it found them by itself"
    assert ground.count("claim_no = 2 AND attempts = 1") == 5
    assert ground.query("SELECT id FROM work.returned") == []


@pytest.mark.parametrize(
    "answer", [Done(counted=False), Release(counted=False), None], ids=["done", "release", "raises"]
)
async def test_a_row_that_no_work_was_done_for_gets_its_attempt_back(ground: Ground, answer: Action | None) -> None:
    calls: list[int] = []

    async def handle(batch: Batch) -> None:
        (claim,) = batch.claims
        calls.append(claim.attempts)
        if len(calls) > 1:
            batch.settle((await batch.start())[0], Done())
        elif answer is None:
            raise OSError("before any work")
        else:
            batch.settle(claim, answer)

    ground.insert(1)
    async with ground.engine(handle, starts=at_once):
        await ground.until_finished(1)
    again = not isinstance(answer, Done)
    assert (calls[0], len(calls)) == (1, 1 + again)
    assert ground.count(f"attempts = {int(again)} AND NOT suspect AND started_at IS NULL") == 1
    assert ground.query("SELECT id FROM work.returned") == []


async def test_a_suspect_starts_when_it_is_its_turn(ground: Ground) -> None:
    queue, seen = StartingQueue(), list[tuple[bool, bool]]()

    async def handle(batch: Batch) -> None:
        for claim in batch.claims:
            seen.append((claim.suspect, claim.started))
        for claim in await batch.start():
            batch.settle(claim, Done())

    suspects = ground.insert(3, suspect=True)
    async with ground.engine(handle, queue=queue, limits=FAST, starts=at_once):
        await ground.until_finished(3)
    assert seen == [(True, False)] * 3
    assert queue.started_later == set(suspects)
