"""What a handler answers is written, together with the domain's part or not at all."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from agent_reach.durable import Answer, Batch, Done, Later, QueueSettings, Release

from .ground import TABLE, Ground, until


async def test_waiting_costs_no_attempt(ground: Ground) -> None:
    ground.insert(5)
    rounds = 0

    async def handle(batch: Batch) -> None:
        nonlocal rounds
        rounds += 1
        for claim in await batch.start():
            batch.settle(claim, Later(after_seconds=0.01, counted=False) if rounds < 20 else Done())

    async with ground.engine(handle):
        await ground.until_finished(5)
    assert ground.count("attempts = 1 AND claim_no > 1") == 5


async def test_trying_again_costs_one_attempt_each(ground: Ground) -> None:
    ground.insert(1)
    attempts: list[int] = []

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            attempts.append(claim.attempts)
            batch.settle(claim, Done() if claim.attempts == 4 else Later(after_seconds=0.01))

    async with ground.engine(handle):
        await ground.until_finished(1)
    assert attempts == [1, 2, 3, 4]


async def test_a_row_put_off_to_a_moment_waits_for_it(ground: Ground) -> None:
    ground.insert(1)
    moment = datetime.now(UTC) + timedelta(hours=7)

    async def handle(batch: Batch) -> None:
        for claim in batch.claims:
            assert await batch.settle(claim, Later(run_at=moment))

    async with ground.engine(handle):
        await until(lambda: ground.count("claim_no = 1 AND owner IS NULL") == 1)
    assert ground.query(f"SELECT run_at, attempts FROM {TABLE}") == [(moment, 0)]


async def test_a_row_handed_back_before_it_started_is_as_it_was(ground: Ground) -> None:
    ground.insert(1)
    before = ground.query(f"SELECT run_at, attempts, state FROM {TABLE}")
    answered = asyncio.Event()

    async def handle(batch: Batch) -> None:
        for claim in batch.claims:
            if claim.claim_no == 1:
                await batch.settle(claim, Release())
                assert ground.query(f"SELECT run_at, attempts, state FROM {TABLE}") == before
                answered.set()
            else:
                batch.settle(claim, Done())

    async with ground.engine(handle):
        await ground.until_finished(1)
    assert answered.is_set()


@pytest.mark.parametrize("raises", [True, False])
async def test_what_a_handler_forgets_or_fails_comes_again_a_while_later(ground: Ground, *, raises: bool) -> None:
    ground.insert(6)
    batches = 0

    async def handle(batch: Batch) -> None:
        nonlocal batches
        batches += 1
        claims = await batch.start()
        done = [claim for claim in claims if claim.attempts == 4]
        for claim in done:
            batch.settle(claim, Done())
        if raises and len(done) < len(claims):
            raise RuntimeError("a defect")

    async with ground.engine(handle):
        await ground.until_finished(6)
    assert ground.count("attempts = 4") == 6
    assert batches <= 6 * 4, "it must not spin"


async def test_answering_twice_is_refused(ground: Ground) -> None:
    ground.insert(1)
    refused: list[str] = []

    async def handle(batch: Batch) -> None:
        (claim,) = batch.claims
        batch.settle(claim, Done())
        try:
            batch.settle(claim, Later())
        except ValueError as error:
            refused.append(str(error))

    async with ground.engine(handle):
        await ground.until_finished(1)
    assert "settled already" in refused[0]


async def test_what_apply_writes_commits_with_the_answer_and_a_poison_one_spoils_no_other(ground: Ground) -> None:
    rows = ground.insert(50)
    poison = rows[17]
    answers: dict[UUID, list[bool]] = {row: [] for row in rows}

    async def handle(batch: Batch) -> None:
        async def one(claim_id: UUID, stored: Answer) -> None:
            answers[claim_id].append(await stored)

        async with asyncio.TaskGroup() as group:
            for claim in await batch.start():
                result = "poison" if claim.id == poison and claim.attempts < 3 else "sent"
                group.create_task(one(claim.id, batch.settle(claim, Done(), result)))

    async with ground.engine(handle):
        await ground.until_finished(50)
    assert answers.pop(poison) == [False, False, True]
    assert all(stored == [True] for stored in answers.values())
    outcomes = ground.query("SELECT id, attempts FROM work.outcomes")
    assert len(outcomes) == 50
    assert dict(outcomes) == {row: 3 if row == poison else 1 for row in rows}


async def test_a_handlers_own_transaction_commits_with_the_answer_or_not_at_all(ground: Ground) -> None:
    ground.insert(1)

    async def handle(batch: Batch) -> None:
        (claim,) = await batch.start()
        try:
            async with batch.transaction(claim, result="kept") as connection:
                await connection.execute(
                    "INSERT INTO work.outcomes VALUES (%s, %s, 'own')", (claim.id, claim.attempts)
                )
                if claim.attempts == 1:
                    await connection.execute("SELECT 1 / 0")
        except psycopg.errors.DivisionByZero:
            batch.settle(claim, Later())

    async with ground.engine(handle):
        await ground.until_finished(1)
    assert sorted(ground.query("SELECT attempts, result FROM work.outcomes")) == [(2, "kept"), (2, "own")]


async def test_answers_are_written_together_and_an_urgent_one_waits_for_no_company(ground: Ground) -> None:
    rows = ground.insert(21)
    # So patient that only the urgent answer explains that anything is written.
    patient = QueueSettings(scan_interval_seconds=0.2)
    object.__setattr__(patient, "flush_seconds", 3600.0)

    async def handle(batch: Batch) -> None:
        *others, last = batch.claims
        for claim in others:
            batch.settle(claim, Done())
        batch.settle(last, Done(), urgent=True)

    async with ground.engine(handle, limits=patient):
        await ground.until_finished(len(rows))
    assert ground.query(f"SELECT count(DISTINCT xmin::text) FROM {TABLE}") == [(1,)]
