"""Retries that survive crashes, registered in the caller's own transaction. Needs only PostgreSQL.

See :class:`Retries`, which is all of it, and ``docs/retry.md``. Needs the extra ``agent-reach[retry]``.
"""

from __future__ import annotations

from agent_reach.durable import ClaimLostError

from .app import Retries
from .context import Context, SyncContext
from .errors import (
    AttemptFailedError,
    AttemptInterruptedError,
    BindingError,
    HandlerError,
    NotInstalledError,
    ParameterError,
    RegistrationError,
    RetryError,
    StrategyError,
    TaskNotFoundError,
    TaskStateError,
)
from .model import Attempt, GiveUp, Report, Retry, Scheduled, State, Stats, Task, Wait
from .operate import Operations, Page
from .options import TaskOptions
from .schema import install, install_sql
from .settings import RetrySettings
from .strategies import BACKOFF, FIBONACCI, FIXED, INCREMENT, Strategy
from .worker import Worker

__all__ = [
    "BACKOFF",
    "FIBONACCI",
    "FIXED",
    "INCREMENT",
    "Attempt",
    "AttemptFailedError",
    "AttemptInterruptedError",
    "BindingError",
    "ClaimLostError",
    "Context",
    "GiveUp",
    "HandlerError",
    "NotInstalledError",
    "Operations",
    "Page",
    "ParameterError",
    "RegistrationError",
    "Report",
    "Retries",
    "Retry",
    "RetryError",
    "RetrySettings",
    "Scheduled",
    "State",
    "Stats",
    "Strategy",
    "StrategyError",
    "SyncContext",
    "Task",
    "TaskNotFoundError",
    "TaskOptions",
    "TaskStateError",
    "Wait",
    "Worker",
    "install",
    "install_sql",
]
