"""The command `reach`. Needs the extra `cli` of this distribution.

Further commands come from the entry-point group ``agent_reach.cli``: each entry names a list of click commands.
"""

from __future__ import annotations

import os
import sys

# Commands start child processes by exec only. gRPC reads this when it is first imported, and would warn at each.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# What the extra `cli` brings.
_EXTRA = frozenset({"click", "rich", "grpc_health"})


def main() -> None:
    """Runs the command line."""
    try:
        from .group import main as run  # noqa: PLC0415 - needs an extra that need not be there, and says so
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.exit(
            f"reach: the command line is not installed ({error.name} is missing)\n"
            "What to do: install the SDK with its extra: pip install '/path/to/agent-reach/sdk[cli]'"
        )
    run()


__all__ = ["main"]
