"""The lease of this process: one row that says it lives, renewed by a thread while the event loop turns."""
# ruff: noqa: S608 - the table's name is checked by `check_name`, values are parameters

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from .clock import DatabaseClock
from .ddl import check_name
from .log import Log
from .outage import Outage, transaction
from .settings import EngineSettings


class Lease:
    """This process's row in ``instance``: while it is there, nobody takes our rows.

    The row is deleted by whoever finds it expired, and its absence alone means that the lease is lost: after an
    outage of PostgreSQL that outlasts every lease, those who live renew theirs and go on.

    Args:
        pool: for the few statements outside the heartbeat.
        dsn: for the heartbeat's own connection.
        schema: where the ``instance`` table is.
        settings: the lease's length and beat.
        name: says to people which process this is.
        clock: learns the database's time from every registration.
        log: where it is said that it was lost, and why.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        dsn: str,
        schema: str,
        settings: EngineSettings,
        name: str,
        clock: DatabaseClock,
        log: Log,
    ) -> None:
        self._pool = pool
        self._dsn = dsn
        self._table = f"{check_name(schema)}.instance"
        self._settings = settings
        self._name = name
        self._clock = clock
        self._log = log
        self._heartbeat: _Heartbeat | None = None
        self._registered = asyncio.Event()
        self._patient_until = float("-inf")
        self.instance_id = uuid4()

    @property
    def age(self) -> float:
        """Seconds since the lease was last renewed; infinite without one."""
        return time.monotonic() - self._heartbeat.renewed_at if self._heartbeat else float("inf")

    @property
    def live(self) -> bool:
        """Whether, as far as we know, nobody may take our rows."""
        return self.age < self._settings.lease_seconds

    @property
    def steady(self) -> bool:
        """Whether renewing has worked for a while, so that others had the time to renew theirs too."""
        return self._heartbeat is not None and self.live and self._heartbeat.steady

    async def wait_registered(self) -> None:
        """Returns once there is a lease."""
        await self._registered.wait()

    async def run(self, on_lost: Callable[[], None]) -> None:
        """Takes a lease and keeps it, for ever; takes a fresh one, under a fresh id, after one was lost.

        Args:
            on_lost: called on the loop when a lease is lost, after ``instance_id`` has changed.
        """
        while True:
            began = await self._register()
            lost = asyncio.Event()
            self._heartbeat = _Heartbeat(
                self._dsn, self._table, self.instance_id, self._settings, lost, began, self._log
            )
            self._heartbeat.start()
            self._registered.set()
            try:
                await self._tick(self._heartbeat, lost)
            finally:
                self._registered.clear()
                self._heartbeat.stop()
                self._heartbeat = None
            self._log.warning("durable.lease_lost", instance=str(self.instance_id), name=self._name)
            self.instance_id = uuid4()
            on_lost()

    async def resign(self) -> None:
        """Gives the lease up: what this process still holds is free for the next sweep."""
        async with transaction(self._pool) as connection:
            await connection.execute(f"DELETE FROM {self._table} WHERE id = %s", (self.instance_id,))

    async def bury_the_dead(self) -> None:
        """Deletes the rows of processes whose lease has expired; what they held can then be swept.

        When the database's clock was set forward, or its host has slept, all leases look expired: then those who live
        get the time to renew theirs.
        """
        async with transaction(self._pool) as connection:
            cursor = connection.cursor(row_factory=tuple_row)
            asked_at = time.monotonic()
            await cursor.execute("SELECT clock_timestamp()")
            for (now,) in await cursor.fetchall():
                self._clock.observe(now, asked_at)
                if self._clock.take_step() > self._settings.heartbeat_seconds:
                    self._log.warning("durable.clock_was_set_forward")
                    self._patient_until = time.monotonic() + self._settings.lease_seconds
            if time.monotonic() < self._patient_until:
                return
            await cursor.execute(f"DELETE FROM {self._table} WHERE expires_at < clock_timestamp()")
            if cursor.rowcount:
                self._log.info("durable.dead_instances", count=cursor.rowcount)

    async def _register(self) -> float:
        """Inserts our row; returns the local monotonic time from which the lease counts."""
        outage = Outage("register", self._log)
        while True:
            began = time.monotonic()
            try:
                async with transaction(self._pool) as connection:
                    cursor = connection.cursor(row_factory=tuple_row)
                    asked_at = time.monotonic()
                    # Repeatable, for the case that the connection breaks while it commits.
                    await cursor.execute(
                        f"""
                        INSERT INTO {self._table} (id, name, expires_at)
                        VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s))
                        ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
                        RETURNING clock_timestamp()
                        """,
                        (self.instance_id, self._name, self._settings.lease_seconds),
                    )
                    for (now,) in await cursor.fetchall():
                        self._clock.observe(now, asked_at)
            except Exception as error:  # noqa: BLE001 - also a migration that is still to come
                await asyncio.sleep(outage.failed(error))
            else:
                outage.succeeded()
                return began

    async def _tick(self, heartbeat: _Heartbeat, lost: asyncio.Event) -> None:
        """Shows the heartbeat that the loop turns, until the lease is lost."""
        while not lost.is_set():
            heartbeat.ticked_at = time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), self._settings.heartbeat_seconds / 2)


class _Heartbeat(threading.Thread):
    """Renews one lease from a thread of its own, so that a busy loop does not look dead, but a dead one does."""

    def __init__(
        self,
        dsn: str,
        table: str,
        instance_id: UUID,
        settings: EngineSettings,
        lost: asyncio.Event,
        began: float,
        log: Log,
    ) -> None:
        super().__init__(name="durable-heartbeat", daemon=True)
        self.ticked_at = self.renewed_at = self._failed_at = began
        self._dsn = dsn
        self._table = table
        self._instance_id = instance_id
        self._settings = settings
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._outage = Outage("heartbeat", log, instance=str(instance_id))

    @property
    def steady(self) -> bool:
        """Whether the last two beats or more succeeded."""
        return time.monotonic() - self._failed_at > 2 * self._settings.heartbeat_seconds

    def stop(self) -> None:
        """Ends the thread soon; does not wait for it, since it may hang in the network."""
        self._stopped.set()

    def run(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        try:
            while not self._stopped.wait(self._settings.heartbeat_seconds):
                now = time.monotonic()
                # A loop that has not turned for half a lease is dead or as good as: others may have its rows.
                if now - self.ticked_at > self._settings.lease_seconds / 2:
                    self._failed_at = now
                    continue
                try:
                    connection = connection or self._connect()
                    renewed = self._renew(connection)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again while the lease lasts
                    self._failed_at = now
                    if connection is not None:
                        connection.close()
                        connection = None
                    self._outage.failed(error)
                    continue
                self._outage.succeeded()
                if not renewed:
                    return
                # The moment before the statement: the lease is at least as long as we think.
                self.renewed_at = now
        finally:
            # Also if this thread should fail in a way that nobody thought of: better a fresh lease than none.
            self._call_soon(self._lost.set)
            if connection is not None:
                connection.close()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=max(2, int(self._settings.heartbeat_seconds)),
            tcp_user_timeout=int(self._settings.lease_seconds * 500),
            application_name="durable-heartbeat",
        )

    def _renew(self, connection: psycopg.Connection[Any]) -> bool:
        cursor = connection.execute(
            f"UPDATE {self._table} SET expires_at = clock_timestamp() + make_interval(secs => %s) WHERE id = %s",
            (self._settings.lease_seconds, self._instance_id),
        )
        return cursor.rowcount == 1

    def _call_soon(self, callback: Callable[[], None]) -> None:
        # The loop may have been closed meanwhile; then there is nobody to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)
