"""The gRPC surface of the policy: reads requests, hands them on, writes responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from agent_reach.v1 import (
    access_pb2,
    policy_pb2,
    policy_pb2_grpc,
    profile_pb2,
    profile_pb2_grpc,
    suppression_pb2,
    suppression_pb2_grpc,
)
from services.chassis.batch_stream import serve_batches
from services.chassis.clock import Clock
from services.chassis.principal import current_principal

from . import requests
from .counters import Counters
from .judge import Judge
from .silence import Silence
from .store import PolicyStore
from .translate import decision_to_wire, profile_to_wire, suppression_to_wire

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
            decisions = await self._judge.evaluate(requests.read_items(request))
            return policy_pb2.EvaluateResponse(decisions=[decision_to_wire(decision) for decision in decisions])

        await self._serve(request_iterator, context, handle, policy_pb2.EvaluateResponse)

    async def Settle(self, request_iterator: AsyncIterator[policy_pb2.SettleRequest], context: Context) -> None:
        """Confirms or gives back reservations."""

        async def handle(request: policy_pb2.SettleRequest) -> policy_pb2.SettleResponse:
            await self._counters.settle(requests.read_settlements(request))
            return policy_pb2.SettleResponse()

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


class ProfileServicer(profile_pb2_grpc.ProfileServiceServicer):
    """Stores and returns what is known of users."""

    def __init__(self, store: PolicyStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def UpsertProfiles(
        self, request: profile_pb2.UpsertProfilesRequest, context: Context
    ) -> profile_pb2.UpsertProfilesResponse:
        """Creates or replaces profiles, all or none."""
        profiles = requests.read_profiles(request)
        await self._store.upsert_profiles(current_principal().tenant, profiles)
        return profile_pb2.UpsertProfilesResponse(profiles=[profile_to_wire(profile) for profile in profiles])

    async def GetProfiles(
        self, request: profile_pb2.GetProfilesRequest, context: Context
    ) -> profile_pb2.GetProfilesResponse:
        """Returns the profiles that exist among the named users."""
        profiles = await self._store.get_profiles(current_principal().tenant, requests.read_user_ids(request))
        return profile_pb2.GetProfilesResponse(profiles=[profile_to_wire(profile) for profile in profiles])

    async def ReportActivity(
        self, request: profile_pb2.ReportActivityRequest, context: Context
    ) -> profile_pb2.ReportActivityResponse:
        """Notes where and when users were seen."""
        activities = requests.read_activities(request, self._clock.now())
        await self._store.report_activity(current_principal().tenant, activities)
        return profile_pb2.ReportActivityResponse()


class SuppressionServicer(suppression_pb2_grpc.SuppressionServiceServicer):
    """Stores, lifts and lists who must not be written to."""

    def __init__(self, silence: Silence, store: PolicyStore) -> None:
        self._silence = silence
        self._store = store

    async def Suppress(
        self, request: suppression_pb2.SuppressRequest, context: Context
    ) -> suppression_pb2.SuppressResponse:
        """Stores suppressions, then waits for what is just leaving."""
        principal = current_principal()
        of_service = principal.role == access_pb2.ROLE_SERVICE
        tenant = requests.read_tenant(request.tenant) if of_service else principal.tenant
        wishes = requests.read_wishes(request)
        stored, in_flight = await self._silence.suppress(tenant, wishes, principal.subject)
        return suppression_pb2.SuppressResponse(
            suppressions=[suppression_to_wire(entry) for entry in stored], in_flight=in_flight
        )

    async def LiftSuppressions(
        self, request: suppression_pb2.LiftSuppressionsRequest, context: Context
    ) -> suppression_pb2.LiftSuppressionsResponse:
        """Lifts suppressions; who did it stays on record."""
        principal = current_principal()
        ids = requests.read_suppression_ids(request)
        lifted = await self._store.lift(principal.tenant, ids, principal.subject)
        return suppression_pb2.LiftSuppressionsResponse(lifted=lifted)

    async def ListSuppressions(
        self, request: suppression_pb2.ListSuppressionsRequest, context: Context
    ) -> suppression_pb2.ListSuppressionsResponse:
        """Lists standing suppressions, newest first."""
        page = requests.read_page(request)
        entries = await self._store.list_suppressions(
            current_principal().tenant,
            user_id=page.user_id,
            address=page.address,
            before=page.before,
            limit=page.limit + 1,
        )
        more = len(entries) > page.limit
        entries = entries[: page.limit]
        return suppression_pb2.ListSuppressionsResponse(
            suppressions=[suppression_to_wire(entry) for entry in entries],
            next_page_token=entries[-1].suppression_id if more else "",
        )
