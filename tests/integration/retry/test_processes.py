"""Processes that are killed, paused and stopped: real processes, real signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent_reach.retry import Retries, State

from .field import APPLICATION, Field, until

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def runs(retry: Retries, field: Field) -> None:
    field.query("CREATE TABLE runs (number integer NOT NULL, name text NOT NULL)")
    field.query(f"GRANT INSERT ON runs TO {APPLICATION}")


@asynccontextmanager
async def process(field: Field, name: str = "one", *more: str, **settings: Any) -> AsyncIterator[Process]:
    """A process that does tasks; killed at the end of the block if it still lives."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.retry.process",
        field.dsn,
        name,
        *more,
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "REACH_TEST_RETRY": json.dumps(settings)},
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            started.kill()
        await started.communicate()


async def said(started: Process) -> str:
    """Returns the next line that is meant for us and no log."""
    assert started.stdout is not None
    async with asyncio.timeout(60):
        async for line in started.stdout:
            if line.startswith(b"> "):
                return line[2:].decode().strip()
    raise AssertionError("the process ended without a word")


async def test_killed_with_tasks_at_work_and_ahead_and_started_again_under_its_name_all_are_done_once(
    retry: Retries, field: Field
) -> None:
    naps = [retry.register(None, "nap", 60.0) for _ in range(3)]
    async with process(field) as first:
        await until(lambda: field.tasks("state = 'RUNNING'") == 3)
        soon = [retry.register(None, "count", number, first_delay_seconds=1.9) for number in range(20)]
        await until(lambda: field.tasks("owner IS NOT NULL") > 3)
        first.kill()
        await first.wait()
    field.query("UPDATE reach_retry.tasks SET payload = '0.01' WHERE code = 'nap'")
    async with process(field):
        for scheduled in (*naps, *soon):
            assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
    assert field.query("SELECT number, count(*) FROM runs GROUP BY number ORDER BY number") == [
        (0, 4),
        *((number, 1) for number in range(1, 20)),
    ]
    task, attempts = retry.tasks.show(naps[0].task_id)
    assert task.attempts == 1, "it was in company: nobody knows who was to blame"
    assert [attempt.error for attempt in attempts] == ["interrupted: the process that worked on it ended", None]


async def test_a_paused_process_that_wakes_after_another_finished_its_task_is_refused_and_told(
    retry: Retries, field: Field
) -> None:
    task = retry.register(None, "hold", 7)
    async with process(field, "paused") as paused:
        assert await said(paused) == "started"
        paused.send_signal(signal.SIGSTOP)
        async with process(field, "second") as second:
            assert await said(second) == "started"
            assert second.stdin is not None
            second.stdin.write(b"go on\n")
            assert await said(second) == "written"
            assert await field.until_ended(task.task_id) is State.SUCCEEDED
        assert paused.stdin is not None
        paused.stdin.write(b"go on\n")
        paused.send_signal(signal.SIGCONT)
        assert (await said(paused)).startswith("refused")
    assert field.query("SELECT number, name FROM runs") == [(7, "second")]
    assert field.state(task.task_id) is State.SUCCEEDED


async def test_of_tasks_claimed_together_the_one_that_kills_its_process_ends_alone_and_the_others_succeed(
    retry: Retries, field: Field
) -> None:
    poison = retry.register(None, "kill", 0, max_attempts=2)
    others = [retry.register(None, "nap", 0.5) for _ in range(6)]
    while not field.state(poison.task_id).final:
        async with process(field) as worker:
            dead = asyncio.create_task(worker.wait())
            await until(lambda dead=dead: dead.done() or field.state(poison.task_id).final)  # type: ignore[misc]
    async with process(field):
        for task in others:
            assert await field.until_ended(task.task_id) is State.SUCCEEDED
    killed, _ = retry.tasks.show(poison.task_id)
    assert (killed.state, killed.attempts) == (State.EXHAUSTED, 2)
    assert field.tasks("state = 'SUCCEEDED'") == 6


async def test_told_to_stop_a_process_ends_its_work_and_hands_the_rest_back(retry: Retries, field: Field) -> None:
    working = retry.register(None, "nap", 2.0)
    async with process(field) as worker:
        await until(lambda: field.tasks("state = 'RUNNING'") == 1)
        waiting = retry.register(None, "count", 1, first_delay_seconds=1.9)
        await until(lambda: field.tasks("owner IS NOT NULL") == 2)
        worker.terminate()
        assert await worker.wait() == 0
    assert field.state(working.task_id) is State.SUCCEEDED
    assert field.query("SELECT owner, attempts, state FROM reach_retry.tasks WHERE id = %s", waiting.task_id) == [
        (None, 0, "WAITING")
    ]


async def test_a_task_of_twice_its_lease_runs_once(retry: Retries, field: Field) -> None:
    task = retry.register(None, "nap", 4.0)
    async with process(field, "one"), process(field, "two"):
        assert await field.until_ended(task.task_id) is State.SUCCEEDED
    assert len(field.query("SELECT * FROM runs")) == 1
    assert retry.tasks.show(task.task_id)[0].attempts == 1


async def test_two_processes_that_register_the_same_keys_make_one_task_of_each_and_do_it_once(
    retry: Retries, field: Field
) -> None:
    async with process(field, "one", "60") as one, process(field, "two", "60") as two:
        for each in (one, two):
            assert await said(each) == "ready"
        for each in (one, two):
            assert each.stdin is not None
            each.stdin.write(b"go\n")
        created = [int(await said(each)) for each in (one, two)]
        assert sum(created) == 60
        await until(lambda: field.tasks("state = 'SUCCEEDED'") == 60)
    assert sorted(number for (number,) in field.query("SELECT number FROM runs")) == list(range(60))
    assert field.query("SELECT DISTINCT attempts FROM reach_retry.tasks") == [(1,)]


async def test_handlers_that_hold_the_interpreter_for_two_seconds_each_are_not_taken_for_dead(
    retry: Retries, field: Field
) -> None:
    """With the library's own lease and heartbeat, while another process looks for the dead all the time."""
    lease = {"instance_timeout_seconds": 30, "heartbeat_seconds": 3, "concurrency": 2}
    async with process(field, "one", **lease), process(field, "two", **lease):
        await until(lambda: field.query("SELECT count(*) FROM reach_retry.instance") == [(2,)])
        born = field.query("SELECT id, name FROM reach_retry.instance ORDER BY name")
        hogs = [retry.register(None, code, 2.0) for code in ("hog", "hog on the loop") for _ in range(2)]
        for task in hogs:
            assert await field.until_ended(task.task_id) is State.SUCCEEDED
        assert field.query("SELECT id, name FROM reach_retry.instance ORDER BY name") == born, "each kept its lease"
    assert field.query("SELECT number, count(*) FROM runs GROUP BY number ORDER BY number") == [(0, 2), (1, 2)]
    assert field.query("SELECT attempt, error, count(*) FROM reach_retry.attempts GROUP BY 1, 2") == [(1, None, 4)]


async def test_a_process_ends_when_it_is_told_to_though_a_handler_hangs(retry: Retries, field: Field) -> None:
    task = retry.register(None, "hang", 1)
    async with process(field, drain_seconds=0.5) as started:
        assert await said(started) == "hanging"
        started.terminate()
        async with asyncio.timeout(30):
            assert await started.wait() == 0
    assert field.state(task.task_id) is State.WAITING, "it is handed back"
