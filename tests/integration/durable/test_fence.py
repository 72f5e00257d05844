"""Whoever was paused, cut off or overruled cannot overwrite who came after."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from agent_reach.durable import Answer, Batch, Claim, ClaimLostError, Done, Later, Release, Settlement

from .ground import FAST, LEASE, TABLE, Ground, RowQueue, lost, until


async def test_the_late_answer_of_a_paused_owner_is_refused(ground: Ground) -> None:
    ground.insert(1)
    queue, paused, successor = RowQueue(), ground.instance(), ground.instance()
    async with await AsyncConnection.connect(ground.dsn, autocommit=True) as connection:
        (old,) = (await queue.claim(connection, paused, 1)).claims
        assert await queue.start(connection, [old]) == {old.id: 1}
        ground.query("DELETE FROM work.instance WHERE id = %s", paused)
        assert (await queue.sweep(connection, 100))[0] == 1
        (new,) = (await queue.claim(connection, successor, 1, suspects=True)).claims

        assert await queue.settle(connection, [Settlement(old, Done())]) == set()
        assert await queue.start(connection, [old]) == {}
        assert (new.claim_no, new.suspect, new.attempts) == (2, True, 0)
        assert await queue.settle(connection, [Settlement(new, Done())]) == {new.key}
        assert await queue.settle(connection, [Settlement(new, Done())]) == set()


async def test_an_answer_to_an_earlier_claim_is_refused_though_the_same_owner_holds_the_row_again(
    ground: Ground,
) -> None:
    ground.insert(1)
    queue, owner = RowQueue(), ground.instance()
    async with await AsyncConnection.connect(ground.dsn, autocommit=True) as connection:
        (old,) = (await queue.claim(connection, owner, 1)).claims
        ground.query(f"UPDATE {TABLE} SET owner = NULL")
        (new,) = (await queue.claim(connection, owner, 1)).claims
        assert (old.claim_no, new.claim_no) == (1, 2)
        for action in (Done(), Later(), Release()):
            assert await queue.settle(connection, [Settlement(old, action)]) == set()
        assert await queue.start(connection, [old]) == {}
        assert await queue.settle(connection, [Settlement(old, Done()), Settlement(new, Later())]) == {new.key}


async def test_claims_of_two_owners_are_settled_and_started_together_each_by_its_own_fence(ground: Ground) -> None:
    ground.insert(4)
    queue, before, after = RowQueue(), ground.instance(), ground.instance()
    async with await AsyncConnection.connect(ground.dsn, autocommit=True) as connection:
        first, second = (await queue.claim(connection, before, 2)).claims
        third, fourth = (await queue.claim(connection, after, 2)).claims
        stranger = third._replace(owner=before)
        assert await queue.start(connection, [first, fourth, stranger]) == {first.id: 1, fourth.id: 1}
        settlements = [
            Settlement(first, Done()),
            Settlement(second, Release()),
            Settlement(stranger, Done()),
            Settlement(fourth, Later(counted=False)),
        ]
        assert await queue.settle(connection, settlements) == {first.key, second.key, fourth.key}
    assert ground.count("finished_at IS NOT NULL AND attempts = 1") == 1
    assert ground.count("owner IS NULL AND finished_at IS NULL AND attempts = 0 AND started_at IS NULL") == 2
    assert ground.query(f"SELECT id FROM {TABLE} WHERE owner = %s", after) == [(third.id,)]


async def test_an_engine_that_lost_its_lease_is_told_and_goes_on_under_a_fresh_one(ground: Ground) -> None:
    ground.insert(1)
    told = asyncio.Event()
    answers: list[bool] = []
    refused: list[UUID] = []

    async def handle(batch: Batch) -> None:
        (claim,) = await batch.start()
        if told.is_set():
            batch.settle(claim, Done(), "second")
            return
        ground.query("DELETE FROM work.instance")
        await lost(batch, claim)
        told.set()
        assert batch.lost(claim)
        assert batch.claims == ()
        answers.append(await batch.settle(claim, Done(), "first"))
        try:
            async with batch.transaction(claim):
                pass
        except ClaimLostError:
            refused.append(claim.id)

    async with ground.engine(handle) as engine:
        before = engine.instance_id
        await ground.until_finished(1)
        assert engine.instance_id != before
    assert answers == [False]
    assert len(refused) == 1
    assert ground.query("SELECT result FROM work.outcomes") == [("second",)]


async def test_a_claim_taken_away_by_an_operator_is_noticed(ground: Ground) -> None:
    ground.insert(1)
    noticed: list[Claim] = []

    async def handle(batch: Batch) -> None:
        (claim,) = await batch.start()
        ground.query(f"UPDATE {TABLE} SET owner = NULL, claim_no = claim_no + 1, finished_at = clock_timestamp()")
        await lost(batch, claim)
        noticed.append(claim)

    async with ground.engine(handle):
        await until(lambda: len(noticed) == 1)


def cancel_and_retry(ground: Ground) -> None:
    """What an operator does to a row that is at work."""
    ground.query(f"UPDATE {TABLE} SET owner = NULL, claim_no = claim_no + 1, started_at = NULL WHERE label = ''")
    ground.query("SELECT pg_notify(%s, '0')", TABLE)


class Overtaken:
    """A handler whose row is cancelled, put back, and claimed again while it is at work on it.

    Attributes:
        told: set when it has heard of that.
        go_on: to be set for it to end.
    """

    def __init__(self, ground: Ground) -> None:
        self.told, self.go_on = asyncio.Event(), asyncio.Event()
        self._ground = ground
        self._at_work = 0

    async def __call__(self, batch: Batch) -> None:
        (claim,) = await batch.start()
        self._at_work += 1
        assert self._at_work == 1, "a row must not meet itself"
        if claim.claim_no == 1:
            cancel_and_retry(self._ground)
            await lost(batch, claim)
            self.told.set()
            await self.go_on.wait()
        else:
            # Whatever the first claim's loss brought about, this one is ours.
            await batch.settle(claim, Done(), f"attempt {claim.attempts}, lost: {batch.lost(claim)}")
        self._at_work -= 1


async def test_of_two_answers_for_one_row_that_are_written_together_only_the_later_claims_counts(
    ground: Ground,
) -> None:
    ground.insert(1)
    answers: list[Answer] = []
    # So patient that the first answer is written together with the second, which is urgent.
    patient = replace(FAST)
    object.__setattr__(patient, "flush_seconds", 3600.0)

    async def handle(batch: Batch) -> None:
        (claim,) = await batch.start()
        if claim.claim_no == 1:
            cancel_and_retry(ground)
            answers.append(batch.settle(claim, Done(), "first"))
        else:
            answers.append(batch.settle(claim, Done(), "second", urgent=True))

    async with ground.engine(handle, limits=patient):
        await ground.until_finished(1)
    assert [await answer for answer in answers] == [False, True]
    assert ground.query("SELECT result FROM work.outcomes") == [("second",)]


@pytest.mark.parametrize("sweep_seconds", [600, 0.1], ids=["told by the claim", "beside the reconciling"])
async def test_a_row_claimed_again_while_its_handler_is_at_work_starts_only_when_that_has_ended(
    ground: Ground, sweep_seconds: float
) -> None:
    ground.insert(1)
    handler = Overtaken(ground)
    # No scan by the clock: all that goes on here is told, at once.
    limits = replace(FAST, scan_interval_seconds=600, full_scan_seconds=600)
    settings = replace(LEASE, sweep_seconds=sweep_seconds)
    async with ground.engine(handler, limits=limits, settings=settings) as engine:
        await handler.told.wait()
        await until(lambda: engine.stats().queues[TABLE].heap == 1)
        assert ground.count("owner IS NOT NULL AND claim_no = 3") == 1
        handler.go_on.set()
        await ground.until_finished(1)
    assert ground.query("SELECT result FROM work.outcomes") == [("attempt 2, lost: False",)]


async def test_the_loss_of_an_earlier_claim_that_is_heard_of_late_does_not_touch_the_later_one(ground: Ground) -> None:
    (row,) = ground.insert(1)
    go_on = asyncio.Event()

    async def handle(batch: Batch) -> None:
        (claim,) = await batch.start()
        if claim.claim_no == 1:
            batch.settle(claim, Later())
            return
        await go_on.wait()
        batch.settle(claim, Done(), f"lost: {batch.lost(claim)}")

    async with ground.engine(handle) as engine:
        await until(lambda: ground.count("claim_no = 2 AND started_at IS NOT NULL") == 1)
        with engine.reserve(TABLE, 1) as place:
            # As if the answer to the first claim had been under way until now.
            place.adopt([Claim(row, place.owner, 1, 0, datetime.now(UTC), row={"label": "", "state": "PENDING"})])
        assert engine.stats().queues[TABLE].heap == 1
        await until(lambda: engine.stats().queues[TABLE].heap == 0)
        go_on.set()
        await ground.until_finished(1)
    assert ground.query("SELECT result FROM work.outcomes") == [("lost: False",)]
    assert ground.count("claim_no = 2") == 1


async def test_a_row_claimed_again_need_not_wait_for_its_batch_mates(ground: Ground) -> None:
    ground.insert(1)
    ground.insert(1, label="other")
    again = asyncio.Event()

    async def handle(batch: Batch) -> None:
        claims = {claim.row["label"]: claim for claim in await batch.start()}
        if "other" not in claims:
            batch.settle(claims[""], Done())
            again.set()
            return
        cancel_and_retry(ground)
        await lost(batch, claims[""])
        # That work on it has ended here is all that this says.
        assert not await batch.settle(claims[""], Done())
        await again.wait()
        batch.settle(claims["other"], Done())

    async with ground.engine(handle):
        await ground.until_finished(2)
    assert again.is_set()


async def test_a_busy_loop_keeps_its_lease_and_a_dead_one_loses_it_until_it_turns_again(ground: Ground) -> None:
    async def handle(batch: Batch) -> None:
        raise AssertionError("there is nothing to do")

    def expires() -> tuple[float, bool]:
        moment, over = ground.query(
            "SELECT extract(epoch FROM expires_at)::float8, expires_at < clock_timestamp() FROM work.instance"
        )[0]
        return moment, over

    async with ground.engine(handle) as engine:
        owner = engine.instance_id
        first = expires()[0]
        deadline = time.monotonic() + 30
        # From here on the loop stands still, because this coroutine does not give way.
        while expires()[0] <= first:
            assert time.monotonic() < deadline, "a loop that is merely busy must not lose its lease"
            time.sleep(0.02)  # noqa: ASYNC251 - the point of the test
        while not expires()[1]:
            assert time.monotonic() < deadline, "a loop that is dead must not renew its lease"
            time.sleep(0.02)  # noqa: ASYNC251 - the point of the test
        # Nobody has buried it: it lives on.
        await until(lambda: not expires()[1])
        assert engine.instance_id == owner


async def test_rows_that_the_table_holds_for_us_and_we_do_not_know_are_released(ground: Ground) -> None:
    async def handle(batch: Batch) -> None:
        for claim in batch.claims:
            batch.settle(claim, Done())

    async with ground.engine(handle) as engine:
        ground.insert(3, owner=engine.instance_id, claim_no=1)
        await ground.until_finished(3)
    assert ground.count("claim_no = 2") == 3
