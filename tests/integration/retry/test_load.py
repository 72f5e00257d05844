"""Many tasks, and several instances."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import psycopg

from agent_reach.retry import Retries, RetrySettings, State

from .field import FAST, Field, until


async def test_ten_thousand_due_in_the_same_second_all_run_within_the_limits(retry: Retries, field: Field) -> None:
    at_once, most = 0, 0
    runs: set[int] = set()
    retry = Retries(field.dsn, settings=RetrySettings(**{**FAST, "concurrency": 50, "max_in_memory": 200}))

    @retry.listener("one")
    async def one(number: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        runs.add(number)
        at_once -= 1

    one_of_them = retry.register(None, "one", 0).task_id
    field.query(
        "INSERT INTO reach_retry.tasks (id, code, payload, created_at, run_at, priority, first_delay_seconds,"
        " max_attempts, strategy, jitter_ratio) SELECT gen_random_uuid(), code, to_jsonb(n), created_at, run_at,"
        " priority, 0, 3, strategy, 0 FROM reach_retry.tasks, generate_series(1, 9999) AS n WHERE id = %s",
        one_of_them,
    )
    held = 0
    async with retry.running() as worker:
        while field.tasks("state = 'SUCCEEDED'") < 10_000:
            queue = worker.engine.stats().queues["reach_retry.tasks"]
            held = max(held, queue.heap + queue.in_flight + queue.settling)
            await asyncio.sleep(0.05)
    assert runs == set(range(10_000))
    assert 1 < most <= 50
    assert 0 < held <= 200


async def test_instances_share_the_work_each_task_runs_once_and_one_that_joins_gets_its_part(
    retry: Retries, field: Field
) -> None:
    runs: list[tuple[int, int]] = []

    def instance(name: int) -> Retries:
        made = Retries(field.dsn, settings=RetrySettings(**{**FAST, "concurrency": 5}))

        @made.listener("one")
        async def one(number: int) -> None:
            await asyncio.sleep(0.02)
            runs.append((name, number))

        return made

    with psycopg.connect(field.dsn) as connection:
        for number in range(600):
            retry.register(connection, "one", number)
    async with AsyncExitStack() as stack:
        for name in (1, 2):
            await stack.enter_async_context(instance(name).running())
        await until(lambda: len(runs) >= 200)
        await stack.enter_async_context(instance(3).running())
        await until(lambda: field.tasks("state = 'SUCCEEDED'") == 600)
    assert sorted(number for _, number in runs) == list(range(600))
    shares = [sum(name == each for name, _ in runs) for each in (1, 2, 3)]
    assert abs(shares[0] - shares[1]) <= 100
    assert shares[2] >= 60


async def test_a_long_queue_of_another_code_does_not_hold_up_ours(retry: Retries, field: Field) -> None:
    @retry.listener("ours")
    async def ours(_: int) -> None:
        pass

    with psycopg.connect(field.dsn) as connection:
        for number in range(2000):
            retry.register(connection, "theirs", number, priority=9)
    task = retry.register(None, "ours", 1, priority=0)
    async with retry.running():
        assert await field.until_ended(task.task_id) is State.SUCCEEDED
    assert field.tasks("code = 'theirs' AND attempts = 0 AND claim_no = 0") == 2000
