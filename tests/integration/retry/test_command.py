"""`reach retry …`, as an operator types it."""

from __future__ import annotations

import json
from uuid import uuid4

import psycopg
from click.testing import CliRunner, Result

from agent_reach.cli.group import load_commands
from agent_reach.retry import Retries, State

from .field import Field


def reach(*arguments: str, dsn: str | None) -> Result:
    return CliRunner().invoke(load_commands(), ["retry", *arguments], env={"REACH_RETRY_DSN": dsn, "COLUMNS": "300"})


def test_an_operator_finds_looks_retries_cancels_and_purges(retry: Retries, field: Field) -> None:
    first = str(retry.register(None, "notify", {"order": 7}, description="tell [bold] \x1b[31mAda").task_id)
    second = str(retry.register(None, "bill", 1).task_id)
    dsn = field.dsn

    listed = reach("list", "--code", "notify", dsn=dsn)
    assert (listed.exit_code, first in listed.stdout, second in listed.stdout) == (0, True, False)
    assert [json.loads(line)["id"] for line in reach("list", "--json", dsn=dsn).stdout.splitlines()] == [second, first]

    shown = reach("show", first, dsn=dsn).stdout
    assert '{"order": 7}' in shown
    assert "\x1b" not in shown, "a task does not steer the terminal"
    assert json.loads(reach("show", first, "--json", dsn=dsn).stdout)["log"] == []

    assert reach("cancel", first, "--reason", "too late", dsn=dsn).exit_code == 0
    assert "too late" in reach("list", "--state", "cancelled", dsn=dsn).stdout
    assert reach("cancel", first, dsn=dsn).exit_code == 1
    assert reach("retry", first, dsn=dsn).stdout == f"{first} is next\n"
    assert len(retry.tasks.find(state=State.WAITING).tasks) == 2

    reach("cancel", first, second, dsn=dsn)
    assert "CANCELLED" in reach("stats", dsn=dsn).stdout
    assert reach("purge", "--older-than", "0s", "--code", "bill", dsn=dsn).stdout == "1 tasks deleted\n"


def test_failures_are_told_in_the_users_words(database: str) -> None:
    for arguments, dsn, told in (
        (("list",), None, "no database is named"),
        (("list",), database, "the tables are not there"),
        (("list",), "host=/nowhere password=hush", "PostgreSQL: it does not answer"),
        (("--schema", "a;b", "install"), database, "not a plain lower-case SQL name"),
    ):
        result = reach(*arguments, dsn=dsn)
        assert result.exit_code == 1, arguments
        assert told in result.stderr
        assert "What to do: " in result.stderr
        assert "hush" not in result.stderr


def test_the_tables_are_installed_or_printed(database: str) -> None:
    printed = reach("install", "--print", dsn=None).stdout
    assert reach("install", dsn=database).stdout == "installed version 1\n"
    assert reach("install", dsn=database).stdout == "nothing to do\n"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA reach_retry CASCADE")
        connection.execute(printed)
    assert reach("install", dsn=database).stdout == "nothing to do\n"
    missing = reach("show", str(uuid4()), dsn=database)
    assert "there is no task" in missing.stderr
