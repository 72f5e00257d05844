"""Follows the dispatcher's outcomes: keeps the intents' states, and relays them to agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import grpc
import structlog

from agent_reach.v1 import dispatcher_pb2, dispatcher_pb2_grpc, message_pb2
from services.chassis.faults import is_database_outage
from services.chassis.moments import moment
from services.chassis.postgres import Pool

from .store import IntentState, follow_outcomes, outcome_cursor

# From the first state that is not left again for a lesser one, by rank; the last three are final.
_SETTLED = ("SENT", "DELIVERED", "FAILED", "SUPPRESSED", "EXPIRED")
_FINAL_RANK = 2
_BREAK_SECONDS = 0.5

_log = structlog.get_logger(__name__)


class OutcomeFollower:
    """Keeps the intents' states in step. Every replica may run one: the cursor lets only one of them write a page."""

    def __init__(self, pool: Pool, dispatcher: dispatcher_pb2_grpc.DispatcherServiceAsyncStub) -> None:
        self._pool = pool
        self._dispatcher = dispatcher

    async def run(self) -> None:
        """Follows until cancelled, over every break of the stream or the database."""
        while True:
            try:
                await self._follow(await outcome_cursor(self._pool))
            except grpc.aio.AioRpcError as error:
                _log.info("outcomes_broken", status=error.code().name)
            except Exception as error:  # noqa: BLE001 - see below
                # Whatever it is, the states must not stand still for ever because of it.
                if not is_database_outage(error):
                    _log.exception("outcomes_not_followed")
            await asyncio.sleep(_BREAK_SECONDS)

    async def _follow(self, cursor: str) -> None:
        call = self._dispatcher.StreamOutcomes(dispatcher_pb2.StreamOutcomesRequest(cursor=cursor))
        try:
            async for page in call:
                if page.cursor == cursor:
                    continue
                if not await follow_outcomes(self._pool, cursor, page.cursor, fold(page.outcomes), _SETTLED):
                    # Another replica is ahead: go on from where it is.
                    return
                cursor = page.cursor
        finally:
            call.cancel()


def fold(outcomes: Sequence[Any]) -> dict[UUID, IntentState]:
    """Returns the state that each intent reaches by a page of outcomes, in their order."""
    states: dict[UUID, IntentState] = {}
    for outcome in outcomes:
        new = IntentState(
            outcome.hop,
            message_pb2.State.Name(outcome.state).removeprefix("STATE_"),
            outcome.reason,
            moment(outcome.occurred_at),
        )
        intent_id = UUID(outcome.intent_id)
        old = states.get(intent_id)
        if old is None:
            states[intent_id] = new
        elif new.hop > old.hop:
            states[intent_id] = replace(new, fallback_after=old.reason)
        elif (new.hop, _rank(new)) >= (old.hop, _rank(old)):
            states[intent_id] = replace(new, fallback_after=old.fallback_after)
    return states


def _rank(state: IntentState) -> int:
    return _SETTLED.index(state.state) + 1 if state.state in _SETTLED else 0


async def relay_outcomes(
    dispatcher: dispatcher_pb2_grpc.DispatcherServiceAsyncStub,
    request: dispatcher_pb2.StreamOutcomesRequest,
    stopping: asyncio.Event,
) -> AsyncIterator[dispatcher_pb2.StreamOutcomesResponse]:
    """Yields the dispatcher's pages until stopping; a dispatcher that goes away is waited for, at the last cursor.

    Raises:
        grpc.aio.AioRpcError: the dispatcher refuses the request.
    """
    while not stopping.is_set():
        call = dispatcher.StreamOutcomes(request)
        stop = asyncio.create_task(_cancel_when(stopping, call))
        try:
            async for page in call:
                yield page
                request = dispatcher_pb2.StreamOutcomesRequest(
                    tenant=request.tenant, intent_ids=request.intent_ids, cursor=page.cursor
                )
        except grpc.aio.AioRpcError as error:
            if error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
                raise
        except asyncio.CancelledError:
            # Our own cancel of the call ends here as well; the caller's cancel goes on.
            if not stopping.is_set():
                raise
        finally:
            stop.cancel()
            call.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_BREAK_SECONDS):
                await stopping.wait()


async def _cancel_when(stopping: asyncio.Event, call: Any) -> None:
    await stopping.wait()
    call.cancel()
