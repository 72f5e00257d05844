"""Where a watcher of outcomes stands. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent_reach.v1 import outcome_pb2, reach_pb2

from . import requests


@dataclass(frozen=True, slots=True)
class Watched:
    """One change of state, and where to go on once it has been dealt with.

    Attributes:
        outcome: the change.
        cursor: resumes right after this change.
    """

    outcome: outcome_pb2.Outcome
    cursor: str


class Watching:
    """Remembers the cursor from stream to stream."""

    def __init__(self, cursor: str, intent_ids: Iterable[str], *, from_now: bool) -> None:
        self._request = requests.build(
            reach_pb2.WatchOutcomesRequest,
            cursor=cursor,
            intent_ids=requests.named_list(intent_ids, "intent_ids"),
            from_now=from_now,
        )

    def request(self) -> reach_pb2.WatchOutcomesRequest:
        """Returns the request that goes on where the last stream ended."""
        return self._request

    def take(self, response: reach_pb2.WatchOutcomesResponse) -> Iterator[Watched]:
        """Yields the outcomes of one batch."""
        for outcome in response.outcomes:
            yield Watched(outcome, outcome.cursor)
        if response.cursor:
            self._request = reach_pb2.WatchOutcomesRequest(cursor=response.cursor, intent_ids=self._request.intent_ids)
