"""The database's clock is set, or its host sleeps: nobody is taken for dead, and what is due goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agent_reach.durable import Batch, Done, EngineSettings
from agent_reach.local import LocalPostgres
from agent_reach.local.postgres import THROWAWAY_SETTINGS
from tests.support.tools import require_tool

from .ground import Ground, create_tables, until


class SettableClock:
    """The clock of a PostgreSQL server, which tests set."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch(mode=0o644)

    def set(self, seconds: int) -> None:
        """Lets it go ahead of, or behind, what it really is; seen by every process of the server at once."""
        self._file.write_text(f"{seconds:+d}")


@pytest.fixture
def clock(scratch: Path) -> SettableClock:
    require_tool("faketime", "faketime")
    return SettableClock(scratch / "clock")


@pytest.fixture
def stepped(clock: SettableClock, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """A queue on a server that lives by that clock."""
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1")
        environment.setenv("FAKETIME_TIMESTAMP_FILE", str(scratch / "clock"))
        environment.setenv("FAKETIME_NO_CACHE", "1")
        environment.setenv("DONT_FAKE_MONOTONIC", "1")
        environment.setenv("FAKETIME_DISABLE_SHM", "1")
        clock.set(0)
        server = LocalPostgres(scratch / "stepped", THROWAWAY_SETTINGS).start()
    try:
        dsn = server.create_database(f"stepped_{uuid4().hex}")
        create_tables(dsn)
        yield Ground(dsn)
    finally:
        server.stop()


@pytest.mark.parametrize("step", [600, -600])
async def test_a_database_clock_that_is_set_costs_nobody_his_lease_and_stops_no_work(
    stepped: Ground, clock: SettableClock, step: int
) -> None:
    first = stepped.insert(1)
    working, go_on = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            if claim.id == first[0]:
                working.set()
                await go_on.wait()
            batch.settle(claim, Done())

    # Many sweeps between two heartbeats: without patience, whoever sweeps first would bury everybody.
    often = EngineSettings(lease_seconds=3, heartbeat_seconds=0.8, sweep_seconds=0.05)
    async with stepped.engine(handle, settings=often) as one, stepped.engine(handle, settings=often) as other:
        await working.wait()
        await until(lambda: one._lease.steady and other._lease.steady)
        instances = {one.instance_id, other.instance_id}
        clock.set(step)
        ((now,),) = stepped.query("SELECT clock_timestamp()")
        # Both have swept and renewed their leases by the new clock, and what is due by it is done.
        await until(lambda: stepped.query("SELECT count(*) FROM work.instance WHERE expires_at > %s", now) == [(2,)])
        stepped.insert(20)
        await stepped.until_finished(20)
        go_on.set()
        await stepped.until_finished(21)
        assert {one.instance_id, other.instance_id} == instances
    assert stepped.count("claim_no = 1 AND attempts = 1 AND NOT suspect") == 21
