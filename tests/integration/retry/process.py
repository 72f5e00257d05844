"""A process that does tasks, for tests that kill or pause it.

Usage: ``python -m tests.integration.retry.process DSN NAME``. SIGTERM stops it in good order. Codes it knows:

    count: writes a row into `runs`.
    kill: kills its process.
    hold: says "started", waits for a line on its input, then tries to write its effect and says what came of it.
    nap: sleeps for the seconds it is given.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from agent_reach.retry import ClaimLostError, Context, Retries, RetrySettings, SyncContext

from .field import FAST


def say(word: str) -> None:
    print(f"> {word}", flush=True)  # noqa: T201 - the test reads it, between the lines of the log


def application(dsn: str, name: str) -> Retries:
    retry = Retries(dsn, settings=RetrySettings(**FAST))

    @retry.listener("count")
    async def count(number: int, ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO runs (number, name) VALUES (%s, %s)", (number, name))

    @retry.listener("kill", max_attempts=2)
    async def kill(_: int) -> None:
        # Its company is at work by now.
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    @retry.listener("hold")
    def hold(number: int, ctx: SyncContext) -> None:
        say("started")
        sys.stdin.readline()
        try:
            with ctx.transaction() as connection:
                connection.execute("INSERT INTO runs (number, name) VALUES (%s, %s)", (number, name))
        except ClaimLostError:
            say(f"refused, stopped={ctx.stopped}")
            raise
        say("written")

    @retry.listener("nap")
    async def nap(seconds: float, ctx: Context) -> None:
        await asyncio.sleep(seconds)
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO runs (number, name) VALUES (0, %s)", (name,))

    return retry


if __name__ == "__main__":
    application(sys.argv[1], sys.argv[2]).run_forever(sys.argv[2])
