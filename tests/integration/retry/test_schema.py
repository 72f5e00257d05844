"""The library's own tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from agent_reach.retry import Retries, install, install_sql, schema
from agent_reach.retry.schema import MIGRATIONS

VERSIONS = list(range(1, len(MIGRATIONS) + 1))


def test_installing_twice_changes_nothing(database: str) -> None:
    assert install(database) == VERSIONS
    assert install(database) == []


def test_processes_that_install_at_once_all_end_well_and_one_did_it(database: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(install, [database] * 8))
    assert sorted(done) == [*([[]] * 7), VERSIONS]


def test_the_printed_sql_does_the_same(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(install_sql("my_retries"))
    assert install(database, "my_retries") == []
    retry = Retries(database, schema_name="my_retries")
    assert retry.register(None, "anything", {"a": 1}).created
    assert len(retry.tasks.find().tasks) == 1


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_older_tables_are_upgraded_with_what_is_in_them(
    database: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", MIGRATIONS[:version])
        assert install(database) == VERSIONS[:version]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO reach_retry.tasks (id, created_at, priority, run_at, code, payload, max_attempts, strategy,"
            " first_delay_seconds, jitter_ratio) SELECT gen_random_uuid(), now(), 5, now(), 'old', '{}', 3, 'fixed', 0, 0"
            " FROM generate_series(1, 2)"
        )
        connection.execute(
            "INSERT INTO reach_retry.attempts (task_id, attempt, planned_at, ended_at) SELECT id, 1, now(), now()"
            " FROM reach_retry.tasks"
        )
    assert install(database) == VERSIONS[version:]
    tasks = Retries(database).tasks
    kept, deleted = tasks.find().tasks
    assert len(tasks.show(kept.id)[1]) == len(tasks.show(deleted.id)[1]) == 1
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM reach_retry.tasks WHERE id = %s", (deleted.id,))
        left = connection.execute("SELECT task_id FROM reach_retry.attempts").fetchall()
    assert left == [(kept.id,)], "the log of a task is kept as long as the task"


@pytest.mark.parametrize("name", ["a; DROP TABLE b", "public.x; --", "(select 1) x--", "MySchema", ""])
def test_the_schema_is_a_plain_name_or_refused(database: str, name: str) -> None:
    """Folded or quoted it would be another one; and it stands in every statement."""
    for use in (lambda: install(database, name), lambda: Retries(database, schema_name=name)):
        with pytest.raises(ValueError, match="plain lower-case"):
            use()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"after": -1}, "the version that is installed is 0 to"),
        ({"after": len(MIGRATIONS) + 1}, "the version that is installed is 0 to"),
        ({"grant_to": ""}, "has a name"),
        ({"grant_to": "a\0b"}, "has a name"),
    ],
)
def test_what_cannot_be_installed_is_not_printed(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        install_sql(**arguments)
    assert install_sql(after=len(MIGRATIONS)).count("INSERT INTO") == 0
