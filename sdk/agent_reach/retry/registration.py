"""Registering tasks: one INSERT in a transaction that somebody else commits, or in one of its own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg

from .bell import Bell
from .codec import any_json
from .connections import AsyncConnection, SyncConnection, async_driver, sync_driver, two_phase
from .handlers import Registry
from .model import Scheduled
from .options import Strategies, TaskOptions, draft, merged
from .settings import RetrySettings
from .store import Draft, Statements, fetch, fetch_async
from .telemetry import Telemetry

# A key's holder may end between our INSERT and our SELECT; so often in a row it does not.
_KEY_ROUNDS = 10


class Registrar:
    """Writes tasks into the database.

    Args:
        dsn: for transactions of its own.
        statements: the SQL.
        registry: the handlers of this process, by which parameters are checked.
        strategies: those that are known.
        settings: the defaults.
        telemetry: the instruments.
        log: where failures go.
    """

    def __init__(
        self,
        dsn: str,
        statements: Statements,
        registry: Registry,
        strategies: Strategies,
        settings: RetrySettings,
        telemetry: Telemetry,
        log: Any,
    ) -> None:
        self._dsn = dsn
        self._statements = statements
        self._registry = registry
        self._strategies = strategies
        self._settings = settings
        self._telemetry = telemetry
        self._bell = Bell(dsn, statements.channel, log)

    def draft(self, code: str, parameter: Any, options: TaskOptions) -> Draft:
        """Checks a task by its handler, if this process has it, and by what every task must be.

        Raises:
            RegistrationError: it cannot be registered.
        """
        handler = self._registry.get(code)
        if handler is None:
            payload, layers = any_json(parameter), merged(self._settings, options)
        else:
            payload, layers = handler.encode(parameter), merged(self._settings, handler.options, options)
        return draft(code, payload, layers, self._strategies, self._telemetry.origin())

    def insert(self, connection: SyncConnection, task: Draft) -> Scheduled:
        """Inserts a task in the connection's transaction."""
        driver = sync_driver(connection)
        for _ in range(_KEY_ROUNDS):
            rings = self._rings(driver)
            rows = fetch(driver, self._statements.insert(task, notify=rings))
            if rows:
                return self._created(task, *rows[0][1:3], rings=rings)
            if task.unique_key is not None and (known := fetch(driver, self._statements.live(task.unique_key))):
                return Scheduled(UUID(known[0][0]), created=False)
        raise _changes_hands(task.unique_key)

    async def insert_async(self, connection: AsyncConnection, task: Draft) -> Scheduled:
        """Inserts a task in the connection's transaction."""
        driver = await async_driver(connection)
        for _ in range(_KEY_ROUNDS):
            rings = self._rings(driver)
            rows = await fetch_async(driver, self._statements.insert(task, notify=rings))
            if rows:
                return self._created(task, *rows[0][1:3], rings=rings)
            if task.unique_key is not None:
                known = await fetch_async(driver, self._statements.live(task.unique_key))
                if known:
                    return Scheduled(UUID(known[0][0]), created=False)
        raise _changes_hands(task.unique_key)

    def insert_alone(self, task: Draft) -> Scheduled:
        """Inserts a task in a transaction of its own."""
        with psycopg.connect(self._dsn, prepare_threshold=None) as connection:
            return self.insert(connection, task)

    async def insert_alone_async(self, task: Draft) -> Scheduled:
        """Inserts a task in a transaction of its own."""
        async with await psycopg.AsyncConnection.connect(self._dsn, prepare_threshold=None) as connection:
            return await self.insert_async(connection, task)

    def _rings(self, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
        return self._settings.notify and not two_phase(driver) and self._bell.rings()

    def _created(self, task: Draft, transaction: str, moment: int, *, rings: bool) -> Scheduled:
        if self._settings.notify and not rings:
            self._bell.watch(transaction, moment)
        self._telemetry.registered(task.code)
        return Scheduled(task.id)


def _changes_hands(unique_key: str | None) -> psycopg.errors.SerializationFailure:
    # Whoever repeats transactions on conflicts repeats this one too.
    return psycopg.errors.SerializationFailure(f"the unique key {unique_key!r} keeps changing hands; try again")
