"""The dispatcher's gRPC surface: translates, holds no logic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import grpc

from agent_reach.v1 import dispatcher_pb2, dispatcher_pb2_grpc
from services.catalog.rules import Category, Channel
from services.catalog.wire import category_to_wire, channel_from_wire, channel_to_wire
from services.chassis.batch_stream import serve_batches
from services.chassis.deadline import remaining_seconds
from services.chassis.errors import InvalidFieldsError, UnavailableError, Violation
from services.chassis.moments import moment, timestamp
from services.chassis.postgres import Pool

from . import reading
from .accept import Acceptor
from .advance import Advancer
from .cancel import Canceller
from .decisions import DecisionReader, History
from .model import Recipient
from .outcomes import Cursor, OutcomeReader
from .states import State
from .validation import check_accepted, check_receipts
from .wire import attempt_to_wire, outcome_to_wire, receipt_to_wire, state_to_wire, task_to_wire

_MAX_BATCH = 500
_AWAIT_POLL_SECONDS = 0.02
_AWAIT_SECONDS = 10.0
# Left of the caller's deadline for the answer to reach it.
_AWAIT_MARGIN_SECONDS = 0.25

Context = grpc.aio.ServicerContext[Any, Any]


class DispatcherServer(dispatcher_pb2_grpc.DispatcherServiceServicer):
    """Serves the other services."""

    def __init__(
        self,
        *,
        pool: Pool,
        acceptor: Acceptor,
        advancer: Advancer,
        canceller: Canceller,
        outcomes: OutcomeReader,
        decisions: DecisionReader,
        stopping: asyncio.Event,
    ) -> None:
        self._pool = pool
        self._acceptor = acceptor
        self._advancer = advancer
        self._canceller = canceller
        self._outcomes = outcomes
        self._decisions = decisions
        self._stopping = stopping

    async def Accept(self, request_iterator: AsyncIterator[dispatcher_pb2.AcceptRequest], context: Context) -> None:
        """Takes batches of decided intents."""
        await serve_batches(request_iterator, context, self._accept, dispatcher_pb2.AcceptResponse, self._stopping)

    async def Advance(self, request_iterator: AsyncIterator[dispatcher_pb2.AdvanceRequest], context: Context) -> None:
        """Applies batches of receipts."""
        await serve_batches(request_iterator, context, self._advance, dispatcher_pb2.AdvanceResponse, self._stopping)

    async def Cancel(self, request: dispatcher_pb2.CancelRequest, context: Context) -> dispatcher_pb2.CancelResponse:
        """Cancels what has not left."""
        intent_id = _uuid("intent_id", request.intent_id)
        state = await self._canceller.cancel(intent_id, request)
        return dispatcher_pb2.CancelResponse(cancelled=state is State.SUPPRESSED, state=state_to_wire(state))

    async def GetTimeline(
        self, request: dispatcher_pb2.GetTimelineRequest, context: Context
    ) -> dispatcher_pb2.GetTimelineResponse:
        """Returns what is known of an intent."""
        async with self._pool.connection() as connection:
            found = await reading.timeline(connection, request.tenant, _uuid("intent_id", request.intent_id))
        response = dispatcher_pb2.GetTimelineResponse(outcomes=[outcome_to_wire(row) for row in found["outcomes"]])
        for row in found["tasks"]:
            task = task_to_wire(row)
            task.attempts.extend(attempt_to_wire(item) for item in found["attempts"] if item["task_id"] == row["id"])
            task.receipts.extend(receipt_to_wire(item) for item in found["receipts"] if item["task_id"] == row["id"])
            for same in found["same_texts"]:
                if same["task_id"] == row["id"]:
                    task.same_text.intent_id = str(same["intent_id"])
                    task.same_text.left_at.CopyFrom(timestamp(same["left_at"]))
            response.tasks.append(task)
        return response

    async def StreamOutcomes(
        self, request: dispatcher_pb2.StreamOutcomesRequest, context: Context
    ) -> AsyncIterator[dispatcher_pb2.StreamOutcomesResponse]:
        """Streams outcomes from a cursor on."""
        intent_ids = [_uuid("intent_ids", text) for text in request.intent_ids]
        cursor = await self._outcomes.start(request.cursor, from_now=request.from_now)
        async for rows, after in self._outcomes.follow(cursor, request.tenant, intent_ids, self._stopping):
            yield dispatcher_pb2.StreamOutcomesResponse(
                outcomes=[outcome_to_wire(row, str(Cursor.of(after.epoch, row))) for row in rows], cursor=str(after)
            )
        raise UnavailableError("this server is stopping; go on with the last cursor")

    async def ListRecentSends(
        self, request: dispatcher_pb2.ListRecentSendsRequest, context: Context
    ) -> dispatcher_pb2.ListRecentSendsResponse:
        """Returns what counts on users' caps."""
        users = [Recipient(user.tenant, user.user_id) for user in request.users]
        async with self._pool.connection() as connection:
            rows = await reading.recent_sends(connection, users, moment(request.since))
        return dispatcher_pb2.ListRecentSendsResponse(
            sends=[
                dispatcher_pb2.RecentSend(
                    user=dispatcher_pb2.UserRef(tenant=row["tenant"], user_id=row["user_id"]),
                    intent_id=str(row["intent_id"]),
                    hop=row["hop"],
                    channel=channel_to_wire(Channel(row["channel"])),
                    cap_date=row["cap_date"].isoformat(),
                    category=category_to_wire(Category(row["category"])),
                    sent_at=timestamp(row["sent_at"]),
                    uncertain=row["uncertain"],
                )
                for row in rows
            ]
        )

    async def CountSends(
        self, request: dispatcher_pb2.CountSendsRequest, context: Context
    ) -> dispatcher_pb2.CountSendsResponse:
        """Counts what left for tenants and on channels."""
        since = moment(request.since)
        channels = [channel for channel in map(channel_from_wire, request.channels) if channel is not None]
        response = dispatcher_pb2.CountSendsResponse()
        async with self._pool.connection() as connection:
            if request.tenants:
                for tenant, count in (await reading.count_tenant_sends(connection, request.tenants, since)).items():
                    response.tenants.add(tenant=tenant, count=count)
            if channels:
                for channel, count in (await reading.count_channel_sends(connection, channels, since)).items():
                    response.channels.add(channel=channel_to_wire(channel), count=count)
        return response

    async def StreamDecisions(
        self, request: dispatcher_pb2.StreamDecisionsRequest, context: Context
    ) -> AsyncIterator[dispatcher_pb2.StreamDecisionsResponse]:
        """Streams what was judged, the oldest tasks first."""
        history = History(request.tenant, moment(request.since), moment(request.before), request.scene)
        async for page in self._decisions.follow(history, self._stopping):
            yield dispatcher_pb2.StreamDecisionsResponse(decisions=page)
        if self._stopping.is_set():
            raise UnavailableError("this server is stopping; start again")

    async def AwaitSending(
        self, request: dispatcher_pb2.AwaitSendingRequest, context: Context
    ) -> dispatcher_pb2.AwaitSendingResponse:
        """Waits until nothing is being handed over to these recipients."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + max(0.0, remaining_seconds(_AWAIT_SECONDS) - _AWAIT_MARGIN_SECONDS)
        addresses = [(channel_from_wire(item.channel), item.value) for item in request.addresses]
        async with self._pool.connection() as connection:
            open_tasks = await reading.sending_to(connection, request.tenant, request.user_ids, addresses)
        # Only those of this moment: whatever starts later sees the suppression.
        while open_tasks and loop.time() < give_up_at:
            await asyncio.sleep(_AWAIT_POLL_SECONDS)
            async with self._pool.connection() as connection:
                open_tasks = await reading.still_sending(connection, list(open_tasks))
        return dispatcher_pb2.AwaitSendingResponse(in_flight=len(open_tasks))

    async def _accept(self, request: dispatcher_pb2.AcceptRequest) -> dispatcher_pb2.AcceptResponse:
        _check_batch(len(request.items))
        _refuse(check_accepted(request.items))
        inserted = await self._acceptor.accept(request.items)
        return dispatcher_pb2.AcceptResponse(
            results=[dispatcher_pb2.AcceptResult(task_id=str(item.task_id), existed=item.existed) for item in inserted]
        )

    async def _advance(self, request: dispatcher_pb2.AdvanceRequest) -> dispatcher_pb2.AdvanceResponse:
        _check_batch(len(request.items))
        _refuse(check_receipts(request.items))
        return await self._advancer.advance(request.items)


def _check_batch(size: int) -> None:
    if not 1 <= size <= _MAX_BATCH:
        raise InvalidFieldsError([Violation("items", f"has {size} entries; 1 to {_MAX_BATCH} are allowed")])


def _refuse(violations: Sequence[Violation]) -> None:
    if violations:
        raise InvalidFieldsError(violations)


def _uuid(field: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidFieldsError([Violation(field, "is not a UUID")]) from None
