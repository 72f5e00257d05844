"""`reach retry …`, as an operator types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from uuid import uuid4

import psycopg
from click.testing import CliRunner, Result

from agent_reach.cli.group import load_commands
from agent_reach.retry import Retries, Retry, State, Wait

from .field import APPLICATION, Field


def reach(*arguments: str, dsn: str | None, columns: str = "300") -> Result:
    return CliRunner().invoke(load_commands(), ["retry", *arguments], env={"REACH_RETRY_DSN": dsn, "COLUMNS": columns})


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
    assert json.loads(reach("stats", "--json", dsn=dsn).stdout) == {
        "counts": [
            {"code": "bill", "state": "CANCELLED", "tasks": 1},
            {"code": "notify", "state": "CANCELLED", "tasks": 1},
        ],
        "oldest_due_seconds": 0.0,
        "workers": [],
    }
    assert reach("purge", "--older-than", "0s", "--code", "bill", dsn=dsn).stdout == "1 task deleted\n"


def test_a_list_is_one_line_for_each_task_whatever_its_error_and_the_terminal(retry: Retries, field: Field) -> None:
    """To be read on 80 columns, and to be cut into ids: a line is never folded into the column beside it."""
    tasks = [str(retry.register(None, "user_notify", number).task_id) for number in range(3)]
    field.query("UPDATE reach_retry.tasks SET last_error = 'RuntimeError: first\nsecond ' || repeat('x', 1000)")
    listed = reach("list", dsn=field.dsn, columns="80").stdout.splitlines()
    assert listed[0].split() == ["id", "code", "state", "attempts", "planned", "(UTC)", "last", "error"]
    assert [line.split()[:4] for line in listed[1:]] == [
        [task, "user_notify", "WAITING", "0/3"] for task in tasks[::-1]
    ]
    assert all("RuntimeError: first second xx" in line and line.endswith("…") for line in listed[1:])
    cut = reach("list", "--limit", "2", dsn=field.dsn)
    assert (len(cut.stdout.splitlines()), "more than 2" in cut.stderr) == (3, True)
    assert reach("list", "--newer-than", "1h", "--older-than", "1h", dsn=field.dsn).stderr == "no such tasks\n"


def test_as_json_it_lists_all_for_what_comes_next_in_the_pipe_or_says_that_it_does_not(
    retry: Retries, field: Field
) -> None:
    task = retry.register(None, "notify", 1).task_id
    columns = "created_at, priority, run_at, code, payload, max_attempts, strategy, first_delay_seconds, jitter_ratio"
    field.query(
        f"INSERT INTO reach_retry.tasks (id, {columns}) SELECT gen_random_uuid(), {columns}"
        f" FROM reach_retry.tasks, generate_series(1, 1202) WHERE id = '{task}'"
    )
    told = reach("list", "--json", dsn=field.dsn)
    assert len({json.loads(line)["id"] for line in told.stdout.splitlines()}) == 1203
    assert told.stderr == ""
    for limit, listed, more in ((1100, 1100, True), (1203, 1203, False)):
        cut = reach("list", "--json", "--limit", str(limit), dsn=field.dsn)
        assert (len(cut.stdout.splitlines()), "more than" in cut.stderr) == (listed, more)
    short = reach("list", dsn=field.dsn)
    assert (len(short.stdout.splitlines()), "more than 50" in short.stderr) == (51, True)


def test_whatever_age_or_text_is_asked_for_there_is_an_answer(retry: Retries, field: Field) -> None:
    task = str(retry.register(None, "notify", 1).task_id)
    for longest in ("99999999d", "999999999d"):
        assert task in reach("list", "--newer-than", longest, dsn=field.dsn).stdout
        assert reach("list", "--older-than", longest, dsn=field.dsn).stderr == "no such tasks\n"
        assert reach("purge", "--older-than", longest, dsn=field.dsn).stdout == "0 tasks deleted\n"
    too_long = reach("list", "--older-than", "1000000000d", dsn=field.dsn)
    assert (too_long.exit_code, "longer than any duration" in too_long.stderr) == (2, True)


async def test_the_log_of_a_task_says_when_it_ran_how_long_and_why_it_failed(retry: Retries, field: Field) -> None:
    answers: Iterator[Wait | Retry] = iter(
        [Wait(after=0.01, reason="no token"), Wait(after=0.01, reason="no token"), Retry(reason="not yet")]
    )

    @retry.listener("picky", first_delay_seconds=0)
    async def picky(_: int) -> Wait | Retry | None:
        return next(answers, None)

    task = retry.register(None, "picky", 1).task_id
    async with retry.running():
        await field.until_ended(task)
    shown = reach("show", str(task), dsn=field.dsn).stdout.splitlines()
    log = shown[shown.index("") + 1 :]
    assert log[0].split() == ["attempt", "planned", "late", "took", "outcome"]
    assert [(line[0], line.rsplit(" s  ")[-1]) for line in log[1:]] == [
        ("1", "waited 2 times: no token"),
        ("1", "not yet"),
        ("2", "succeeded"),
    ]
    moment = json.loads(reach("show", str(task), "--json", dsn=field.dsn).stdout)["log"][0]["started_at"]
    assert datetime.fromisoformat(moment).tzinfo is not None
    assert "T" in moment


def test_a_role_without_the_rights_is_told_who_can_give_them(retry: Retries, field: Field) -> None:
    field.query(f"REVOKE ALL ON ALL TABLES IN SCHEMA reach_retry FROM {APPLICATION}")
    told = reach("list", dsn=field.dsn)
    assert (told.exit_code, "permission denied for table" in told.stderr) == (1, True)
    assert "--grant-to" in told.stderr
    granted = reach("install", "--grant-to", APPLICATION, dsn=field.owner_dsn)
    assert granted.stdout == f"granted to {APPLICATION}\n"
    assert reach("list", dsn=field.dsn).exit_code == 0


def test_failures_are_told_in_the_users_words(database: str) -> None:
    for arguments, dsn, told in (
        (("list",), None, "no database is named"),
        (("list",), database, "the tables are not there"),
        (("list",), "host=/nowhere password=hush", "PostgreSQL: it does not answer"),
        (("list",), "nonsense hush", "the connection string cannot be read"),
        (("install", "--grant-to", "nobody such"), database, 'role "nobody such" does not exist'),
        (("install", "--grant-to", ""), database, "a role to grant the rights to has a name"),
        (("install", "--print", "--after", "-1"), None, "the version that is installed is 0 to"),
        (("--schema", "a;b", "install"), database, "not a plain lower-case SQL name"),
        (("--schema", "(select 1) x--", "stats"), database, "not a plain lower-case SQL name"),
        (("--schema", "MySchema", "list"), database, "not a plain lower-case SQL name"),
    ):
        result = reach(*arguments, dsn=dsn)
        assert result.exit_code == 1, arguments
        assert told in result.stderr
        assert "What to do: " in result.stderr
        assert "hush" not in result.stderr


def test_the_tables_are_installed_or_printed(database: str) -> None:
    printed = reach("install", "--print", dsn=None).stdout
    assert reach("install", dsn=database).stdout == "installed version 1, 2, 3\n"
    assert reach("install", dsn=database).stdout == "nothing to do\n"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA reach_retry CASCADE")
        connection.execute(printed)
    assert reach("install", dsn=database).stdout == "nothing to do\n"
    alone = reach("install", "--after", "2", dsn=database)
    assert (alone.exit_code, "--after goes with --print" in alone.stderr) == (2, True)
    missing = reach("show", str(uuid4()), dsn=database)
    assert "there is no task" in missing.stderr
