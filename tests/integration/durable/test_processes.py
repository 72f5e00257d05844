"""Several processes on one host: they share the work, and neither a busy one nor a wrong clock is taken for dead."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from agent_reach.durable import Batch, Done
from tests.support.tools import require_tool

from .ground import DEADLY, LEASE, TABLE, Ground, until
from .processes import process, said, tell


def done_by(ground: Ground) -> dict[str, int]:
    """How many rows each process has done, by its id."""
    return dict(ground.query("SELECT result, count(*)::int FROM work.outcomes GROUP BY result"))


def once_each(ground: Ground, count: int) -> bool:
    """Whether every row was claimed once, started once and done once."""
    return ground.count(
        "finished_at IS NOT NULL AND claim_no = 1 AND attempts = 1 AND NOT suspect"
    ) == count and ground.query("SELECT count(*), count(DISTINCT id) FROM work.outcomes") == [(count, count)]


async def test_two_processes_do_about_half_each_and_a_third_that_joins_gets_its_part(ground: Ground) -> None:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(process(ground, "share")) for _ in range(2)]
        assert [await said(first), await said(second)] == ["ready", "ready"]
        ground.insert(400)
        await until(lambda: sum(done_by(ground).values()) >= 400)
        shares = done_by(ground)
        assert 130 <= shares[str(first.pid)] <= 270
        assert 130 <= shares[str(second.pid)] <= 270

        ground.insert(1200)
        third = await stack.enter_async_context(process(ground, "share"))
        assert await said(third) == "ready"
        joined_at = sum(done_by(ground).values())
        assert joined_at < 1200, "there was not enough to do to share it"
        await until(lambda: sum(done_by(ground).values()) >= 1600, 60)
        part = done_by(ground)[str(third.pid)] / (1600 - joined_at)
        assert 0.2 <= part <= 0.5
    assert once_each(ground, 1600)


@pytest.mark.parametrize("shift", ["+600", "-600"])
async def test_a_process_whose_system_clock_is_ten_minutes_off_is_as_good_as_any(ground: Ground, shift: str) -> None:
    require_tool("faketime", "faketime")
    # Its library alone: the program itself would stand between us and the process that we stop.
    library = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1"
    wrong_clock = ("env", library, f"FAKETIME={shift}", "DONT_FAKE_MONOTONIC=1", "FAKETIME_DISABLE_SHM=1")

    def leases() -> dict[str, float]:
        return dict(ground.query("SELECT id::text, extract(epoch FROM expires_at)::float8 FROM work.instance"))

    async with process(ground, "share", within=wrong_clock) as shifted:
        assert await said(shifted) == "ready"
        ground.insert(1, label="long")
        word, _, shows = (await said(shifted)).rpartition(" ")
        assert word == "holding at"
        assert int(shows) - time.time() == pytest.approx(float(shift), abs=60), "the clock is right after all"
        async with process(ground, "share") as honest:
            assert await said(honest) == "ready"
            before = leases()
            ahead = ground.insert(2, run_at=datetime.now(UTC) + timedelta(minutes=5))
            for part in range(60):
                ground.insert(1, run_at=datetime.now(UTC) + timedelta(seconds=part / 30))
            await until(lambda: sum(done_by(ground).values()) == 60)
            # Both are swept for many times, while the lease of each is as long as two leases at least.
            lengths = 2 * DEADLY.lease_seconds
            await until(lambda: all(leases().get(each, 0) > expiry + lengths for each, expiry in before.items()))
            assert leases().keys() == before.keys()
            assert set(done_by(ground)) == {str(shifted.pid), str(honest.pid)}
            await tell(shifted)
            await until(lambda: sum(done_by(ground).values()) == 61)
    assert once_each(ground, 61)
    assert ground.query(f"SELECT count(*) FROM work.outcomes JOIN {TABLE} USING (id) WHERE written_at < run_at") == [
        (0,)
    ]
    assert ground.count("claim_no = 0") == len(ahead)


async def test_a_handler_that_holds_the_interpreter_is_not_taken_for_dead(ground: Ground) -> None:
    async def finish(batch: Batch) -> None:
        for claim in await batch.start():
            batch.settle(claim, Done(), "takeover")

    ground.insert(1)
    async with process(ground, "grip") as holder:
        assert await said(holder) == "ready"
        await until(lambda: ground.count("started_at IS NOT NULL") == 1)
        # This one sweeps five times a second.
        async with ground.engine(finish, settings=LEASE):
            turns = int((await said(holder)).split()[2])
            assert turns <= 10, "of 200: the interpreter was free after all"
            await until(lambda: bool(done_by(ground)))
        assert done_by(ground) == {str(holder.pid): 1}
    assert once_each(ground, 1)
