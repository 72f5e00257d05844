"""Migrations may be repeated, and run by two at once; each role gets what it needs and no more."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psycopg
import pytest

from agent_reach.local import LocalPostgres
from services.chassis import migrations
from services.chassis.migrations import API_ROLE, ENGINE_ROLE, OWNER_ROLE, create_roles, migrate
from services.chassis.postgres import open_pool, tenant_transaction
from services.chassis.startup import StartupError

ENVIRONMENT = """
from services.chassis.migrations import run_environment

run_environment()
"""
FIRST = '''
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE notes.note (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text NOT NULL, said text NOT NULL);
        CREATE TABLE notes.counter (id bigserial PRIMARY KEY);
        ALTER TABLE notes.note ENABLE ROW LEVEL SECURITY;
        CREATE POLICY engine ON notes.note TO reach_engine USING (true) WITH CHECK (true);
        CREATE POLICY tenant ON notes.note TO reach_api
            USING (tenant = current_setting('reach.tenant', true))
            WITH CHECK (tenant = current_setting('reach.tenant', true));
    """)
'''
SECOND = """
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("INSERT INTO notes.counter DEFAULT VALUES")
    op.execute("ALTER TABLE notes.note ADD COLUMN at timestamptz NOT NULL DEFAULT now()")
"""
BROKEN = """
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.execute("INSERT INTO notes.counter DEFAULT VALUES")
    op.execute("SELECT 1 / 0")
"""
MIGRATE = """
import pathlib
import sys

from services.chassis import migrations

migrations._FOLDER = pathlib.Path(sys.argv[1])
migrations.migrate(sys.argv[2], ["notes"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of services with one that keeps notes."""
    room = tmp_path / "notes" / "migrations"
    (room / "versions").mkdir(parents=True)
    (room / "env.py").write_text(ENVIRONMENT)
    (room / "versions" / "0001_notes.py").write_text(FIRST)
    monkeypatch.setattr(migrations, "_FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def dsn(postgres: LocalPostgres, database: str) -> dict[str, str]:
    create_roles(database)
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    return {role: postgres.dsn(str(name), role) for role in (OWNER_ROLE, ENGINE_ROLE, API_ROLE)}


def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query).fetchall()


def test_repeating_changes_nothing_and_a_later_version_only_adds(folder: Path, dsn: dict[str, str]) -> None:
    for _ in range(2):
        migrate(dsn[OWNER_ROLE], ["notes"])
    (folder / "notes" / "migrations" / "versions" / "0002_more.py").write_text(SECOND)
    for _ in range(2):
        migrate(dsn[OWNER_ROLE], ["notes"])
    assert rows(dsn[ENGINE_ROLE], "SELECT count(*) FROM notes.counter") == [(1,)]
    assert rows(dsn[ENGINE_ROLE], "SELECT version_num FROM notes.alembic_version") == [("0002",)]


async def test_two_processes_at_once_migrate_once(folder: Path, dsn: dict[str, str]) -> None:
    (folder / "notes" / "migrations" / "versions" / "0002_more.py").write_text(SECOND)
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            MIGRATE,
            str(folder),
            dsn[OWNER_ROLE],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        for _ in range(2)
    ]
    outputs = await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert rows(dsn[ENGINE_ROLE], "SELECT count(*) FROM notes.counter") == [(1,)]


def test_a_migration_that_fails_leaves_the_version_before_and_no_lock(folder: Path, dsn: dict[str, str]) -> None:
    (folder / "notes" / "migrations" / "versions" / "0002_more.py").write_text(SECOND)
    broken = folder / "notes" / "migrations" / "versions" / "0003_broken.py"
    broken.write_text(BROKEN)
    with pytest.raises(Exception, match="division by zero"):
        migrate(dsn[OWNER_ROLE], ["notes"])
    broken.unlink()
    migrate(dsn[OWNER_ROLE], ["notes"])
    assert rows(dsn[ENGINE_ROLE], "SELECT count(*) FROM notes.counter") == [(1,)]
    assert rows(dsn[ENGINE_ROLE], "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]


def test_a_database_that_cannot_be_reached_says_what_to_check(folder: Path) -> None:
    with pytest.raises(StartupError) as caught:
        migrate("host=/nowhere user=reach_owner", ["notes"])
    assert "REACH_POSTGRES_OWNER_DSN" in caught.value.advice


def test_the_services_migrate_twice(dsn: dict[str, str]) -> None:
    for _ in range(2):
        migrate(dsn[OWNER_ROLE])
    schemas = rows(dsn[ENGINE_ROLE], "SELECT nspname FROM pg_namespace")
    assert {(service,) for service in migrations.SERVICES} <= set(schemas)


def test_creating_the_roles_again_is_harmless(database: str) -> None:
    create_roles(database)
    create_roles(database)
    query = "SELECT rolname FROM pg_roles WHERE rolname LIKE 'reach%' AND NOT rolsuper AND NOT rolbypassrls ORDER BY 1"
    assert rows(database, query) == [(API_ROLE,), (ENGINE_ROLE,), (OWNER_ROLE,)]


@pytest.mark.parametrize("role", [ENGINE_ROLE, API_ROLE])
def test_the_services_roles_write_rows_and_change_no_tables(folder: Path, dsn: dict[str, str], role: str) -> None:
    migrate(dsn[OWNER_ROLE], ["notes"])
    with psycopg.connect(dsn[role], autocommit=True) as connection:
        connection.execute("INSERT INTO notes.counter DEFAULT VALUES")
        connection.execute("UPDATE notes.counter SET id = id + 100")
        connection.execute("DELETE FROM notes.counter")
        for statement in (
            "DROP TABLE notes.counter",
            "TRUNCATE notes.counter",
            "ALTER TABLE notes.note DISABLE ROW LEVEL SECURITY",
            "CREATE TABLE notes.other (id int)",
            "CREATE SCHEMA other",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


async def test_a_tenant_sees_and_writes_its_own_rows_only(folder: Path, dsn: dict[str, str]) -> None:
    await asyncio.to_thread(migrate, dsn[OWNER_ROLE], ["notes"])
    async with open_pool("api", dsn[API_ROLE], 1) as pool:
        for tenant in ("acme", "bolt"):
            async with tenant_transaction(pool, tenant) as connection:
                await connection.execute("INSERT INTO notes.note (tenant, said) VALUES (%s, 'hello')", (tenant,))
        for tenant in ("acme", "bolt", "nobody", "'; DROP TABLE notes.note; --"):
            async with tenant_transaction(pool, tenant) as connection:
                seen = await (await connection.execute("SELECT DISTINCT tenant FROM notes.note")).fetchall()
                changed = (await connection.execute("UPDATE notes.note SET said = 'mine'")).rowcount
            assert seen == ([(tenant,)] if tenant in {"acme", "bolt"} else [])
            assert changed == len(seen)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            async with tenant_transaction(pool, "acme") as connection:
                await connection.execute("INSERT INTO notes.note (tenant, said) VALUES ('bolt', 'forged')")
        # The pool has one connection: no tenant of an earlier transaction stays on it.
        async with pool.connection() as connection:
            assert await (await connection.execute("SELECT * FROM notes.note")).fetchall() == []
    async with open_pool("engine", dsn[ENGINE_ROLE], 1) as pool, pool.connection() as connection:
        cursor = await connection.execute("SELECT tenant, said FROM notes.note ORDER BY tenant")
        assert await cursor.fetchall() == [("acme", "mine"), ("bolt", "mine")]


@pytest.mark.parametrize(
    ("dsn_text", "says"),
    [
        ("", "no connection string"),
        ("postgres//reach:pw-of-reach@db/reach", "not a connection string"),
    ],
)
async def test_a_pool_that_cannot_open_says_which_setting_and_shows_no_password(dsn_text: str, says: str) -> None:
    with pytest.raises(StartupError, match=says) as caught:
        async with open_pool("engine", dsn_text, 1):
            pass
    assert "REACH_POSTGRES_ENGINE_DSN" in caught.value.advice
    assert "pw-of-reach" not in str(caught.value)
