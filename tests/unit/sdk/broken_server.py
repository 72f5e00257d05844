"""A server of the contract that breaks off its streams as a test wants: no real service does that on demand."""

# ruff: noqa: N802, ARG002 - the names and arguments are the contract's

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.rpc import code_pb2, status_pb2

from agent_reach.v1 import message_pb2, outcome_pb2, reach_pb2, reach_pb2_grpc


class BrokenServer(reach_pb2_grpc.ReachServiceServicer):
    """Stores submissions under their user; answers outcomes with the cursor as their number.

    Args:
        break_after: for each stream, after how many answers it breaks; later streams do not.
        outcomes: how many outcomes there are.
    """

    def __init__(self, break_after: Sequence[int] = (), outcomes: int = 0) -> None:
        self.stored: dict[str, str] = {}
        self.streams = 0
        self.batch_sizes: list[int] = []
        self.cursors: list[str] = []
        self._break_after = list(break_after)
        self._outcomes = outcomes

    async def SubmitStream(
        self, request_iterator: AsyncIterator[reach_pb2.SubmitStreamRequest], context: Any
    ) -> AsyncIterator[reach_pb2.SubmitStreamResponse]:
        answers_left = self._next_break()
        async for request in request_iterator:
            self.batch_sizes.append(len(request.intents))
            response = reach_pb2.SubmitStreamResponse(sequence=request.sequence)
            for intent in request.intents:
                result = response.results.add()
                if intent.user_id == "refuse me":
                    result.error.CopyFrom(status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="no"))
                    continue
                known = self.stored.get(intent.user_id)
                self.stored[intent.user_id] = known or f"id-{intent.user_id}"
                result.accepted.CopyFrom(
                    reach_pb2.SubmitResponse(intent_id=self.stored[intent.user_id], duplicate=known is not None)
                )
            if answers_left == 0:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
            yield response
            answers_left -= 1

    async def WatchOutcomes(
        self, request: reach_pb2.WatchOutcomesRequest, context: Any
    ) -> AsyncIterator[reach_pb2.WatchOutcomesResponse]:
        self.cursors.append(request.cursor)
        answers_left = self._next_break()
        for number in range(int(request.cursor or 0) + 1, self._outcomes + 1):
            if answers_left == 0:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
            outcome = outcome_pb2.Outcome(intent_id=str(number), state=message_pb2.STATE_SENT)
            outcome.cursor = str(number)
            yield reach_pb2.WatchOutcomesResponse(outcomes=[outcome], cursor=str(number))
            answers_left -= 1

    async def Submit(self, request: reach_pb2.SubmitRequest, context: Any) -> reach_pb2.SubmitResponse:
        return reach_pb2.SubmitResponse(intent_id=f"id-{request.intent.user_id}")

    async def GetIntent(self, request: reach_pb2.GetIntentRequest, context: Any) -> reach_pb2.GetIntentResponse:
        await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such intent")
        raise AssertionError("abort raises")

    async def ListIntents(self, request: reach_pb2.ListIntentsRequest, context: Any) -> reach_pb2.ListIntentsResponse:
        page = int(request.page_token or 0)
        return reach_pb2.ListIntentsResponse(
            intents=[reach_pb2.Intent(intent_id=f"{page}-{place}") for place in range(2)],
            next_page_token=str(page + 1) if page < 2 else "",
        )

    async def CancelIntent(self, request: Any, context: Any) -> reach_pb2.CancelIntentResponse:
        return reach_pb2.CancelIntentResponse()

    async def ExplainIntent(self, request: Any, context: Any) -> reach_pb2.ExplainIntentResponse:
        return reach_pb2.ExplainIntentResponse()

    def _next_break(self) -> int:
        self.streams += 1
        return self._break_after.pop(0) if self._break_after else -1


@asynccontextmanager
async def serving(servicer: BrokenServer) -> AsyncIterator[str]:
    """Serves for the length of the body; gives the target."""
    server = grpc.aio.server()
    reach_pb2_grpc.add_ReachServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
