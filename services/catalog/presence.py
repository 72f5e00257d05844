"""Which version of the configuration is in force in which process, told by the processes themselves in Redis.

Only for people who ask: nothing else depends on it, and Redis may be away.

Key: ``reach:{deployment}:processes`` (literally the deployment's name), a hash of one entry per process.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources

import redis.asyncio
import structlog
from redis import exceptions

from .holder import CatalogHolder

# Each process says so this often, and after each reload; after this silence it is taken for gone.
REFRESH_SECONDS = 5.0
STALE_SECONDS = 20
_MAX_ERROR_CHARACTERS = 4_000

_AWAY = (exceptions.RedisError, OSError, TimeoutError)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessCatalog:
    """The configuration of one process.

    Attributes:
        process: role, host and process id.
        role: for example `policy`.
        policy_version: content hash of the policy in force there.
        revision: the operator's own number of it.
        loaded_at: when it was loaded.
        seen_at: when the process told so last, by Redis' clock.
        error: why the files as they are now are not in force there; empty when they are.
    """

    process: str
    role: str
    policy_version: str
    revision: int
    loaded_at: datetime
    seen_at: datetime
    error: str


class Presence:
    """Tells what this process has in force.

    Args:
        client: Redis; while it is away nothing is told, and nobody is hurt.
        deployment: name of this installation.
        role: of this process.
        holder: what is in force.
    """

    def __init__(self, client: redis.asyncio.Redis, deployment: str, role: str, holder: CatalogHolder) -> None:
        self._redis = client
        self._key = _key(deployment)
        self._role = role
        self._holder = holder
        self._process = f"{role}@{socket.gethostname()}:{os.getpid()}"
        self._script = client.register_script(resources.files(__package__).joinpath("presence.lua").read_text())
        self._away = False

    async def run(self) -> None:
        """Tells it again and again, and at once after a reload. Has no end."""
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note() -> None:
            loop.call_soon_threadsafe(changed.set)

        self._holder.subscribe(note)
        while True:
            changed.clear()
            await self._tell()
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await changed.wait()

    async def leave(self) -> None:
        """Takes this process out of the list."""
        with suppress(*_AWAY):
            await self._redis.hdel(self._key, self._process)

    async def _tell(self) -> None:
        catalog, error = self._holder.current, self._holder.last_error
        entry = {
            "role": self._role,
            "policy_version": catalog.policy_version,
            "revision": catalog.policies.revision,
            "loaded_at": self._holder.loaded_at.timestamp(),
            "error": str(error)[:_MAX_ERROR_CHARACTERS] if error is not None else "",
        }
        try:
            await self._script(keys=[self._key], args=[self._process, json.dumps(entry), STALE_SECONDS])
        except _AWAY as failure:
            if not self._away:
                _log.info("redis_away", what="the list of processes is not kept", error=type(failure).__name__)
            self._away = True
        else:
            self._away = False


async def list_processes(client: redis.asyncio.Redis, deployment: str) -> list[ProcessCatalog]:
    """Returns what the live processes of an installation have in force, by role and name.

    Raises:
        redis.RedisError: Redis cannot be reached.
    """
    async with client.pipeline(transaction=False) as pipeline:
        pipeline.time()
        pipeline.hgetall(_key(deployment))
        (now, _), entries = await pipeline.execute()
    processes = (_read(name.decode(), value.decode()) for name, value in entries.items())
    live = [process for process in processes if now - process.seen_at.timestamp() <= STALE_SECONDS]
    return sorted(live, key=lambda process: (process.role, process.process))


def _key(deployment: str) -> str:
    return f"reach:{deployment}:processes"


def _read(name: str, value: str) -> ProcessCatalog:
    seen_at, _, text = value.partition(" ")
    entry = json.loads(text)
    return ProcessCatalog(
        process=name,
        role=entry["role"],
        policy_version=entry["policy_version"],
        revision=entry["revision"],
        loaded_at=datetime.fromtimestamp(entry["loaded_at"], UTC),
        seen_at=datetime.fromtimestamp(int(seen_at), UTC),
        error=entry["error"],
    )
