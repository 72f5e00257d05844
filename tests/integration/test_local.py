"""The servers that `reach up` and the tests start are real and end with their owner."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import redis

from agent_reach.local import LocalPostgres, LocalRedis


def test_postgres_answers_and_keeps_its_data_over_an_outage(tmp_path: Path) -> None:
    with LocalPostgres(tmp_path / "pg") as server:
        with psycopg.connect(server.create_database("kept"), autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 7 AS x")
        server.pause()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn("kept"))
        server.resume()
        with psycopg.connect(server.dsn("kept")) as connection:
            assert connection.execute("SELECT x FROM t").fetchone() == (7,)
        dsn = server.dsn("kept")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)


def test_redis_answers_also_below_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    with LocalRedis(deep) as server, redis.from_url(server.url) as client:
        assert client.ping()
