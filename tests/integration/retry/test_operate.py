"""Invoking now, looking, retrying, cancelling, cleaning up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from agent_reach.durable.clock import DatabaseClock
from agent_reach.durable.scan import Scanner
from agent_reach.durable.tasks import cancel_and_wait
from agent_reach.retry import (
    AttemptFailedError,
    GiveUp,
    HandlerError,
    Report,
    Retries,
    RetrySettings,
    State,
    TaskNotFoundError,
    TaskStateError,
)
from agent_reach.retry.rounds import Rounds

from .field import FAST, Field, until


async def test_invoked_now_it_runs_here_and_returns_the_result(retry: Retries, field: Field) -> None:
    @retry.listener("add", first_delay_seconds=3600)
    async def add(number: int) -> int:
        return number + 1

    async with retry.running():
        far_ahead = retry.register(None, "add", 7)
        assert await retry.run_now_async(far_ahead.task_id) == 8
        assert field.state(far_ahead.task_id) is State.SUCCEEDED
        with pytest.raises(TaskStateError, match="SUCCEEDED"):
            await retry.run_now_async(far_ahead.task_id)
        with pytest.raises(TaskNotFoundError):
            await retry.run_now_async(uuid4())
        elsewhere = retry.register(None, "elsewhere", 7)
        with pytest.raises(TaskStateError, match="no handler"):
            await retry.run_now_async(elsewhere.task_id)


async def test_invoked_now_it_goes_ahead_of_a_backlog_and_by_the_id_that_was_printed(
    retry: Retries, field: Field
) -> None:
    retry = Retries(field.dsn, settings=RetrySettings(**FAST | {"concurrency": 2}))
    go_on = asyncio.Event()

    @retry.listener("hold")
    async def hold(number: int) -> int:
        await go_on.wait()
        return number

    @retry.listener("double")
    async def double(number: int) -> int:
        return 2 * number

    for number in range(20):
        retry.register(None, "hold", number)
    wanted = retry.register(None, "double", 4, first_delay_seconds=3600)
    async with retry.running() as worker:
        await until(lambda: worker.engine.stats().queues["reach_retry.tasks"].in_flight == 2)
        asked = asyncio.create_task(retry.run_now_async(str(wanted.task_id)))
        await until(lambda: field.tasks("code = 'double' AND owner IS NOT NULL") == 1)
        go_on.set()
        assert await asked == 8
    with pytest.raises(TaskNotFoundError, match="no task has the id 'nonsense'"):
        await retry.run_now_async("nonsense")


async def test_a_worker_whose_engine_has_failed_ends_instead_of_doing_nothing(
    retry: Retries, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def defect(_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Scanner, "run", defect)
    with pytest.raises(BaseExceptionGroup):
        await asyncio.wait_for(retry._until_stopped(None), 30)


@pytest.mark.parametrize(("level", "said"), [("CRITICAL", False), ("WARNING", True)])
async def test_the_log_level_covers_the_engine_too(
    retry: Retries, field: Field, capsys: pytest.CaptureFixture[str], level: str, *, said: bool
) -> None:
    retry = Retries(field.dsn, settings=RetrySettings(**FAST | {"log_level": level}))
    started, stopped = asyncio.Event(), asyncio.Event()

    @retry.listener("endless")
    async def endless(_: int) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with retry.running():
        task_id = retry.register(None, "endless", 1).task_id
        await started.wait()
        retry.tasks.cancel([task_id])
        await stopped.wait()
    assert ("durable.claims_lost" in capsys.readouterr().out) is said


async def test_a_task_that_is_cancelled_and_asked_for_again_runs_anew_once_its_handler_has_ended(
    retry: Retries, field: Field
) -> None:
    started: list[int] = []
    ended: list[int] = []
    told: list[object] = []
    go_on = asyncio.Event()

    @retry.listener("slow", max_attempts=1)
    async def slow(_: int) -> int:
        run = len(started)
        assert len(ended) == run, "the one before has not ended"
        started.append(run)
        try:
            await go_on.wait()
        finally:
            ended.append(run)
        return run

    @retry.at_end
    async def tell(report: Report) -> None:
        told.append(report.result)

    async with retry.running():
        task_id = retry.register(None, "slow", 1).task_id
        await until(lambda: len(started) == 1)
        retry.tasks.cancel([task_id])
        retry.tasks.retry([task_id])
        await until(lambda: len(started) == 2)
        go_on.set()
        assert await field.until_ended(task_id) is State.SUCCEEDED
        await until(lambda: told == [1])
    assert [attempt.error for attempt in retry.tasks.show(task_id)[1]] == [None]


async def test_one_object_runs_once_at_a_time(retry: Retries) -> None:
    async def run(entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with retry.running():
            entered.set()
            await leave.wait()

    entered, leave = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(run(entered, leave))
    await asyncio.sleep(0)  # it is entering
    with pytest.raises(HandlerError, match="runs already"):
        await run(entered, leave)
    await entered.wait()
    with pytest.raises(HandlerError, match="runs already"):
        await run(entered, leave)
    leave.set()
    await first
    await run(entered, leave)


def test_invoked_now_without_a_worker_it_does_that_task_only(retry: Retries, field: Field) -> None:
    @retry.listener("add")
    def add(number: int) -> int:
        return number + 1

    tasks = [retry.register(None, "add", number) for number in (1, 2)]
    assert retry.run_now(tasks[1].task_id) == 3
    assert [field.state(task.task_id) for task in tasks] == [State.WAITING, State.SUCCEEDED]


async def test_what_is_invoked_now_and_fails_raises_and_goes_on_by_its_strategy(retry: Retries, field: Field) -> None:
    @retry.listener("fails", first_delay_seconds=3600)
    async def fails(number: int) -> GiveUp:
        if number == 1:
            raise ZeroDivisionError("away")
        return GiveUp("gone")

    raising, giving_up = (retry.register(None, "fails", number) for number in (1, 2))
    async with retry.running():
        with pytest.raises(ZeroDivisionError, match="away"):
            await retry.run_now_async(raising.task_id)
        with pytest.raises(AttemptFailedError, match="gone"):
            await retry.run_now_async(giving_up.task_id)
    task, attempts = retry.tasks.show(raising.task_id)
    assert (task.state, task.attempts, len(attempts)) == (State.WAITING, 1, 1)
    assert field.state(giving_up.task_id) is State.GIVEN_UP


async def test_invoked_from_everywhere_at_once_it_runs_once(retry: Retries, field: Field) -> None:
    runs: list[int] = []
    go_on = asyncio.Event()

    async def once(number: int) -> int:
        runs.append(number)
        await go_on.wait()
        return number

    other = Retries(field.dsn, settings=RetrySettings(**FAST))
    for each in (retry, other):
        each.listener("once")(once)
    async with retry.running() as first, other.running() as second:
        await first.engine.wait_ready()
        await second.engine.wait_ready()
        task = retry.register(None, "once", 7, first_delay_seconds=1.5)
        asked = [asyncio.create_task(each.run_now_async(task.task_id)) for each in (retry, other, retry, other)]
        await until(lambda: len(runs) > 0)
        await until(lambda: sum(each.done() for each in asked) >= 2)
        with pytest.raises(TaskStateError, match="RUNNING"):
            await other.run_now_async(task.task_id)
        go_on.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert 7 in answers
    assert runs == [7]
    assert retry.tasks.show(task.task_id)[0].attempts == 1


async def test_invoked_while_workers_take_it_each_task_runs_once_and_is_answered_once(
    retry: Retries, field: Field
) -> None:
    """Two workers claim what is due at this moment, while a thread without a loop and a coroutine ask for the same."""
    runs: list[int] = []

    async def once(number: int) -> int:
        await asyncio.sleep(0)
        runs.append(number)
        return number

    # It does nothing by itself, and only what it is asked for.
    outside = Retries(field.dsn, settings=RetrySettings(**FAST))
    other = Retries(field.dsn, settings=RetrySettings(**FAST))
    for each in (retry, other, outside):
        each.listener("once")(once)
    async with retry.running() as first, other.running() as second:
        await first.engine.wait_ready()
        await second.engine.wait_ready()
        tasks = [retry.register(None, "once", number).task_id for number in range(12)]
        asked = [
            asked for task in tasks for asked in (asyncio.to_thread(outside.run_now, task), other.run_now_async(task))
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for task in tasks:
            assert await field.until_ended(task) is State.SUCCEEDED
    assert sorted(runs) == list(range(12))
    results = [answer for answer in answers if not isinstance(answer, TaskStateError)]
    assert len(results) == len(set(results)), f"nobody is told of a result that was another's: {results}"
    assert {retry.tasks.show(task)[0].attempts for task in tasks} == {1}


async def test_invoked_without_a_loop_from_inside_one_it_says_which_to_await(retry: Retries) -> None:
    with pytest.raises(HandlerError, match="await run_now_async"):
        retry.run_now(uuid4())


async def test_retrying_puts_a_task_before_all_others_and_gives_ended_ones_fresh_attempts(
    retry: Retries, field: Field
) -> None:
    order: list[int] = []

    lone = Retries(field.dsn, settings=RetrySettings(**{**FAST, "concurrency": 1}))

    @lone.listener("number", max_attempts=1)
    async def number(value: int) -> None:
        order.append(value)
        if order.count(value) == 1 and value == 99:
            raise RuntimeError("away")

    ended = lone.register(None, "number", 99)
    async with lone.running():
        assert await field.until_ended(ended.task_id) is State.EXHAUSTED
    tasks = [lone.register(None, "number", value, priority=9) for value in range(5)]
    ahead = lone.register(None, "number", 100, first_delay_seconds=3600)
    assert set(lone.tasks.retry([ended.task_id, ahead.task_id, uuid4()])) == {ended.task_id, ahead.task_id}
    async with lone.running():
        for task in (*tasks, ended, ahead):
            assert await field.until_ended(task.task_id) is State.SUCCEEDED
    # The oldest of the others has the same moment as those at the front.
    assert set(order[1:4]) == {0, 99, 100}
    assert lone.tasks.retry([ended.task_id]) == [], "what has succeeded is not done again"


async def test_retrying_wakes_a_worker_at_once(retry: Retries, field: Field) -> None:
    slow = Retries(field.dsn, settings=RetrySettings(**{**FAST, "scan_interval_seconds": 3600}))

    @slow.listener("one")
    async def one(_: int) -> None:
        pass

    task = slow.register(None, "one", 1, first_delay_seconds=100_000)
    async with slow.running() as worker:
        await worker.engine.wait_ready()
        slow.tasks.retry([task.task_id])
        assert await field.until_ended(task.task_id) is State.SUCCEEDED


def test_a_key_that_another_has_by_now_stops_a_retry(retry: Retries) -> None:
    old = retry.register(None, "a", 1, unique_key="k")
    retry.tasks.cancel([old.task_id])
    retry.register(None, "a", 2, unique_key="k")
    with pytest.raises(TaskStateError, match="same unique key"):
        retry.tasks.retry([old.task_id])


def test_tasks_are_found_by_code_state_age_and_error_page_by_page(retry: Retries, field: Field) -> None:
    ids = [retry.register(None, code, number).task_id for number in range(5) for code in ("a", "b")]
    field.query(
        "UPDATE reach_retry.tasks SET last_error = 'Provider AWAY', created_at = created_at - interval '2 days'"
        " WHERE id = %s",
        ids[0],
    )
    retry.tasks.cancel([ids[1]], "no longer wanted")
    assert len(retry.tasks.find(code="a").tasks) == 5
    assert [task.id for task in retry.tasks.find(state=State.CANCELLED).tasks] == [ids[1]]
    assert [task.id for task in retry.tasks.find(older_than=timedelta(days=1)).tasks] == [ids[0]]
    assert [task.id for task in retry.tasks.find(error="provider away").tasks] == [ids[0]]
    seen, after = [], None
    while True:
        page = retry.tasks.find(limit=3, after=after)
        seen += [task.id for task in page.tasks]
        if (after := page.next) is None:
            break
    assert seen == [*reversed(ids[1:]), ids[0]]
    with pytest.raises(TaskNotFoundError):
        retry.tasks.show(uuid4())


async def test_stats_count_by_code_and_state(retry: Retries, field: Field) -> None:
    for number in range(3):
        retry.register(None, "a", number)
    retry.tasks.cancel([retry.register(None, "b", 1).task_id])
    async with retry.running("this one") as worker:
        await worker.engine.wait_ready()
        stats = retry.tasks.stats()
    assert stats.counts == {("a", State.WAITING): 3, ("b", State.CANCELLED): 1}
    assert stats.oldest_due_seconds > 0
    assert stats.instances == ("this one",)
    assert retry.tasks.stats().instances == ()


async def test_the_clean_up_deletes_what_ended_long_ago_with_its_attempts_and_nothing_else(
    retry: Retries, field: Field
) -> None:
    @retry.listener("a")
    async def one(_: int) -> None:
        pass

    tasks = [retry.register(None, "a", number).task_id for number in range(12)]
    waiting = retry.register(None, "elsewhere", 1).task_id
    async with retry.running():
        for task in tasks:
            await field.until_ended(task)
        field.query(
            "UPDATE reach_retry.tasks SET finished_at = finished_at - interval '31 days' WHERE id = ANY(%s)", tasks[1:]
        )
        field.query("UPDATE reach_retry.tasks SET created_at = created_at - interval '31 days'")
    # A cron expression with seconds: the next one is never far away.
    settings = RetrySettings(**FAST, cleanup=True, cleanup_rows=5, cleanup_cron="* * * * * *")
    async with Retries(field.dsn, settings=settings).running():
        await until(lambda: field.tasks() == 2)
    assert {task.id for task in retry.tasks.find().tasks} == {tasks[0], waiting}
    assert field.query("SELECT DISTINCT task_id FROM reach_retry.attempts") == [(tasks[0],)]


async def test_the_clean_up_waits_for_three_at_night_and_deletes_by_the_hundred(retry: Retries, field: Field) -> None:
    retry.register(None, "elsewhere", 0, unique_key="fresh")
    for age, count in (("31 days", 250), ("29 days", 7)):
        field.query(
            "INSERT INTO reach_retry.tasks (id, code, payload, created_at, finished_at, state, priority,"
            " first_delay_seconds, max_attempts, strategy, jitter_ratio) SELECT gen_random_uuid(), 'old', '0',"
            " now() - %s::interval, now() - %s::interval, 'SUCCEEDED', 5, 0, 3, 'fixed', 0 FROM generate_series(1, %s)",
            age,
            age,
            count,
        )
    field.query(
        """
        CREATE TABLE rounds (deleted bigint);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
            'BEGIN INSERT INTO rounds SELECT count(*) FROM gone; RETURN NULL; END';
        CREATE TRIGGER note AFTER DELETE ON reach_retry.tasks REFERENCING OLD TABLE AS gone
            FOR EACH STATEMENT EXECUTE FUNCTION note()
        """
    )
    elapsed = 0.0
    clock = DatabaseClock(lambda: elapsed)
    clock.observe(datetime(2026, 1, 1, 2, 59, 59, 990_000, tzinfo=UTC), 0)
    async with retry.running() as worker:
        rounds = Rounds(
            worker.engine,
            worker.pool,
            worker._teller,
            [],
            retry._statements,
            RetrySettings(cleanup=True),
            retry._telemetry,
            retry._log,
            clock,
        )
        assert len(rounds.all()) > len(worker.rounds.all()), "it is off unless it was turned on"
        cleaning = asyncio.create_task(rounds._clean_up_by_the_clock())
        done, _ = await asyncio.wait({cleaning}, timeout=0.2)
        assert (done, field.tasks("code = 'old'")) == (set(), 257), "it is not three yet"
        elapsed = 0.01
        await until(lambda: field.tasks("code = 'old'") == 7)
        assert not cleaning.done(), "it waits for the next night"
        await cancel_and_wait([cleaning])
    assert field.query("SELECT deleted FROM rounds") == [(100,), (100,), (50,)]


def test_purging_by_hand(retry: Retries, field: Field) -> None:
    tasks = [retry.register(None, code, 1).task_id for code in ("a", "b", "a", "a")]
    retry.tasks.cancel(tasks[:3])
    assert retry.tasks.purge(timedelta(hours=1)) == 0
    assert retry.tasks.purge(timedelta(0), states=[State.SUCCEEDED]) == 0
    assert retry.tasks.purge(timedelta(0), code="a", rows_per_round=1) == 2
    assert {task.id for task in retry.tasks.find().tasks} == {tasks[1], tasks[3]}


def test_whatever_text_and_age_is_asked_for_there_is_an_answer(retry: Retries) -> None:
    task = retry.register(None, "a", 1).task_id
    for length in (timedelta.min, timedelta.max):
        assert len(retry.tasks.find(newer_than=length).tasks) == (length > timedelta(0))
        assert len(retry.tasks.find(older_than=length).tasks) == (length < timedelta(0))
    assert not retry.tasks.find(error="\0").tasks
    assert not retry.tasks.find(code="a\0").tasks
    assert retry.tasks.cancel([task], reason="because\0of") == [task]
    assert retry.tasks.show(task)[0].last_error == "because\\0of"
    assert retry.tasks.purge(timedelta.max) == 0
    assert retry.tasks.purge(timedelta.min) == 1


async def test_a_task_that_runs_beyond_its_limit_goes_back_with_the_attempt_counted(
    retry: Retries, field: Field
) -> None:
    """Its process lives, but cannot stop it: as when a C extension holds a thread and its owner forgot about it."""
    runs: list[int] = []

    @retry.listener("stuck", max_attempts=2)
    async def stuck(number: int) -> None:
        runs.append(number)

    task = retry.register(None, "stuck", 1, max_execution_seconds=1)
    async with retry.running() as worker:
        await worker.engine.wait_ready()
        assert await field.until_ended(task.task_id) is State.SUCCEEDED
        # What such a process leaves: held by one that lives, started long ago.
        field.query(
            "UPDATE reach_retry.tasks SET owner = %s, claim_no = claim_no + 1, state = 'RUNNING', attempts = 1,"
            " finished_at = NULL, started_at = clock_timestamp() - interval '1 hour' WHERE id = %s",
            worker.engine.instance_id,
            task.task_id,
        )
        await until(lambda: len(runs) == 2)
        assert await field.until_ended(task.task_id) is State.SUCCEEDED
    kept, attempts = retry.tasks.show(task.task_id)
    assert kept.attempts == 2
    assert [attempt.error for attempt in attempts] == [None, "dead: it ran beyond its limit", None]
