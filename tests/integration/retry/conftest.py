from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
import structlog

from agent_reach.local import LocalPostgres
from agent_reach.retry import Retries, RetrySettings, install

from .field import APPLICATION, FAST, Field


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    """The default log draws tracebacks with all their variables, which takes seconds and stops the loop."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(),
        ]
    )
    yield
    structlog.reset_defaults()


@pytest.fixture
def field(database: str, postgres: LocalPostgres) -> Field:
    """The database of the test, looked at from outside."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    assert isinstance(name, str)
    return Field(database, postgres.dsn(name, APPLICATION))


@pytest.fixture
def retry(field: Field) -> Retries:
    """An application with the library's tables and a few of its own; its role has what `grant_to` gives, no more."""
    with suppress(psycopg.errors.DuplicateObject):
        field.query(f"CREATE ROLE {APPLICATION} LOGIN NOSUPERUSER NOINHERIT")
    install(field.owner_dsn, grant_to=APPLICATION)
    field.query("CREATE TABLE orders (id integer PRIMARY KEY)")
    field.query(f"GRANT SELECT, INSERT ON orders TO {APPLICATION}")
    return Retries(field.dsn, settings=RetrySettings(**FAST))
