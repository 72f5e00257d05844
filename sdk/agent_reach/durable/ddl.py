"""The tables' SQL, as text for a service's migrations.

A queue's migration looks like this::

    CREATE TABLE dispatcher.tasks (
        id uuid PRIMARY KEY,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        priority smallint NOT NULL DEFAULT 5,
        {queue_columns()},
        …the domain's own columns
    ) {queue_storage()};
    {queue_indexes("dispatcher.tasks")}

The role that runs the engine needs SELECT and UPDATE on its queues, and SELECT, INSERT, UPDATE and DELETE on
``instance``.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,54}")


def instance_table(schema: str) -> str:
    """Returns the table of live processes: one row each, gone when the process is stopped or found dead.

    Raises:
        ValueError: the schema is not a plain lower-case name.
    """
    return f"""\
CREATE TABLE {check_name(schema)}.instance (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);
"""


def queue_columns() -> str:
    """Returns the columns that make a table a queue, to be pasted into its CREATE TABLE.

    Beside them the table needs ``id uuid PRIMARY KEY`` and ``priority smallint NOT NULL`` (0 to 9, 9 is the most
    urgent). A row waits while it has neither an owner nor ``finished_at``.
    """
    return """\
run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    owner uuid,
    claim_no integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    started_at timestamptz,
    suspect boolean NOT NULL DEFAULT false,
    finished_at timestamptz,
    CHECK (priority BETWEEN 0 AND 9)"""


def queue_storage() -> str:
    """Returns the storage clause of a queue: room for updates in place, and vacuum soon after many changes."""
    return (
        "WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,"
        " autovacuum_analyze_scale_factor = 0.05)"
    )


def queue_indexes(table: str) -> str:
    """Returns the indexes that keep a queue fast whatever lies finished or far ahead in its table.

    Args:
        table: with its schema, ``"dispatcher.tasks"``.

    Raises:
        ValueError: not two plain lower-case names joined by a dot.
    """
    schema, _, name = table.partition(".")
    check_name(schema)
    check_name(name)
    return f"""\
CREATE INDEX {name}_waiting ON {table} (priority, run_at)
    WHERE owner IS NULL AND finished_at IS NULL AND NOT suspect;
CREATE INDEX {name}_suspect ON {table} (priority, run_at)
    WHERE owner IS NULL AND finished_at IS NULL AND suspect;
CREATE INDEX {name}_owned ON {table} (owner)
    WHERE owner IS NOT NULL AND finished_at IS NULL;
"""


def check_name(name: str) -> str:
    """Returns a name that is safe to stand unquoted in SQL.

    Raises:
        ValueError: it is not.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"not a plain lower-case SQL name: {name!r}")
    return name
