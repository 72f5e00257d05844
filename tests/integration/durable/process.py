"""A process that works the queue, for tests that kill or pause it.

Usage: ``python -m tests.integration.durable.process MODE DSN``. It prints a line for what the test waits for.

Modes:
    work: finishes every row. A row labelled "kill" takes the process along, until its attempts exceed 3.
    hoard: claims all it can and never finishes anything; prints "full" once it holds a heap full.
    slow: starts a row, prints "started", and answers it when a line comes on its input; prints what became of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from agent_reach.durable import Batch, Done, Handler, QueueSettings

from .ground import DEADLY, FAST, TABLE, Ground, until


def say(word: str) -> None:
    print(f"> {word}", flush=True)  # noqa: T201 - the test reads it, between the lines of the log


async def work(batch: Batch) -> None:
    for claim in await batch.start():
        if claim.row["label"] != "kill":
            batch.settle(claim, Done(), "sent")
        elif claim.attempts > 3:
            batch.settle(claim, Done(), "failed")
        else:
            os.kill(os.getpid(), signal.SIGKILL)


async def hoard(batch: Batch) -> None:
    await batch.start(batch.claims[:1])
    await asyncio.Event().wait()


async def slow(batch: Batch) -> None:
    (claim,) = await batch.start()
    say("started")
    await asyncio.to_thread(sys.stdin.readline)
    await batch.wait_lost(claim)
    stored = await batch.settle(claim, Done(), "late")
    say(f"lost={batch.lost(claim)} stored={stored}")


async def main(mode: str, dsn: str) -> None:
    handlers: dict[str, Handler] = {"work": work, "hoard": hoard, "slow": slow}
    limits = QueueSettings(slots=60, concurrency=30, batch_size=20, scan_interval_seconds=0.2)
    async with Ground(dsn).engine(
        handlers[mode], limits=FAST if mode == "work" else limits, settings=DEADLY
    ) as engine:
        if mode == "hoard":
            await until(lambda: engine.stats().queues[TABLE].in_flight == 30)
            say("full")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
