"""PostgreSQL is away, or read-only, for a while: nothing is lost, and nobody needs to be started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from agent_reach.local import LocalPostgres
from agent_reach.local.postgres import THROWAWAY_SETTINGS
from agent_reach.retry import Retries, RetrySettings, State

from .field import FAST, Field, until


@pytest.fixture
def own_postgres(scratch: Path) -> Iterator[LocalPostgres]:
    """A server that the test may restart."""
    with LocalPostgres(scratch / "own", THROWAWAY_SETTINGS) as server:
        yield server


async def test_after_a_restart_the_work_goes_on_by_itself(own_postgres: LocalPostgres) -> None:
    dsn = own_postgres.create_database("restarted")
    retry = Retries(dsn, settings=RetrySettings(**FAST))
    retry.install()
    field = Field(dsn)
    done: list[int] = []

    @retry.listener("one")
    async def one(number: int) -> None:
        done.append(number)
        if number == 3 and done.count(3) == 1:
            own_postgres.stop()
            own_postgres.start()

    async with retry.running():
        tasks = [retry.register(None, "one", number, first_delay_seconds=0.2) for number in range(10)]
        for scheduled in tasks:
            await until(lambda: len(set(done)) == 10, 60)
            assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
    assert set(done) == set(range(10))


async def test_while_it_is_read_only_answers_are_kept_and_written_afterwards(retry: Retries, field: Field) -> None:
    done: list[int] = []
    name = psycopg.conninfo.conninfo_to_dict(field.dsn)["dbname"]

    def read_only(*, on: bool) -> None:
        field.query("SET default_transaction_read_only = off")
        with psycopg.connect(
            field.owner_dsn, autocommit=True, options="-c default_transaction_read_only=off"
        ) as admin:
            admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {"on" if on else "off"}')
            # Those that are open keep their old setting.
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'admin'"
            )

    @retry.listener("one", max_attempts=1)
    async def one(number: int) -> None:
        done.append(number)
        if number == 0:
            read_only(on=True)

    first = retry.register(None, "one", 0)
    second = retry.register(None, "one", 1, first_delay_seconds=1.5)
    async with retry.running():
        await until(lambda: done == [0])
        assert not field.state(first.task_id).final
        read_only(on=False)
        for scheduled in (first, second):
            assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
    assert done == [0, 1]


async def test_the_connection_that_listens_may_be_cut_and_tasks_still_start_at_once(
    retry: Retries, field: Field
) -> None:
    deaf = Retries(field.dsn, settings=RetrySettings(**{**FAST, "scan_interval_seconds": 3600}))

    @deaf.listener("one")
    async def one(_: int) -> None:
        pass

    def listening() -> list[tuple[int]]:
        return field.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
        )

    async with deaf.running():
        await until(lambda: len(listening()) == 1)
        ((cut,),) = listening()
        field.query("SELECT pg_terminate_backend(%s)", cut)
        # While nobody listens, and again once somebody does.
        missed = deaf.register(None, "one", 1)
        await until(lambda: [pid for (pid,) in listening() if pid != cut] != [])
        heard = deaf.register(None, "one", 2)
        for scheduled in (missed, heard):
            assert await field.until_ended(scheduled.task_id) is State.SUCCEEDED
