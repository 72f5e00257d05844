"""The gRPC surface of the policy for the other services: reads batches, hands them on, writes the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from agent_reach.v1 import policy_pb2, policy_pb2_grpc
from services.chassis.batch_stream import serve_batches

from . import batches, requests
from .counters import Counters
from .judge import Judge
from .silence import Silence
from .translate import decisions_to_wire

Context = grpc.aio.ServicerContext[Any, Any]


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """Judges, settles, and looks a last time, in streams of batches.

    Args:
        judge: evaluates.
        counters: settles reservations.
        silence: looks up suppressions.
        stopping: set when the server drains.
        batches_in_work: batches of one stream that are in work at the same time.
    """

    def __init__(
        self, judge: Judge, counters: Counters, silence: Silence, stopping: asyncio.Event, batches_in_work: int
    ) -> None:
        self._judge = judge
        self._counters = counters
        self._silence = silence
        self._stopping = stopping
        self._batches_in_work = batches_in_work

    async def Evaluate(self, request_iterator: AsyncIterator[policy_pb2.EvaluateRequest], context: Context) -> None:
        """Judges batches of messages."""

        async def handle(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
            decisions = await self._judge.evaluate(batches.read_items(request))
            return decisions_to_wire(decisions)

        await self._serve(request_iterator, context, handle, policy_pb2.EvaluateResponse)

    async def Settle(self, request_iterator: AsyncIterator[policy_pb2.SettleRequest], context: Context) -> None:
        """Confirms or gives back reservations."""

        async def handle(request: policy_pb2.SettleRequest) -> policy_pb2.SettleResponse:
            return policy_pb2.SettleResponse(lost=await self._counters.settle(batches.read_settlements(request)))

        await self._serve(request_iterator, context, handle, policy_pb2.SettleResponse)

    async def CheckSuppressed(
        self, request_iterator: AsyncIterator[policy_pb2.CheckSuppressedRequest], context: Context
    ) -> None:
        """Looks a last time at messages that are about to leave."""

        async def handle(request: policy_pb2.CheckSuppressedRequest) -> policy_pb2.CheckSuppressedResponse:
            reasons = await self._silence.check(requests.read_departures(request))
            return policy_pb2.CheckSuppressedResponse(reasons=reasons)

        await self._serve(request_iterator, context, handle, policy_pb2.CheckSuppressedResponse)

    async def _serve(self, request_iterator: Any, context: Context, handle: Any, response_type: Any) -> None:
        await serve_batches(
            request_iterator, context, handle, response_type, self._stopping, concurrency=self._batches_in_work
        )
