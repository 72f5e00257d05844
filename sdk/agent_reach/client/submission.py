"""The bookkeeping of a stream of intents: batches, who was answered, what must be sent again. No I/O."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_reach.v1 import reach_pb2

from . import requests
from .errors import InternalError, InvalidArgumentError, ReachError, from_status
from .requests import IntentFields, invalid

# The service's own limit.
MAX_BATCH_SIZE = 1_000
# A batch ends here also when it holds few intents, far below the largest message that a server takes.
_MAX_BATCH_BYTES = 1_000_000
# Batches without an answer; more would only fill memory.
_MAX_OUTSTANDING = 4


@dataclass(frozen=True, slots=True)
class Submitted:
    """An intent that is stored.

    Attributes:
        intent_id: its id.
        duplicate: an earlier intent with the same key or content stands for it. Also true for an intent that
            was stored by a stream that broke before the answer came.
    """

    intent_id: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """An intent that is not stored, and why."""

    error: ReachError


Result = Submitted | Refused


@dataclass(slots=True)
class _Batch:
    """Intents that travel together; those that no message can carry keep their place as refusals."""

    request: reach_pb2.SubmitStreamRequest
    places: list[Refused | None] = field(default_factory=list)
    size_bytes: int = 0


class Submission:
    """What was sent and not answered yet, in order.

    Args:
        batch_size: intents in a batch, 1 to 1,000.
    """

    def __init__(self, batch_size: int) -> None:
        if not 1 <= batch_size <= MAX_BATCH_SIZE:
            raise invalid("batch_size", f"must be 1 to {MAX_BATCH_SIZE}")
        self._batch_size = batch_size
        self._sequence = 0
        self._open = self._new_batch()
        self._outstanding: deque[_Batch] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the next answer must be awaited before more is sent."""
        return len(self._outstanding) >= _MAX_OUTSTANDING

    @property
    def is_done(self) -> bool:
        """Whether every batch that was closed is answered."""
        return not self._outstanding

    def unanswered(self) -> list[reach_pb2.SubmitStreamRequest]:
        """Returns what a new stream must carry first."""
        return [batch.request for batch in self._outstanding if batch.request.intents]

    def add(self, fields: IntentFields) -> reach_pb2.SubmitStreamRequest | None:
        """Takes one intent; returns the batch that it completes, to be sent."""
        batch = self._open
        try:
            spec = requests.intent(fields)
        except InvalidArgumentError as error:
            batch.places.append(Refused(error))
        else:
            batch.places.append(None)
            batch.request.intents.append(spec)
            batch.size_bytes += spec.ByteSize()
        if len(batch.places) >= self._batch_size or batch.size_bytes >= _MAX_BATCH_BYTES:
            return self.close_batch()
        return None

    def close_batch(self) -> reach_pb2.SubmitStreamRequest | None:
        """Ends the open batch; returns it when it must be sent."""
        batch = self._open
        if not batch.places:
            return None
        self._open = self._new_batch()
        self._outstanding.append(batch)
        return batch.request if batch.request.intents else None

    def answered_here(self) -> Iterator[Result]:
        """Yields the results of the oldest batches that need no answer, as nothing in them could be sent."""
        while self._outstanding and not self._outstanding[0].request.intents:
            yield from self._results(self._outstanding.popleft(), iter(()))

    def answer(self, response: reach_pb2.SubmitStreamResponse) -> Iterator[Result]:
        """Returns the results of the batch that was answered, and of those behind it that need no answer, in order.

        Raises:
            InternalError: the answer does not belong to the oldest batch, or not to all of its intents.
        """
        batch = self._outstanding[0]
        if response.sequence != batch.request.sequence or len(response.results) != len(batch.request.intents):
            raise InternalError(
                f"the service answered batch {response.sequence} with {len(response.results)} results where"
                f" batch {batch.request.sequence} with {len(batch.request.intents)} was next"
            )
        self._outstanding.popleft()
        return itertools.chain(self._results(batch, iter(response.results)), self.answered_here())

    def _results(self, batch: _Batch, answers: Iterator[reach_pb2.SubmitResult]) -> Iterator[Result]:
        for place in batch.places:
            yield place if place is not None else _result(next(answers))

    def _new_batch(self) -> _Batch:
        self._sequence += 1
        return _Batch(reach_pb2.SubmitStreamRequest(sequence=self._sequence))


def _result(answer: reach_pb2.SubmitResult) -> Result:
    if answer.WhichOneof("result") == "error":
        return Refused(from_status(answer.error))
    return Submitted(answer.accepted.intent_id, answer.accepted.duplicate)
