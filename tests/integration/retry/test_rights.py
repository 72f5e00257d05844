"""The library needs no superuser: what each role must be given, and what it is told without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from agent_reach.local import LocalPostgres
from agent_reach.retry import NotInstalledError, Retries, RetrySettings, State, install, install_sql
from agent_reach.retry.schema import MIGRATIONS

from .field import APPLICATION, FAST, Field


@contextmanager
def role(field: Field) -> Iterator[str]:
    """An ordinary role that has nothing yet."""
    name = f"role_{uuid4().hex[:8]}"
    field.query(f"CREATE ROLE {name} LOGIN NOSUPERUSER")
    yield name
    field.query(f"DROP OWNED BY {name}")
    field.query(f"DROP ROLE {name}")


def as_role(field: Field, name: str) -> str:
    return psycopg.conninfo.make_conninfo(field.owner_dsn, user=name)


async def test_an_ordinary_role_that_was_granted_registers_does_steers_and_cleans_up(
    retry: Retries, field: Field
) -> None:
    # As every test of this room does: the fixture's role has what `install(grant_to=…)` gives.
    assert field.query("SELECT rolsuper FROM pg_roles WHERE rolname = %s", APPLICATION) == [(False,)]

    @retry.listener("number")
    def number(value: int) -> int:
        return value

    done, cancelled = (retry.register(None, "number", value, first_delay_seconds=60).task_id for value in (1, 2))
    async with retry.running():
        assert await retry.run_now_async(done) == 1
        assert retry.tasks.cancel([cancelled]) == [cancelled]
    field.query("UPDATE reach_retry.tasks SET finished_at = finished_at - interval '31 days'")
    assert retry.tasks.stats().counts == {("number", State.SUCCEEDED): 1, ("number", State.CANCELLED): 1}
    assert retry.tasks.purge(timedelta(days=30)) == 2
    for forbidden in (
        "DROP TABLE reach_retry.tasks",
        "CREATE TABLE reach_retry.more (id integer)",
        "DELETE FROM reach_retry.versions",
        "TRUNCATE reach_retry.tasks",
    ):
        with psycopg.connect(field.dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(forbidden)


def test_a_role_that_only_registers_needs_to_insert_and_read_tasks(retry: Retries, field: Field) -> None:
    with role(field) as name:
        field.query(f"GRANT USAGE ON SCHEMA reach_retry TO {name}")
        field.query(f"GRANT SELECT, INSERT ON reach_retry.tasks TO {name}")
        web = Retries(as_role(field, name))
        first = web.register(None, "number", 1, unique_key="k")
        assert web.register(None, "number", 1, unique_key="k").task_id == first.task_id
        assert web.tasks.find().tasks[0].id == first.task_id
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            web.tasks.cancel([first.task_id])


def test_installing_what_is_installed_needs_no_rights_to_create(retry: Retries, field: Field) -> None:
    assert retry.install() == []
    with role(field) as name, pytest.raises(psycopg.errors.InsufficientPrivilege):
        install(as_role(field, name), "elsewhere")


def test_the_printed_sql_grants_too_and_a_role_may_have_any_name(database: str, postgres: LocalPostgres) -> None:
    name = f'the "shop" {uuid4().hex[:8]}'
    quoted = psycopg.sql.Identifier(name).as_string()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {quoted} LOGIN")
        connection.execute(install_sql(grant_to=name))
        shop = Retries(psycopg.conninfo.make_conninfo(database, user=name))
        assert shop.register(None, "number", 1).created
        connection.execute(f"DROP OWNED BY {quoted}")
        connection.execute(f"DROP ROLE {quoted}")


async def test_a_worker_without_tables_says_so_at_its_start(database: str) -> None:
    retry = Retries(database, settings=RetrySettings(**FAST))
    with pytest.raises(NotInstalledError, match="no tables in the schema reach_retry"):
        async with retry.running():
            pass


async def test_a_worker_of_a_newer_version_than_its_tables_says_so_and_an_upgrade_keeps_the_tasks(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = len(MIGRATIONS)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(install_sql(after=0))
    retry = Retries(database, settings=RetrySettings(**FAST))
    task = retry.register(None, "number", 1)
    monkeypatch.setattr(
        "agent_reach.retry.schema.MIGRATIONS", (*MIGRATIONS, lambda schema: f"ALTER TABLE {schema}.tasks ADD x int;")
    )
    monkeypatch.setattr("agent_reach.retry.worker.MIGRATIONS", (*MIGRATIONS, ""))
    with pytest.raises(NotInstalledError, match=f"version {newest},.* needs version {newest + 1}"):
        async with retry.running():
            pass
    assert retry.install() == [newest + 1]
    async with retry.running():
        assert retry.tasks.show(task.task_id)[0].state is State.WAITING


def test_tables_of_the_first_version_are_brought_up_with_what_is_in_them(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as old:
        old.setattr("agent_reach.retry.schema.MIGRATIONS", MIGRATIONS[:1])
        assert install(database) == [1]
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO reach_retry.tasks (id, created_at, priority, code, payload, max_attempts, strategy,"
            " first_delay_seconds, jitter_ratio) VALUES (gen_random_uuid(), now(), 5, 'number', '7', 3, 'fixed', 0, 0)"
        )
        connection.execute(
            "INSERT INTO reach_retry.attempts (task_id, attempt, planned_at, ended_at, error)"
            " SELECT id, 1, now(), now(), 'away' FROM reach_retry.tasks"
        )
    assert install(database) == list(range(2, len(MIGRATIONS) + 1))
    retry = Retries(database)

    @retry.listener("number")
    def number(value: int) -> int:
        return value

    (task,) = retry.tasks.find().tasks
    assert retry.run_now(task.id) == 7
    assert [(line.error, line.waits) for line in retry.tasks.show(task.id)[1]] == [("away", 0), (None, 0)]
