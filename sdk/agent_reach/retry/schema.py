"""The library's own tables: created, upgraded, or printed."""
# ruff: noqa: S608 - the schema's name is checked by `check_name`

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from agent_reach.durable import instance_table, queue_columns, queue_indexes, queue_storage
from agent_reach.durable.ddl import check_name

from .connections import check_dsn

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


def _second(schema: str) -> str:
    return f"""\
ALTER TABLE {schema}.tasks ADD COLUMN origin text;
ALTER TABLE {schema}.attempts ADD COLUMN waits integer NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX attempts_one_line_of_waiting ON {schema}.attempts (task_id, attempt) WHERE waits > 0;
"""


def _third(schema: str) -> str:
    # A foreign key would look up, and lock, the task for every line that is written, by somebody who holds it already.
    return f"""\
ALTER TABLE {schema}.attempts DROP CONSTRAINT attempts_task_id_fkey, DROP CONSTRAINT attempts_pkey,
    ADD PRIMARY KEY (task_id, id);
DROP INDEX {schema}.attempts_of_task;
CREATE FUNCTION {schema}.forget_attempts() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ BEGIN DELETE FROM {schema}.attempts AS a USING gone WHERE a.task_id = gone.id; RETURN NULL; END $$;
CREATE TRIGGER forget_attempts AFTER DELETE ON {schema}.tasks REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.forget_attempts();
"""


# Each brings the tables from the version before it to its own; only ever appended to.
MIGRATIONS: Sequence[Callable[[str], str]] = (_first, _second, _third)


def install(dsn: str, schema: str = DEFAULT_SCHEMA, *, grant_to: str | None = None) -> list[int]:
    """Creates or upgrades the tables, in one transaction; processes that do so at once wait for each other.

    Args:
        dsn: of a role that may create the schema, unless all is up to date. PostgreSQL itself or a pooler.
        schema: where the tables live, a plain lower-case name.
        grant_to: a role that registers tasks and does them, and is to get the rights for that and no more.

    Returns:
        The versions that were installed by this call; empty when all was up to date.

    Raises:
        ValueError: the schema's name, the role's, or the connection string.
        psycopg.Error: as PostgreSQL says.
    """
    check_name(schema)
    grants = None if grant_to is None else _grants(schema, grant_to)
    with psycopg.connect(check_dsn(dsn), prepare_threshold=None) as connection:
        missing = missing_versions(connection, schema)
        if missing:
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"agent_reach.retry {schema}",)
            )
            connection.execute(_versions_table(schema))
            # Somebody else may have been at it meanwhile.
            missing = missing_versions(connection, schema)
        for version in missing:
            connection.execute(_migration(schema, version))
        if grants is not None:
            connection.execute(grants)
    return missing


def install_sql(schema: str = DEFAULT_SCHEMA, after: int = 0, *, grant_to: str | None = None) -> str:
    """Returns the SQL that :func:`install` would run, for those who let nobody else change their database.

    Args:
        schema: where the tables are to live.
        after: the version that is installed already.
        grant_to: as for :func:`install`.

    Raises:
        ValueError: the schema's name, the role's, or the version.
    """
    check_name(schema)
    if not 0 <= after <= len(MIGRATIONS):
        raise ValueError(f"the version that is installed is 0 to {len(MIGRATIONS)}, 0 for none")
    steps = [_migration(schema, version) for version in range(after + 1, len(MIGRATIONS) + 1)]
    grants = [] if grant_to is None else [_grants(schema, grant_to)]
    return "\n".join(["BEGIN;", _versions_table(schema), *steps, *grants, "COMMIT;\n"])


def missing_versions(connection: psycopg.Connection[Any], schema: str) -> list[int]:
    """Returns the versions that are not installed yet, in order. Needs no more than to read."""
    cursor = connection.cursor(row_factory=tuple_row)
    cursor.execute(
        "SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'versions'",
        (schema,),
    )
    known: set[int] = set()
    if cursor.fetchall():
        cursor.execute(f"SELECT version FROM {schema}.versions")
        known = {version for (version,) in cursor.fetchall()}
    return [version for version in range(1, len(MIGRATIONS) + 1) if version not in known]


def _versions_table(schema: str) -> str:
    return f"""\
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.versions (
    version integer PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);"""


def _migration(schema: str, version: int) -> str:
    return f"{MIGRATIONS[version - 1](schema)}INSERT INTO {schema}.versions (version) VALUES ({version});"


def _grants(schema: str, role: str) -> str:
    if not role or "\0" in role:
        raise ValueError("a role to grant the rights to has a name")
    to = f"TO {sql.Identifier(role).as_string()};"
    return f"""\
GRANT USAGE ON SCHEMA {schema} {to}
GRANT SELECT ON {schema}.versions {to}
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.tasks, {schema}.instance {to}
GRANT SELECT, INSERT, UPDATE ON {schema}.attempts {to}"""
