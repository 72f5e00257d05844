"""What a handler raises ends nothing but its own work; what ends the engine ends whoever relies on it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import structlog
from psycopg import AsyncConnection
from structlog.testing import CapturingLogger, capture_logs

from agent_reach.durable import Batch, Consumer, Done, Engine, Settlement

from .ground import FAST, LEASE, Ground, RowQueue, lost, until
from .processes import process, said, tell


class Panic(BaseException):
    """What extensions in other languages raise, and no `except Exception` catches."""


class PanickingQueue(RowQueue):
    """A defect in what an application adds to the engine itself."""

    async def apply(self, connection: AsyncConnection[Any], settled: Sequence[Settlement]) -> None:
        await super().apply(connection, settled)
        raise Panic


async def finish(batch: Batch) -> None:
    for claim in await batch.start():
        batch.settle(claim, Done())


@pytest.mark.parametrize("raised", [Panic, SystemExit, GeneratorExit, asyncio.CancelledError, RuntimeError])
@pytest.mark.parametrize("suspect", [False, True])
async def test_whatever_a_handler_raises_its_row_comes_again_and_the_engine_goes_on(
    ground: Ground, raised: type[BaseException], *, suspect: bool
) -> None:
    ground.insert(3, suspect=suspect)

    async def handle(batch: Batch) -> None:
        claims = await batch.start()
        if claims[0].attempts == 1:
            raise raised
        for claim in claims:
            batch.settle(claim, Done())

    async with ground.engine(handle):
        await ground.until_finished(3)
    assert ground.count("attempts = 2") == 3


async def test_ctrl_c_that_meets_a_handler_ends_the_process_in_good_order(ground: Ground) -> None:
    ground.insert(1)
    async with process(ground, "interrupt") as interrupted:
        assert [await said(interrupted), await said(interrupted)] == ["ready", "started"]
        await tell(interrupted)
        assert await interrupted.wait() == -signal.SIGINT
    assert ground.count("owner IS NULL AND attempts = 1 AND NOT suspect") == 1
    assert ground.query("SELECT * FROM work.instance") == []


async def test_an_engine_that_fails_ends_the_block_that_it_was_entered_for(ground: Ground) -> None:
    ground.insert(1)
    with pytest.raises(BaseExceptionGroup) as failed:
        async with ground.engine(finish, queue=PanickingQueue()):
            await asyncio.Event().wait()
    assert failed.group_contains(Panic)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "whatever is behind the block goes on"
    await asyncio.sleep(0)


async def test_who_only_started_an_engine_can_wait_for_its_end(ground: Ground) -> None:
    async with ground.pool() as pool:
        consumers = [Consumer(PanickingQueue(), finish)]
        good, bad = (Engine(pool, "work", consumers, direct_dsn=ground.dsn, settings=LEASE) for _ in range(2))
        with pytest.raises(RuntimeError, match="not started"):
            await good.wait_ended()
        good.start()
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(good.wait_ended())
            await good.wait_ready()
            assert not ended.done()
            await good.stop()
        ground.insert(1)
        bad.start()
        with pytest.raises(BaseExceptionGroup) as failed:
            await bad.wait_ended()
        assert failed.group_contains(Panic)
        with pytest.raises(BaseExceptionGroup):
            await bad.stop()


async def test_all_that_an_engine_has_to_say_goes_into_the_log_that_it_was_given(ground: Ground) -> None:
    ground.insert(1, label="fails")
    ground.insert(1, label="is lost")
    ground.insert(1, label="cannot be written")
    unread: list[bool] = []
    own = CapturingLogger()
    log = structlog.wrap_logger(
        own,
        processors=[structlog.stdlib.add_log_level],
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
    )

    class BrokenQueue(RowQueue):
        async def oldest(self, *arguments: Any) -> Any:
            unread.append(True)
            await super().oldest(*arguments)
            raise RuntimeError("the look back fails")

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            if claim.attempts > 1:
                batch.settle(claim, Done())
            elif claim.row["label"] == "is lost":
                ground.query("DELETE FROM work.instance")
                await lost(batch, claim)
            elif claim.row["label"] == "cannot be written":
                batch.settle(claim, Done(), "poison")
            else:
                raise RuntimeError("a defect")

    with capture_logs() as default:
        async with ground.engine(
            handle, queue=BrokenQueue(), log=log, limits=replace(FAST, batch_size=1, full_scan_seconds=0.1)
        ):
            await until(lambda: ground.count("finished_at IS NOT NULL") == 3 and bool(unread))
    assert default == []
    said = {(call.kwargs["level"], call.kwargs["event"]) for call in own.calls}
    assert said >= {
        ("warning", "durable.lease_lost"),
        ("warning", "durable.claims_lost"),
        ("warning", "durable.failing"),
        ("error", "durable.handler_failed"),
        ("error", "durable.answer_not_writable"),
    }
    assert not any(level == "info" for level, _ in said)
