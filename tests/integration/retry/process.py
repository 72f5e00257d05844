"""A process that does tasks, for tests that kill or pause it.

Usage: ``python -m tests.integration.retry.process DSN NAME [KEYS]``. SIGTERM stops it in good order. With a number of
keys it says "ready", waits for a line on its input, registers a task of the code `count` for each, and says how many of
them are its own. REACH_TEST_RETRY holds settings as JSON. Codes it knows:

    count: writes a row into `runs`.
    kill: kills its process.
    hold: says "started", waits for a line on its input, then tries to write its effect and says what came of it.
    nap: sleeps for the seconds it is given.
    hang: says "hanging" and never ends.
    hog: holds the interpreter for the seconds it is given, so that no other thread runs, and writes a row into `runs`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import threading

import psycopg

from agent_reach.retry import ClaimLostError, Context, Retries, RetrySettings, SyncContext

from .field import FAST


def say(word: str) -> None:
    print(f"> {word}", flush=True)  # noqa: T201 - the test reads it, between the lines of the log


def application(dsn: str, name: str) -> Retries:
    retry = Retries(dsn, settings=RetrySettings(**FAST | json.loads(os.environ.get("REACH_TEST_RETRY", "{}"))))

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

    @retry.listener("hang")
    def hang(_: int) -> None:
        say("hanging")
        threading.Event().wait()

    @retry.listener("nap")
    async def nap(seconds: float, ctx: Context) -> None:
        await asyncio.sleep(seconds)
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO runs (number, name) VALUES (0, %s)", (name,))

    def hold_interpreter(seconds: float) -> None:
        # Unlike a CDLL, a PyDLL keeps the interpreter's lock while it calls: as a long regular expression does.
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    @retry.listener("hog")
    def hog(seconds: float, ctx: SyncContext) -> None:
        hold_interpreter(seconds)
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO runs (number, name) VALUES (0, %s)", (name,))

    @retry.listener("hog on the loop")
    async def hog_on_the_loop(seconds: float, ctx: Context) -> None:
        hold_interpreter(seconds)
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO runs (number, name) VALUES (1, %s)", (name,))

    return retry


def register(retry: Retries, keys: int) -> None:
    say("ready")
    sys.stdin.readline()
    with psycopg.connect(retry._dsn, autocommit=True) as connection:
        # Late enough that no key is free again, its task done, before everybody has asked for it.
        tasks = [
            retry.register(connection, "count", number, unique_key=f"order {number}", first_delay_seconds=3)
            for number in range(keys)
        ]
    say(str(sum(task.created for task in tasks)))


if __name__ == "__main__":
    made = application(sys.argv[1], sys.argv[2])
    if len(sys.argv) > 3:
        register(made, int(sys.argv[3]))
    made.run_forever(sys.argv[2])
