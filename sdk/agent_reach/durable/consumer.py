"""Who works a queue, and how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .batch import Batch
from .queue import TableQueue
from .settings import QueueSettings

Handler = Callable[[Batch], Awaitable[None]]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Consumer:
    """A queue, who handles its rows, and within which limits.

    Attributes:
        queue: the table.
        handler: gets the batches.
        settings: the limits.
        starts_at_once: for a handler that calls ``Batch.start`` first of all: says whether it would do so at once.
            While it says so, work on rows that can be handed out starts with their claim, in one statement; asked once
            more right before the handler is called with them. Rows that then come to nothing before any work are to be
            settled with ``counted=False``.
    """

    queue: TableQueue
    handler: Handler
    settings: QueueSettings = field(default_factory=QueueSettings)
    starts_at_once: Callable[[], bool] = _never
