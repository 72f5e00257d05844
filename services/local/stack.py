"""The whole system on this machine: embedded PostgreSQL and Redis, migrations, five processes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psycopg

from agent_reach import AsyncReach
from agent_reach.cli.endpoints import Endpoints
from agent_reach.local import LocalPostgres, LocalRedis
from services.chassis.migrations import API_ROLE, ENGINE_ROLE, OWNER_ROLE, create_roles, migrate
from services.main import ROLE_NAMES

from .data import DataDirectory, Keys
from .ports import LOOPBACK, Ports
from .process import RoleProcess
from .servers import WatchedServer, watched_servers

# The provider whose receipts the development secret signs.
PROVIDER = "dev"
_DATABASE = "reach"
_ResultT = TypeVar("_ResultT")


class LocalStack:
    """Runs everything for as long as the `async with` body runs; what was started is stopped, whatever happens.

    Args:
        data: where everything lies; the caller holds it (:meth:`DataDirectory.held`).
        ports: where everything listens.
        config: folder of policies.yaml and templates/.
        environment: what the roles get beside what this stack sets.
        postgres_settings: server parameters.
        on_progress: is told what is being done.

    Raises:
        StartupError: a part did not start.
        LocalServerError: PostgreSQL or Redis did not start.

    Attributes:
        config: folder of policies.yaml and templates/.
        keys: the secrets in force.
        postgres: the database server.
        redis: the Redis server.
        roles: the processes by role, in the order in which they drain.
    """

    def __init__(
        self,
        data: DataDirectory,
        ports: Ports,
        *,
        config: Path,
        environment: Mapping[str, str],
        postgres_settings: Mapping[str, str] | None = None,
        on_progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.data = data
        self.ports = ports
        self.keys: Keys = data.keys()
        self.postgres = LocalPostgres(data.postgres, postgres_settings)
        self.redis = LocalRedis(data.redis)
        self.roles: dict[str, RoleProcess] = {}
        self.config = config
        self._environment = environment
        self._on_progress = on_progress
        self._parts = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as parts:
            await self._start(parts)
            self._parts = parts.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._parts.aclose()

    @property
    def endpoints(self) -> Endpoints:
        """Where everything listens."""
        return Endpoints(
            pid=os.getpid(),
            targets={role: f"{LOOPBACK}:{self.ports.grpc(role)}" for role in ROLE_NAMES},
            metrics={role: f"http://{LOOPBACK}:{self.ports.admin(role)}/metrics" for role in ROLE_NAMES},
            receipts_url=f"http://{LOOPBACK}:{self.ports.receipts_http}/v1/providers/{PROVIDER}/receipts",
            api_key=self.keys.agent,
            operator_key=self.keys.operator,
        )

    @property
    def admin_dsn(self) -> str:
        """The superuser's connection string to the database."""
        return self.postgres.dsn(_DATABASE)

    @property
    def servers(self) -> list[WatchedServer]:
        """PostgreSQL and Redis, to be kept alive."""
        return watched_servers(self.postgres, self.redis, _in_thread)

    def client(self, api_key: str | None = None) -> AsyncReach:
        """Returns a client of the development agent, or of whom the key belongs to."""
        targets = self.endpoints.targets
        return AsyncReach(
            targets["intake"],
            api_key=api_key or self.keys.agent,
            policy_target=targets["policy"],
            sandbox_target=targets["sandbox"],
        )

    async def _start(self, parts: AsyncExitStack) -> None:
        self._on_progress("PostgreSQL")
        parts.callback(self.postgres.stop)
        await _in_thread(self.postgres.start)
        self._on_progress("Redis")
        parts.callback(self.redis.stop)
        await _in_thread(self.redis.start)
        self._on_progress("migrations")
        await _in_thread(self._prepare_database)
        self._on_progress(f"services: {', '.join(ROLE_NAMES)}")
        self.data.logs.mkdir(exist_ok=True)
        environment = self._role_environment()
        for role in ROLE_NAMES:
            own = {
                "REACH_GRPC_ADDRESS": f"{LOOPBACK}:{self.ports.grpc(role)}",
                "REACH_ADMIN_ADDRESS": f"{LOOPBACK}:{self.ports.admin(role)}",
            }
            self.roles[role] = RoleProcess(role, environment | own, self.data.logs / f"{role}.log")
        parts.push_async_callback(self._stop_roles)
        try:
            async with asyncio.TaskGroup() as group:
                for process in self.roles.values():
                    group.create_task(process.start())
        except BaseExceptionGroup as errors:
            # The first part that failed is the one to mend; the others were only told to stop.
            raise errors.exceptions[0] from None

    async def _stop_roles(self) -> None:
        for process in self.roles.values():
            await process.stop()

    def _prepare_database(self) -> None:
        # It may be there from an earlier run.
        with suppress(psycopg.errors.DuplicateDatabase):
            self.postgres.create_database(_DATABASE)
        create_roles(self.admin_dsn)
        migrate(self.postgres.dsn(_DATABASE, OWNER_ROLE))

    def _role_environment(self) -> dict[str, str]:
        engine = self.postgres.dsn(_DATABASE, ENGINE_ROLE)
        targets = {f"REACH_{role.upper()}_TARGET": target for role, target in self.endpoints.targets.items()}
        return {
            **self._environment,
            **targets,
            "REACH_POSTGRES_ENGINE_DSN": engine,
            "REACH_POSTGRES_DIRECT_DSN": engine,
            "REACH_POSTGRES_API_DSN": self.postgres.dsn(_DATABASE, API_ROLE),
            "REACH_REDIS_URL": self.redis.url,
            "REACH_CONFIG_DIR": str(self.config),
            "REACH_API_KEYS_FILE": str(self.data.api_keys_file),
            "REACH_SERVICE_KEY": self.keys.service,
            "REACH_RECEIPTS_HTTP_ADDRESS": f"{LOOPBACK}:{self.ports.receipts_http}",
            "REACH_RECEIPT_SECRETS": json.dumps({PROVIDER: self.keys.receipts}),
        }


async def _in_thread(function: Callable[[], _ResultT]) -> _ResultT:
    """Runs a blocking start in a thread. When cancelled, waits for its end first: a half-started server has no stop."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
