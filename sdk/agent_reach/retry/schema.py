"""The library's own tables: created, upgraded, or printed."""
# ruff: noqa: S608 - the schema's name is checked by `check_name`

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg
from psycopg.rows import tuple_row

from agent_reach.durable import instance_table, queue_columns, queue_indexes, queue_storage
from agent_reach.durable.ddl import check_name

DEFAULT_SCHEMA = "reach_retry"


def _first(schema: str) -> str:
    return f"""\
{instance_table(schema)}
CREATE TABLE {schema}.tasks (
    id uuid PRIMARY KEY,
    created_at timestamptz NOT NULL,
    priority smallint NOT NULL,
    {queue_columns()},
    code text NOT NULL,
    payload jsonb NOT NULL,
    state text NOT NULL DEFAULT 'WAITING' CHECK (state IN (
        'WAITING', 'RUNNING', 'SUCCEEDED', 'EXHAUSTED', 'GIVEN_UP', 'UNREADABLE', 'EXPIRED', 'CANCELLED')),
    max_attempts integer NOT NULL CHECK (max_attempts >= 1),
    strategy text NOT NULL,
    interval_seconds float8,
    first_delay_seconds float8 NOT NULL,
    jitter_ratio float8 NOT NULL,
    unique_key text,
    expires_at timestamptz,
    max_execution_seconds float8,
    description text,
    creator text,
    last_error text,
    CHECK ((finished_at IS NULL) = (state IN ('WAITING', 'RUNNING')))
) {queue_storage()};
{queue_indexes(f"{schema}.tasks")}
CREATE UNIQUE INDEX tasks_one_live_per_key ON {schema}.tasks (unique_key)
    WHERE unique_key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX tasks_expiring ON {schema}.tasks (expires_at) WHERE expires_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX tasks_finished ON {schema}.tasks (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX tasks_newest ON {schema}.tasks (created_at, id);
CREATE TABLE {schema}.attempts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id uuid NOT NULL REFERENCES {schema}.tasks ON DELETE CASCADE,
    attempt integer NOT NULL,
    planned_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    duration_seconds float8,
    owner uuid,
    error text
);
CREATE INDEX attempts_of_task ON {schema}.attempts (task_id, id);
"""


# Each brings the tables from the version before it to its own; only ever appended to.
MIGRATIONS: Sequence[Callable[[str], str]] = (_first,)


def install(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[int]:
    """Creates or upgrades the tables, in one transaction; processes that do so at once wait for each other.

    Args:
        dsn: of a role that may create the schema. PostgreSQL itself or a pooler.
        schema: where the tables live, a plain lower-case name.

    Returns:
        The versions that were installed by this call; empty when all was up to date.

    Raises:
        ValueError: the schema's name.
        psycopg.Error: as PostgreSQL says.
    """
    check_name(schema)
    with psycopg.connect(dsn, prepare_threshold=None) as connection:
        cursor = connection.cursor(row_factory=tuple_row)
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"agent_reach.retry {schema}",))
        cursor.execute(_versions_table(schema))
        cursor.execute(f"SELECT version FROM {schema}.versions")
        known = {version for (version,) in cursor.fetchall()}
        missing = [version for version in range(1, len(MIGRATIONS) + 1) if version not in known]
        for version in missing:
            cursor.execute(_migration(schema, version))
    return missing


def install_sql(schema: str = DEFAULT_SCHEMA, after: int = 0) -> str:
    """Returns the SQL that :func:`install` would run, for those who let nobody else change their database.

    Args:
        schema: where the tables are to live.
        after: the version that is installed already.
    """
    check_name(schema)
    steps = (_migration(schema, version) for version in range(after + 1, len(MIGRATIONS) + 1))
    return "\n".join(["BEGIN;", _versions_table(schema), *steps, "COMMIT;\n"])


def _versions_table(schema: str) -> str:
    return f"""\
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.versions (
    version integer PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);"""


def _migration(schema: str, version: int) -> str:
    return f"{MIGRATIONS[version - 1](schema)}INSERT INTO {schema}.versions (version) VALUES ({version});"
