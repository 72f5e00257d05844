"""Which port each part of a local system listens on."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from services.chassis.startup import StartupError

DEFAULT_BASE = 7401
LOOPBACK = "127.0.0.1"
# Below the range that systems give to outgoing connections (from 32768), so that none of ours takes one of these
# while the part that owns it restarts.
_FREE_RANGE = range(10_000, 32_000)


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a local system, all on the loopback interface."""

    intake: int
    policy: int
    dispatcher: int
    sandbox: int
    receipts: int
    receipts_http: int
    intake_admin: int
    policy_admin: int
    dispatcher_admin: int
    sandbox_admin: int
    receipts_admin: int

    @classmethod
    def choose(cls, base: int = DEFAULT_BASE) -> Ports:
        """Returns the ports from `base` on (gRPC, then receipts HTTP; admin ports 10 higher); 0 takes free ones."""
        if base:
            wanted = (*range(base, base + 6), *range(base + 10, base + 15))
            for port in wanted:
                if not _is_free(port):
                    raise StartupError(
                        "ports",
                        f"{port} is taken by another process",
                        "name other ones with --port-base, 0 takes free ones",
                    )
            return cls(*wanted)
        free = free_ports()
        return cls(*(next(free) for _ in range(11)))

    def grpc(self, role: str) -> int:
        """Returns the port on which a role serves gRPC."""
        port: int = getattr(self, role)
        return port

    def admin(self, role: str) -> int:
        """Returns the port on which a role serves /metrics."""
        port: int = getattr(self, f"{role}_admin")
        return port


def free_ports() -> Iterator[int]:
    """Yields ports, each once, on which nobody listens at the moment."""
    yield from filter(_is_free, random.sample(_FREE_RANGE, len(_FREE_RANGE)))


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        # As the servers do: connections of an earlier run that are still dying do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
