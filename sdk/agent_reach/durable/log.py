"""Where the engine's log goes."""

from __future__ import annotations

import structlog
from structlog.typing import FilteringBoundLogger

Log = FilteringBoundLogger


def default_log() -> Log:
    """Returns the log of an application that has not given one: structlog's, as configured there."""
    log: Log = structlog.get_logger("agent_reach.durable")
    return log
