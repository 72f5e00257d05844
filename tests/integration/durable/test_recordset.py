"""What goes into a recordset comes out of PostgreSQL as it was."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import uuid4

import psycopg
import pytest
from uuid6 import uuid7

from agent_reach.durable import Recordset

ROWS = Recordset(
    {
        "id": "uuid",
        "text": "text",
        "raw": "bytea",
        "many": "bytea[]",
        "names": "text[]",
        "day": "date",
        "at": "timestamptz",
        "data": "jsonb",
        "number": "smallint",
        "yes": "boolean",
        "nothing": "text",
    }
)


def test_every_kind_of_value_comes_back(database: str) -> None:
    row = (
        uuid4(),
        'quotes " \\ \n and ünïcode 🎉',
        b"\x00\xff",
        [b"", b"a\\b"],
        ["a,b", "{c}", ""],
        date(2026, 2, 28),
        datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC),
        {"deep": [1, 2.5, None, "x"]},
        7,
        True,
        None,
    )
    with psycopg.connect(database) as connection:
        back = connection.execute(f"SELECT * FROM {ROWS.source('rows')}", {"rows": ROWS.encode([row, row])}).fetchall()
    assert back == [row, row]


def test_the_uuids_of_a_package_are_uuids(database: str) -> None:
    value = uuid7()
    with psycopg.connect(database) as connection:
        query = f"SELECT id FROM {ROWS.source('rows')}"
        (back,) = connection.execute(query, {"rows": ROWS.encode([(value, *[None] * 10)])}).fetchone() or (None,)
    assert back == value


def test_a_value_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError):
        Recordset({"x": "text"}).encode([(object(),)])
