"""The library's own tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from agent_reach.retry import Retries, install, install_sql


def test_installing_twice_changes_nothing(database: str) -> None:
    assert install(database) == [1, 2]
    assert install(database) == []


def test_processes_that_install_at_once_all_end_well_and_one_did_it(database: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(install, [database] * 8))
    assert sorted(done) == [*([[]] * 7), [1, 2]]


def test_the_printed_sql_does_the_same(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(install_sql("my_retries"))
    assert install(database, "my_retries") == []
    retry = Retries(database, schema_name="my_retries")
    assert retry.register(None, "anything", {"a": 1}).created
    assert len(retry.tasks.find().tasks) == 1


def test_the_schema_is_a_plain_name_or_refused(database: str) -> None:
    with pytest.raises(ValueError, match="plain lower-case"):
        install(database, "a; DROP TABLE b")
