"""Reading rows of which some may hold values that do not load."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncCursor


async def fetch_readable(
    cursor: AsyncCursor[tuple[Any, ...]], *, id_column: int
) -> tuple[list[tuple[Any, ...]], dict[UUID, Exception]]:
    """Fetches all rows that can be read, in order, and says what stood in the way of the others.

    PostgreSQL has values that Python has not (the year 10000, an infinite moment), and an application may have set
    loaders of its own, which may raise anything.

    Args:
        cursor: after a statement, in the text format.
        id_column: where the rows have a uuid that names them.

    Returns:
        The rows, and by id what reading the others raised.
    """
    try:
        return await cursor.fetchall(), {}
    except Exception:  # noqa: BLE001 - whatever it was, it comes again below, for its row alone
        rows: list[tuple[Any, ...]] = []
    failures: dict[UUID, Exception] = {}
    result = cursor.pgresult
    assert result is not None
    for index in range(result.ntuples):
        await cursor.scroll(index, mode="absolute")
        try:
            row = await cursor.fetchone()
        except Exception as error:  # noqa: BLE001 - as above
            name = result.get_value(index, id_column)
            assert name is not None
            failures[UUID(name.decode())] = error
        else:
            assert row is not None
            rows.append(row)
    return rows, failures
