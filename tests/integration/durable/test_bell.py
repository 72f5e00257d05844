"""Registrations wake the workers when they commit, with few notifications, and none is forgotten."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import AsyncConnection

from agent_reach.retry import Retries, RetrySettings

from .ground import until
from .processes import ROOT

CHANNEL = "reach_retry.tasks"
THE_END = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def retry(database: str) -> Retries:
    retry = Retries(database, settings=RetrySettings())
    retry.install()
    return retry


@pytest.fixture
async def heard(database: str) -> AsyncIterator[list[datetime]]:
    """The moments that notifications have told, as they come in."""
    moments: list[datetime] = []

    async def listen(connection: AsyncConnection) -> None:
        async for notification in connection.notifies():
            moments.append(datetime.fromtimestamp(int(notification.payload) / 1000, UTC))  # noqa: PERF401 - as they come

    async with await AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(f'LISTEN "{CHANNEL}"')
        listening = asyncio.create_task(listen(connection))
        yield moments
        listening.cancel()
        await asyncio.wait([listening])


def say_that_all_is_told(database: str) -> None:
    """Notifications come in the order of their commits: what comes after this one is none of those awaited."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, '0')", (CHANNEL,))


def bells() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "reach-retry-bell"]


async def test_a_registration_by_itself_notifies_with_its_own_commit(
    retry: Retries, database: str, heard: list[datetime]
) -> None:
    async with await AsyncConnection.connect(database) as connection:
        await retry.register_async(connection, "note", 1)
        assert not bells(), "no thread is needed for that"
    await until(lambda: len(heard) == 1)


async def test_many_registrations_one_after_the_other_are_few_notifications(
    retry: Retries, database: str, heard: list[datetime]
) -> None:
    began = time.monotonic()
    async with await AsyncConnection.connect(database) as connection:
        for number in range(500):
            await retry.register_async(connection, "note", number)
            await connection.commit()
    await until(lambda: not bells())
    seconds = time.monotonic() - began
    say_that_all_is_told(database)
    await until(lambda: heard[-1] == THE_END)
    assert 3 <= len(heard) <= seconds / 0.05 + 3


async def test_what_commits_long_after_its_registration_is_told_then_and_what_rolls_back_never(
    retry: Retries, database: str, heard: list[datetime]
) -> None:
    async with (
        await AsyncConnection.connect(database) as first,
        await AsyncConnection.connect(database) as kept,
        await AsyncConnection.connect(database) as dropped,
    ):
        # The first of them notifies by itself; the others come too soon after it.
        await retry.register_async(first, "note", 1)
        await retry.register_async(kept, "note", 2, first_delay_seconds=100)
        await retry.register_async(dropped, "note", 3, first_delay_seconds=50)
        await dropped.rollback()
        await first.commit()
        await until(lambda: len(heard) == 1)
        assert bells()
        await kept.commit()
        await until(lambda: len(heard) == 2)
    assert (heard[1] - heard[0]).total_seconds() == pytest.approx(95, abs=3)
    await until(lambda: not bells())


_SHORT_LIVED = """
import psycopg, sys
from agent_reach.retry import Retries
retry = Retries(sys.argv[1])
with psycopg.connect(sys.argv[1]) as one, psycopg.connect(sys.argv[1]) as two:
    retry.register(one, "note", 1)
    retry.register(two, "note", 2, first_delay_seconds=100)
"""


async def test_a_process_that_ends_at_once_still_tells(retry: Retries, database: str, heard: list[datetime]) -> None:
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", _SHORT_LIVED, database], check=True, cwd=ROOT)
    await until(lambda: len(heard) == 2)


async def test_without_it_nobody_is_told(database: str, heard: list[datetime]) -> None:
    quiet = Retries(database, settings=RetrySettings(notify=False))
    quiet.install()
    quiet.register(None, "note", 1)
    say_that_all_is_told(database)
    await until(lambda: len(heard) >= 1)
    assert heard == [THE_END]
