"""PostgreSQL and Redis as parts that are kept alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from agent_reach.local import LocalPostgres, LocalRedis, LocalServerError
from services.chassis.startup import StartupError

_LOOK_SECONDS = 1.0


class WatchedServer:
    """A local server, looked at every second: nobody tells when it ends.

    Args:
        name: for people.
        running: whether it answers.
        restart: starts it again on the same socket; blocking.
        in_thread: runs what blocks, to its end.
    """

    def __init__(
        self,
        name: str,
        running: Callable[[], bool],
        restart: Callable[[], object],
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
    ) -> None:
        self.name = name
        self._running = running
        self._restart = restart
        self._in_thread = in_thread

    async def ended(self) -> str:
        """Returns once the server has ended, and says how."""
        while await asyncio.to_thread(self._running):  # noqa: ASYNC110 - a server of another process sets no event
            await asyncio.sleep(_LOOK_SECONDS)
        return "it does not answer"

    async def start(self) -> None:
        """Starts it again.

        Raises:
            StartupError: it did not start.
        """
        try:
            await self._in_thread(self._restart)
        except LocalServerError as error:
            raise StartupError(self.name, str(error), error.advice) from error


def watched_servers(
    postgres: LocalPostgres, redis: LocalRedis, in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
) -> list[WatchedServer]:
    """Returns both servers; everything else waits for them and goes on when they are back."""
    return [
        WatchedServer("PostgreSQL", postgres.running, postgres.resume, in_thread),
        WatchedServer("Redis", redis.running, redis.start, in_thread),
    ]
