"""Fixtures that every test room shares: one PostgreSQL and one Redis per test process, a database per test."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from agent_reach.local import LocalPostgres, LocalRedis
from agent_reach.local.postgres import THROWAWAY_SETTINGS
from services.chassis.migrations import API_ROLE, ENGINE_ROLE, OWNER_ROLE, create_roles, migrate

# Tests start child processes by exec only. gRPC reads this when it is first used; its fork handlers would run in every
# child before the exec, beside threads that hold its locks.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


@dataclass(frozen=True, slots=True)
class Dsns:
    """Connection strings to one migrated database, a role each. Tests run as these, never as superuser."""

    owner: str
    engine: str
    api: str


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A directory of this test process with a short path (Unix sockets live below it)."""
    directory = Path(tempfile.mkdtemp(prefix="reach-test-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(scratch: Path) -> Iterator[LocalPostgres]:
    """The PostgreSQL server of this test process."""
    with LocalPostgres(scratch / "postgres", THROWAWAY_SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(scratch: Path) -> Iterator[LocalRedis]:
    """The Redis server of this test process; tests keep apart by their key prefix (deployment name)."""
    with LocalRedis(scratch / "redis") as server:
        yield server


@pytest.fixture
def database(postgres: LocalPostgres) -> Iterator[str]:
    """The superuser's connection string to an empty database that lives as long as the test."""
    name = f"test_{uuid.uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def migrated_template(postgres: LocalPostgres) -> str:
    """The name of a database that every migration has run in; copied for each test that wants one."""
    name = "migrated_template"
    create_roles(postgres.create_database(name))
    migrate(postgres.dsn(name, OWNER_ROLE))
    return name


@pytest.fixture
def migrated(postgres: LocalPostgres, migrated_template: str) -> Iterator[Dsns]:
    """A fresh database with every service's schema."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(migrated_template))
        )
    yield Dsns(postgres.dsn(name, OWNER_ROLE), postgres.dsn(name, ENGINE_ROLE), postgres.dsn(name, API_ROLE))
    postgres.drop_database(name)
