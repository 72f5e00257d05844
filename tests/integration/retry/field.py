"""What the tests of the retry library share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg

from agent_reach.retry import State

APPLICATION = "reach_retry_application"
"""The role of the application under test: an ordinary one."""
FAST: dict[str, Any] = {
    "scan_interval_seconds": 1,
    "heartbeat_seconds": 0.2,
    "instance_timeout_seconds": 2,
    "sweep_seconds": 0.2,
    "drain_seconds": 5,
    "first_delay_seconds": 0,
    "concurrency": 20,
}


class Field:
    """The database of one test.

    Attributes:
        owner_dsn: of the role that made everything.
        dsn: of the application's role.
    """

    def __init__(self, owner_dsn: str, dsn: str | None = None) -> None:
        self.owner_dsn = owner_dsn
        self.dsn = dsn or owner_dsn

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.owner_dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def tasks(self, condition: str = "true") -> int:
        count: int = self.query(f"SELECT count(*) FROM reach_retry.tasks WHERE {condition}")[0][0]
        return count

    def orders(self) -> int:
        count: int = self.query("SELECT count(*) FROM orders")[0][0]
        return count

    def state(self, task_id: UUID) -> State:
        return State(self.query("SELECT state FROM reach_retry.tasks WHERE id = %s", task_id)[0][0])

    async def until_ended(self, task_id: UUID) -> State:
        await until(lambda: self.state(task_id).final)
        return self.state(task_id)


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Returns once the condition holds; fails when it does not come to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come to pass")
        await asyncio.sleep(0.02)
