"""`ctx.transaction()`: the effects of a handler and the completion of its task are one."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest

from agent_reach.retry import Context, Report, Retries, Retry, RetrySettings, State, SyncContext, TaskStateError

from .field import FAST, Field, until


async def test_as_many_handlers_as_may_run_hold_a_transaction_and_the_engine_goes_on(
    retry: Retries, field: Field
) -> None:
    many = 20
    retry = Retries(field.dsn, settings=RetrySettings(**FAST | {"concurrency": many + 1}))
    together, go_on = asyncio.Barrier(many + 1), asyncio.Event()

    @retry.listener("hold")
    async def hold(_: int, ctx: Context) -> None:
        async with ctx.transaction():
            await together.wait()
            await go_on.wait()

    @retry.listener("plain")
    async def plain(_: int) -> None: ...

    async with retry.running():
        holding = [retry.register(None, "hold", number) for number in range(many)]
        async with asyncio.timeout(20):
            await together.wait()
        assert await field.until_ended(retry.register(None, "plain", 1).task_id) is State.SUCCEEDED
        go_on.set()
        for task in holding:
            assert await field.until_ended(task.task_id) is State.SUCCEEDED


async def test_a_transaction_that_finds_no_connection_spends_no_attempt(retry: Retries, field: Field) -> None:
    name = psycopg.conninfo.conninfo_to_dict(field.dsn)["dbname"]
    limits = [0, -1]

    @retry.listener("write", max_attempts=1, interval_seconds=0)
    def write(_: int, ctx: SyncContext) -> None:
        # What is connected already stays so.
        field.query(f"ALTER DATABASE {name} CONNECTION LIMIT {limits.pop(0)}")
        with ctx.transaction():
            pass

    async with retry.running():
        task_id = retry.register(None, "write", 1).task_id
        assert await field.until_ended(task_id) is State.SUCCEEDED
    waited, succeeded = retry.tasks.show(task_id)[1]
    assert (waited.waits, succeeded.waits, succeeded.attempt) == (1, 0, 1)
    assert "NoConnectionError" in (waited.error or "")


async def test_what_comes_after_the_completion_changes_nothing_and_all_are_told(retry: Retries, field: Field) -> None:
    told: list[tuple[str, State, object]] = []
    refused: list[str] = []

    @retry.listener("twice")
    async def twice(_: int, ctx: Context) -> None:
        async with ctx.transaction():
            pass
        try:
            async with ctx.transaction():
                pass
        except TaskStateError:
            refused.append("async")
            raise

    @retry.listener("twice in a thread")
    def twice_in_thread(_: int, ctx: SyncContext) -> None:
        with ctx.transaction():
            pass
        try:
            with ctx.transaction():
                pass
        except TaskStateError:
            refused.append("sync")
            raise

    @retry.listener("answer")
    async def answer(_: int, ctx: Context) -> Retry:
        async with ctx.transaction():
            pass
        return Retry(after=0)

    @retry.at_end
    async def tell(report: Report) -> None:
        told.append((report.code, report.state, report.result))

    codes = ("twice", "twice in a thread", "answer")
    async with retry.running():
        for code in codes:
            task = retry.register(None, code, 1, first_delay_seconds=3600)
            assert await retry.run_now_async(task.task_id) is None
        await until(lambda: len(told) == len(codes))
    assert told == [(code, State.SUCCEEDED, None) for code in codes]
    assert refused == ["async", "sync"]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_transaction_that_was_still_open_when_the_attempt_was_stopped_is_rolled_back(
    retry: Retries, field: Field, *, asynchronous: bool
) -> None:
    ended: list[str] = []

    if asynchronous:

        @retry.listener("write", max_attempts=1, max_execution_seconds=0.2)
        async def write(_: int, ctx: Context) -> None:
            try:
                async with ctx.transaction() as connection:
                    await connection.execute("INSERT INTO orders VALUES (1)")
                    await until(lambda: ctx.stopped)
            finally:
                ended.append("async")
    else:

        @retry.listener("write", max_attempts=1, max_execution_seconds=0.2)
        def write_in_thread(_: int, ctx: SyncContext) -> None:
            stopped = threading.Event()
            try:
                with ctx.transaction() as connection:
                    connection.execute("INSERT INTO orders VALUES (1)")
                    while not ctx.stopped:
                        stopped.wait(0.01)
            finally:
                ended.append("sync")

    async with retry.running():
        assert await field.until_ended(retry.register(None, "write", 1).task_id) is State.EXHAUSTED
        await until(lambda: bool(ended))
    assert field.orders() == 0
