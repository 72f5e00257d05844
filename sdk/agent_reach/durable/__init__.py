"""The one durable engine: everything that waits is a row in PostgreSQL.

A queue is a table that has, beside its own columns, the durable ones (:func:`queue_columns`). An
:class:`Engine` claims its due rows in batches, hands them to a handler, and writes what the handler answers,
fenced, so that a process that was paused or cut off can never overwrite its successor. Needs the extra
``agent-reach[durable]`` and PostgreSQL 15 or later, nothing else.

What a handler can rely on:

* A committed row is handed out at or after its ``run_at`` (on the database's clock), by one live process at a
  time, again and again until somebody settles it as :class:`Done`.
* Attempts rise when work starts, never by waiting. A row whose process died at work is handed out alone.
* What :meth:`TableQueue.apply` writes commits together with the settlement, or not at all.
"""

from __future__ import annotations

from .backoff import exponential_jitter
from .batch import Batch, ClaimLostError
from .claims import Action, Claim, Done, Later, Release, Settlement
from .completer import Answer
from .consumer import Consumer, Handler
from .ddl import instance_table, queue_columns, queue_indexes, queue_storage
from .engine import Engine
from .notify import Notifier
from .queue import TableQueue
from .recordset import Recordset
from .settings import EngineSettings, QueueSettings
from .slots import Reservation
from .stats import EngineStats, QueueStats

__all__ = [
    "Action",
    "Answer",
    "Batch",
    "Claim",
    "ClaimLostError",
    "Consumer",
    "Done",
    "Engine",
    "EngineSettings",
    "EngineStats",
    "Handler",
    "Later",
    "Notifier",
    "QueueSettings",
    "QueueStats",
    "Recordset",
    "Release",
    "Reservation",
    "Settlement",
    "TableQueue",
    "exponential_jitter",
    "instance_table",
    "queue_columns",
    "queue_indexes",
    "queue_storage",
]
