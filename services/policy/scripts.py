"""Lua scripts on many keys in one round trip."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import hiredis
import redis.asyncio
from redis import exceptions

from agent_reach.v1 import error_reason_pb2
from services.chassis.errors import UnavailableError

# One key, and the arguments.
Call = tuple[str, Sequence[str | int]]

# More at once than that only wait inside Redis, and each costs a connection.
_MAX_PIPELINES = 32
_AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.TryAgainError,
    OSError,
)


class Script:
    """A Lua file of this room, and the name under which Redis keeps it."""

    def __init__(self, file_name: str) -> None:
        self.text = resources.files(__package__).joinpath(file_name).read_text(encoding="utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """Runs scripts.

    Packs and reads on a connection of the client's pool by itself: the client's own pipeline costs as much as all the
    rest of a decision (45 µs a call, of which 20 are needed; with a timeout per reply instead of one per round trip
    it is more).

    Args:
        client: Redis.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._redis = client
        self._places = asyncio.Semaphore(_MAX_PIPELINES)

    async def run(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        """Runs one script on many keys in one round trip; loads it where Redis does not know it (any more).

        Returns:
            The replies, in the order of the calls.

        Raises:
            UnavailableError: Redis cannot be reached (REDIS_UNAVAILABLE).
        """
        if not calls:
            return []
        async with redis_or_unavailable():
            rows = await self._exchange(script, calls)
            unknown = [index for index, row in enumerate(rows) if isinstance(row, exceptions.NoScriptError)]
            if unknown:
                await self._redis.script_load(script.text)
                again = await self._exchange(script, [calls[index] for index in unknown])
                for index, row in zip(unknown, again, strict=True):
                    rows[index] = row
            for row in rows:
                if isinstance(row, Exception):
                    raise row
        return rows

    async def _exchange(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        pack: Any = hiredis.pack_command  # its stub knows tuples of one only
        words = ("EVALSHA", script.digest, 1)
        request = b"".join([pack((*words, key, *values)) for key, values in calls])
        pool: Any = self._redis.connection_pool  # partly untyped
        async with self._places:
            connection = await pool.get_connection()
            try:
                async with asyncio.timeout(connection.socket_timeout):
                    await connection.send_packed_command(request)
                    return [await _reply(connection) for _ in calls]
            except BaseException:
                # Replies that are still to come would be taken for those of the next request.
                await connection.disconnect(nowait=True)
                raise
            finally:
                await pool.release(connection)


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response(timeout=math.inf)
    except exceptions.ResponseError as error:
        return error


@asynccontextmanager
async def redis_or_unavailable() -> AsyncIterator[None]:
    """Tells the caller that Redis is away, and nothing else: without its address."""
    try:
        yield
    except _AWAY as error:
        raise UnavailableError(
            "Redis cannot be reached; decisions wait for it",
            reason=error_reason_pb2.ERROR_REASON_REDIS_UNAVAILABLE,
        ) from error
