"""A process that works the queue, for tests that kill or pause it.

Usage: ``python -m tests.integration.durable.process MODE DSN``. It prints a line for what the test waits for.

Modes:
    grip: holds the interpreter for 2 s with a row at work, and tells how often another thread had a turn meanwhile.
    hoard: claims all it can and never finishes anything; prints "full" once it holds a heap full.
    interrupt: prints "started", and has a handler that is met by Ctrl-C when a line comes on its input.
    share: does a few rows at a time, a little while each, and signs them with its process id. With a row labelled "long"
        it prints "holding at" and what its clock shows, and goes on when a line comes on its input.
    slow: starts a row, prints "started", and answers it when a line comes on its input; prints what became of it.
    work: finishes every row. A row labelled "kill" takes the process along, until its attempts exceed 3.

All print "ready" when they have a lease.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time

from agent_reach.durable import Batch, Done, EngineSettings, Handler, QueueSettings

from .ground import DEADLY, FAST, LEASE, TABLE, Ground, lost, until


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


async def share(batch: Batch) -> None:
    for claim in await batch.start():
        if claim.row["label"] == "long":
            say(f"holding at {time.time():.0f}")
            await asyncio.to_thread(sys.stdin.readline)
        else:
            await asyncio.sleep(0.01)
        batch.settle(claim, Done(), str(os.getpid()))


async def grip(batch: Batch) -> None:
    turns, over = 0, threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not over.wait(0.01):
            turns += 1

    (claim,) = await batch.start()
    other = threading.Thread(target=take_turns)
    other.start()
    before = turns
    # Unlike CDLL, PyDLL keeps the interpreter's lock during the call: no thread of this process runs.
    ctypes.PyDLL(None).usleep(2_000_000)
    say(f"others had {turns - before} turns")
    over.set()
    other.join()
    batch.settle(claim, Done(), str(os.getpid()))


async def hoard(batch: Batch) -> None:
    await batch.start(batch.claims[:1])
    await asyncio.Event().wait()


async def interrupt(batch: Batch) -> None:
    await batch.start()
    say("started")
    await asyncio.to_thread(sys.stdin.readline)
    raise KeyboardInterrupt


async def slow(batch: Batch) -> None:
    (claim,) = await batch.start()
    say("started")
    await asyncio.to_thread(sys.stdin.readline)
    await lost(batch, claim)
    stored = await batch.settle(claim, Done(), "late")
    say(f"lost={batch.lost(claim)} stored={stored}")


FEW = QueueSettings(slots=8, concurrency=4, batch_size=4, scan_interval_seconds=0.2)
MANY = QueueSettings(slots=60, concurrency=30, batch_size=20, scan_interval_seconds=0.2)
MODES: dict[str, tuple[Handler, QueueSettings, EngineSettings]] = {
    "grip": (grip, FAST, LEASE),
    "hoard": (hoard, MANY, DEADLY),
    "interrupt": (interrupt, MANY, LEASE),
    "share": (share, FEW, DEADLY),
    "slow": (slow, MANY, DEADLY),
    "work": (work, FAST, DEADLY),
}


async def main(mode: str, dsn: str) -> None:
    handler, limits, settings = MODES[mode]
    async with Ground(dsn).engine(handler, limits=limits, settings=settings) as engine:
        say("ready")
        if mode == "hoard":
            await until(lambda: engine.stats().queues[TABLE].in_flight == 30)
            say("full")
        await asyncio.Event().wait()


if __name__ == "__main__":
    # A shell that runs the tests in the background has it ignored, and we would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main(*sys.argv[1:]))
