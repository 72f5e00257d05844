"""Intake's gRPC surface: translates, holds no logic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import grpc

from agent_reach.v1 import dispatcher_pb2, dispatcher_pb2_grpc, message_pb2, reach_pb2, reach_pb2_grpc
from services.chassis.batch_stream import serve_batches
from services.chassis.errors import (
    InvalidFieldsError,
    NotFoundError,
    ServiceError,
    TooLateError,
    UnavailableError,
    Violation,
    to_status,
)
from services.chassis.moments import moment, timestamp
from services.chassis.postgres import Pool, tenant_transaction
from services.chassis.principal import Principal, current_principal
from services.chassis.telemetry import current_traceparent
from services.chassis.validation import check_text

from . import store
from .explain import tell
from .outcomes import relay_outcomes
from .salvage import Batch, readable_batches
from .submit import GroupCommit, Stored, Submitter
from .wire import intent_to_wire, page_token, read_page_token

_MAX_BATCH = 1_000
_DEFAULT_PAGE, _MAX_PAGE = 50, 500
_MAX_WATCHED = 1_000

Context = grpc.aio.ServicerContext[Any, Any]


class ReachServer(reach_pb2_grpc.ReachServiceServicer):
    """Serves agents and operators."""

    def __init__(
        self,
        *,
        api_pool: Pool,
        submitter: Submitter,
        group_commit: GroupCommit,
        dispatcher: dispatcher_pb2_grpc.DispatcherServiceAsyncStub,
        stopping: asyncio.Event,
    ) -> None:
        self._api_pool = api_pool
        self._submitter = submitter
        self._group_commit = group_commit
        self._dispatcher = dispatcher
        self._stopping = stopping

    async def Submit(self, request: reach_pb2.SubmitRequest, context: Context) -> reach_pb2.SubmitResponse:
        """Stores one intent."""
        draft = self._submitter.draft(request.intent, current_principal(), current_traceparent())
        if isinstance(draft, InvalidFieldsError):
            raise draft
        return _submitted(await self._group_commit.store(draft))

    async def SubmitStream(
        self, request_iterator: AsyncIterator[reach_pb2.SubmitStreamRequest], context: Context
    ) -> None:
        """Stores batches of intents."""
        principal, traceparent = current_principal(), current_traceparent()

        async def handle(request: Batch) -> reach_pb2.SubmitStreamResponse:
            size = len(request.intents)
            if not 1 <= size <= _MAX_BATCH:
                raise InvalidFieldsError([Violation("intents", f"has {size} entries; 1 to {_MAX_BATCH} are allowed")])
            results = await self._submitter.submit(request.intents, principal, traceparent)
            return reach_pb2.SubmitStreamResponse(
                results=[
                    reach_pb2.SubmitResult(error=to_status(result))
                    if isinstance(result, ServiceError)
                    else reach_pb2.SubmitResult(accepted=_submitted(result))
                    for result in results
                ]
            )

        await serve_batches(
            readable_batches(request_iterator), context, handle, reach_pb2.SubmitStreamResponse, self._stopping
        )

    async def GetIntent(self, request: reach_pb2.GetIntentRequest, context: Context) -> reach_pb2.GetIntentResponse:
        """Returns one intent."""
        return reach_pb2.GetIntentResponse(intent=await self._intent(current_principal(), request.intent_id))

    async def ListIntents(
        self, request: reach_pb2.ListIntentsRequest, context: Context
    ) -> reach_pb2.ListIntentsResponse:
        """Lists intents, newest first."""
        filters = _filters(request)
        size = request.page_size or _DEFAULT_PAGE
        if not 1 <= size <= _MAX_PAGE:
            raise InvalidFieldsError([Violation("page_size", f"is not between 1 and {_MAX_PAGE}")])
        async with tenant_transaction(self._api_pool, current_principal().tenant) as connection:
            rows = await store.list_intents(
                connection,
                filters,
                created_from=_moment(request, "created_from"),
                created_before=_moment(request, "created_before"),
                after=read_page_token(request.page_token),
                limit=size + 1,
            )
        more = len(rows) > size
        return reach_pb2.ListIntentsResponse(
            intents=[intent_to_wire(row) for row in rows[:size]],
            next_page_token=page_token(rows[size - 1]) if more else "",
        )

    async def CancelIntent(
        self, request: reach_pb2.CancelIntentRequest, context: Context
    ) -> reach_pb2.CancelIntentResponse:
        """Cancels what has not left."""
        principal = current_principal()
        async with tenant_transaction(self._api_pool, principal.tenant) as connection:
            row = await store.get_intent(connection, _uuid(request.intent_id))
        if row is None:
            raise _not_found(request.intent_id)
        answer = await self._dispatcher.Cancel(
            dispatcher_pb2.CancelRequest(
                intent_id=request.intent_id,
                tenant=principal.tenant,
                user_id=row["user_id"],
                scene=row["scene"],
                template=row["template"],
                expires_at=timestamp(row["expires_at"]),
            )
        )
        state = message_pb2.State.Name(answer.state).removeprefix("STATE_")
        if not answer.cancelled:
            raise TooLateError(f"the message is {state} and cannot be cancelled", metadata={"state": state})
        # The row follows the outcomes, and does not know yet.
        timeline = await self._timeline(principal, request.intent_id)
        intent = intent_to_wire(row)
        intent.state, intent.state_reason = answer.state, timeline.tasks[-1].reason
        if timeline.outcomes:
            intent.state_at.CopyFrom(timeline.outcomes[-1].occurred_at)
        return reach_pb2.CancelIntentResponse(intent=intent)

    async def ExplainIntent(
        self, request: reach_pb2.ExplainIntentRequest, context: Context
    ) -> reach_pb2.ExplainIntentResponse:
        """Explains why a message was or was not sent."""
        principal = current_principal()
        intent = await self._intent(principal, request.intent_id)
        timeline = await self._timeline(principal, intent.intent_id)
        return reach_pb2.ExplainIntentResponse(intent=intent, tasks=timeline.tasks, timeline=tell(intent, timeline))

    async def WatchOutcomes(
        self, request: reach_pb2.WatchOutcomesRequest, context: Context
    ) -> AsyncIterator[reach_pb2.WatchOutcomesResponse]:
        """Streams the tenant's outcomes."""
        if len(request.intent_ids) > _MAX_WATCHED:
            raise InvalidFieldsError([Violation("intent_ids", f"has more than {_MAX_WATCHED} entries")])
        if request.from_now and request.cursor:
            raise InvalidFieldsError([Violation("from_now", "cannot be set together with a cursor")])
        upstream = dispatcher_pb2.StreamOutcomesRequest(
            tenant=current_principal().tenant,
            cursor=request.cursor,
            intent_ids=[str(_uuid(text)) for text in request.intent_ids],
            from_now=request.from_now,
        )
        async for page in relay_outcomes(self._dispatcher, upstream, self._stopping):
            for outcome in page.outcomes:
                outcome.ClearField("tenant")
            yield reach_pb2.WatchOutcomesResponse(outcomes=page.outcomes, cursor=page.cursor)
        raise UnavailableError("this server is stopping; go on with the last cursor")

    async def _timeline(self, principal: Principal, intent_id: str) -> dispatcher_pb2.GetTimelineResponse:
        return await self._dispatcher.GetTimeline(
            dispatcher_pb2.GetTimelineRequest(tenant=principal.tenant, intent_id=intent_id)
        )

    async def _intent(self, principal: Principal, text: str) -> reach_pb2.Intent:
        async with tenant_transaction(self._api_pool, principal.tenant) as connection:
            row = await store.get_intent(connection, _uuid(text))
        if row is None:
            raise _not_found(text)
        return intent_to_wire(row)


def _submitted(stored: Stored) -> reach_pb2.SubmitResponse:
    return reach_pb2.SubmitResponse(intent_id=str(stored.id), duplicate=stored.duplicate)


def _filters(request: reach_pb2.ListIntentsRequest) -> dict[str, object]:
    violations = [
        violation
        for field in ("user_id", "agent", "scene")
        for violation in check_text(field, getattr(request, field), max_length=256)
    ]
    if request.state not in message_pb2.State.values():
        violations.append(Violation("state", "is no state"))
    if violations:
        raise InvalidFieldsError(violations)
    filters: dict[str, object] = {
        field: getattr(request, field) for field in ("user_id", "agent", "scene") if getattr(request, field)
    }
    if request.state:
        state_name: Callable[[message_pb2.State.ValueType], str] = message_pb2.State.Name
        filters["state"] = state_name(request.state).removeprefix("STATE_")
    return filters


def _moment(request: reach_pb2.ListIntentsRequest, field: str) -> datetime | None:
    if not request.HasField(field):  # type: ignore[arg-type]  # one of its two moments
        return None
    try:
        return moment(getattr(request, field))
    except (ValueError, OverflowError):
        raise InvalidFieldsError([Violation(field, "is no moment between the years 1 and 9999")]) from None


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidFieldsError([Violation("intent_id", "is not a UUID")]) from None


def _not_found(intent_id: str) -> NotFoundError:
    return NotFoundError("there is no such intent", metadata={"resource": "intent", "id": intent_id})
