"""Waking the workers when registrations commit, with few notifications."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Any

import psycopg

# PostgreSQL commits transactions that notify one after the other, in the whole server, each with its own flush. So
# few of ours do.
_PAUSE_SECONDS = 0.05
# A transaction that stays open is asked for less and less often: at every eighth of its age, and once a second.
_PATIENCE, _LOOK_SECONDS = 8, 1.0
# Beyond so many open transactions the oldest are left to the workers' scans.
_MAX_WATCHED = 1000
# How long the end of the process waits for the last notification.
_LAST_SECONDS = 1.0


class Bell:
    """Says which registrations notify with their own commit: one in 50 ms per process.

    For those in between, a thread watches their transactions and sends one notification for all that have committed. It
    lives only while there are such, has a connection of its own, and does all the notifying meanwhile.

    Args:
        dsn: PostgreSQL, or a pooler.
        channel: what the workers listen to.
        log: where failures go.
    """

    def __init__(self, dsn: str, channel: str, log: Any) -> None:
        self._dsn = dsn
        self._channel = channel
        self._log = log
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._rung_at = self._looked_at = float("-inf")
        self._watched: dict[str, tuple[int, float]] = {}
        self._thread: threading.Thread | None = None

    def rings(self) -> bool:
        """Says whether a registration that is about to be written shall notify with its transaction's commit."""
        if self._process != os.getpid():
            self._reset()  # forked: the thread, and whoever held the lock, stayed behind
        with self._lock:
            now = time.monotonic()
            if self._watched or now - self._rung_at < _PAUSE_SECONDS:
                return False
            self._rung_at = now
            return True

    def watch(self, transaction: str, moment: int) -> None:
        """Has the workers woken once a transaction has committed.

        Args:
            transaction: its id (``pg_current_xact_id``).
            moment: when its task is planned, in milliseconds since the epoch.
        """
        with self._lock:
            known, since = self._watched.pop(transaction, (moment, time.monotonic()))
            self._watched[transaction] = (min(known, moment), since)
            if len(self._watched) > _MAX_WATCHED:
                del self._watched[next(iter(self._watched))]
            self._event.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reach-retry-bell", daemon=True)
                self._thread.start()
                atexit.register(self._thread.join, _LAST_SECONDS)

    def _run(self) -> None:
        thread = threading.current_thread()
        try:
            with psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None, connect_timeout=5) as connection:
                while (pause := self._pause()) is not None:
                    if pause > 0:
                        self._event.wait(pause)
                        self._event.clear()
                    else:
                        self._ring_for(connection)
        except psycopg.Error as error:
            self._log.warning("retry.tasks_left_to_the_scans", error=type(error).__name__)
        finally:
            with self._lock:
                if self._thread is thread:
                    self._thread = None
                    self._watched.clear()
            atexit.unregister(thread.join)

    def _pause(self) -> float | None:
        """Returns how long to wait before the next look; None when nothing is left, and the thread ends."""
        with self._lock:
            if not self._watched:
                self._thread = None
                return None
            now = time.monotonic()
            youngest = min(now - since for _, since in self._watched.values())
            patience = max(_PAUSE_SECONDS, min(youngest / _PATIENCE, _LOOK_SECONDS))
            return max(self._rung_at + _PAUSE_SECONDS, self._looked_at + patience) - now

    def _ring_for(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            watched = dict(self._watched)
            self._looked_at = time.monotonic()
        cursor = connection.execute(
            "SELECT x::text, pg_xact_status(x) FROM unnest(%s::xid8[]) AS x"
            " WHERE pg_xact_status(x) IS DISTINCT FROM 'in progress'",
            (list(watched),),
        )
        ended = dict(cursor.fetchall())
        committed = [watched[transaction][0] for transaction, status in ended.items() if status == "committed"]
        with self._lock:
            for transaction in ended:
                self._watched.pop(transaction, None)
            if committed:
                self._rung_at = time.monotonic()
        if committed:
            connection.execute("SELECT pg_notify(%s, %s)", (self._channel, str(min(committed))))
