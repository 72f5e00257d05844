"""The gRPC surface for people: profiles, preferences and suppressions of the caller's tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from agent_reach.v1 import (
    access_pb2,
    preference_pb2,
    preference_pb2_grpc,
    profile_pb2,
    profile_pb2_grpc,
    suppression_pb2,
    suppression_pb2_grpc,
)
from services.chassis.clock import Clock
from services.chassis.principal import current_principal

from . import requests
from .preference_store import PreferenceStore
from .silence import Silence
from .store import PolicyStore
from .translate import choice_to_wire, profile_to_wire, suppression_to_wire

Context = grpc.aio.ServicerContext[Any, Any]


class ProfileServicer(profile_pb2_grpc.ProfileServiceServicer):
    """Stores and returns what is known of users."""

    def __init__(self, store: PolicyStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def UpsertProfiles(
        self, request: profile_pb2.UpsertProfilesRequest, context: Context
    ) -> profile_pb2.UpsertProfilesResponse:
        """Creates or replaces profiles, all or none."""
        # In a thread: a thousand addresses take a tenth of a second, in which others are to be judged.
        profiles = await asyncio.to_thread(requests.read_profiles, request)
        await self._store.upsert_profiles(current_principal().tenant, profiles)
        return profile_pb2.UpsertProfilesResponse(profiles=[profile_to_wire(profile) for profile in profiles])

    async def GetProfiles(
        self, request: profile_pb2.GetProfilesRequest, context: Context
    ) -> profile_pb2.GetProfilesResponse:
        """Returns the profiles that exist among the named users."""
        profiles = await self._store.get_profiles(current_principal().tenant, requests.read_user_ids(request))
        return profile_pb2.GetProfilesResponse(profiles=[profile_to_wire(profile) for profile in profiles])

    async def ListProfiles(
        self, request: profile_pb2.ListProfilesRequest, context: Context
    ) -> profile_pb2.ListProfilesResponse:
        """Lists profiles by user."""
        after, limit = requests.read_profile_page(request)
        profiles = await self._store.list_profiles(current_principal().tenant, after, limit + 1)
        page = profiles[:limit]
        return profile_pb2.ListProfilesResponse(
            profiles=[profile_to_wire(profile) for profile in page],
            next_page_token=page[-1].user_id if len(profiles) > limit else "",
        )

    async def ReportActivity(
        self, request: profile_pb2.ReportActivityRequest, context: Context
    ) -> profile_pb2.ReportActivityResponse:
        """Notes where and when users were seen."""
        activities = requests.read_activities(request, self._clock.now())
        await self._store.report_activity(current_principal().tenant, activities)
        return profile_pb2.ReportActivityResponse()


class PreferenceServicer(preference_pb2_grpc.PreferenceServiceServicer):
    """Stores and returns what users want to hear about."""

    def __init__(self, silence: Silence, store: PreferenceStore) -> None:
        self._silence = silence
        self._store = store

    async def SetPreferences(
        self, request: preference_pb2.SetPreferencesRequest, context: Context
    ) -> preference_pb2.SetPreferencesResponse:
        """Stores choices, then waits for what is just leaving to users who no longer opt in."""
        principal = current_principal()
        choices = requests.read_choices(request)
        stored, in_flight = await self._silence.choose(principal.tenant, choices, principal.subject)
        return preference_pb2.SetPreferencesResponse(
            preferences=[choice_to_wire(entry) for entry in stored], in_flight=in_flight
        )

    async def GetPreferences(
        self, request: preference_pb2.GetPreferencesRequest, context: Context
    ) -> preference_pb2.GetPreferencesResponse:
        """Returns the choices of the named users."""
        stored = await self._store.get(current_principal().tenant, requests.read_user_ids(request))
        return preference_pb2.GetPreferencesResponse(preferences=[choice_to_wire(entry) for entry in stored])


class SuppressionServicer(suppression_pb2_grpc.SuppressionServiceServicer):
    """Stores, lifts, looks up and lists who must not be written to."""

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
        wishes = await asyncio.to_thread(requests.read_wishes, request)  # as with profiles
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

    async def CheckSuppressions(
        self, request: suppression_pb2.CheckSuppressionsRequest, context: Context
    ) -> suppression_pb2.CheckSuppressionsResponse:
        """Says which messages would be withheld, and why."""
        answers = await self._silence.answer(current_principal().tenant, requests.read_questions(request))
        return suppression_pb2.CheckSuppressionsResponse(
            answers=[
                suppression_pb2.SuppressionAnswer(
                    reason=reason, suppression=None if entry is None else suppression_to_wire(entry)
                )
                for reason, entry in answers
            ]
        )

    async def ListSuppressions(
        self, request: suppression_pb2.ListSuppressionsRequest, context: Context
    ) -> suppression_pb2.ListSuppressionsResponse:
        """Lists suppressions, newest first."""
        selection, limit = requests.read_suppression_page(request)
        entries = await self._store.list_suppressions(current_principal().tenant, selection, limit + 1)
        page = entries[:limit]
        return suppression_pb2.ListSuppressionsResponse(
            suppressions=[suppression_to_wire(entry) for entry in page],
            next_page_token=page[-1].suppression_id if len(entries) > limit else "",
        )
