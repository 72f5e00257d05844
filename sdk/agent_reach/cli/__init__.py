"""The command `reach`. Needs the extra ``agent-reach[cli]``.

Further commands come from the entry-point group ``agent_reach.cli``: each entry names a list of click commands.
"""

from __future__ import annotations

import os

# Commands start child processes by exec only. gRPC reads this when it is first imported, and would warn at each.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from .group import main

__all__ = ["main"]
