"""PgBouncer in transaction mode, in front of a database of the tests."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .tools import require_tool


@contextmanager
def pgbouncer(dsn: str, directory: Path, *, connections: int = 3) -> Iterator[str]:
    """A pooler; its clients share a few connections, each for the length of a transaction.

    Args:
        dsn: of the database, on a Unix socket that trusts its user.
        directory: for its files; must be empty, with a short path.
        connections: to the server. So few that clients find each other's session state, if they leave any.

    Yields:
        The connection string through the pooler.
    """
    program = require_tool("pgbouncer", "pgbouncer")
    server = conninfo_to_dict(dsn)
    # It refuses to be root, and must reach the server's socket: it runs as whoever owns that.
    owner = Path(str(server["host"])).stat().st_uid
    directory.mkdir(mode=0o755)
    os.chown(directory, owner, -1)
    settings = directory / "pgbouncer.ini"
    settings.write_text(
        f"""\
[databases]
behind = host={server["host"]} dbname={server["dbname"]} user={server["user"]}
[pgbouncer]
pool_mode = transaction
default_pool_size = {connections}
auth_type = any
listen_addr =
unix_socket_dir = {directory}
logfile = {directory}/log
ignore_startup_parameters =
"""
    )
    with subprocess.Popen([program, "--quiet", str(settings)], user=owner if os.getuid() == 0 else None) as process:
        try:
            through = make_conninfo("", host=str(directory), port=6432, dbname="behind", user="anybody")
            _wait_until_it_answers(through)
            yield through
        finally:
            process.terminate()


def _wait_until_it_answers(dsn: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
