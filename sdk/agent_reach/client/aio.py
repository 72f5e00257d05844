"""`AsyncReach`: the client for asyncio. What each call means is told once, at :class:`Reach`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
from google.protobuf.message import Message

from agent_reach.v1 import (
    preference_pb2,
    preference_pb2_grpc,
    profile_pb2,
    profile_pb2_grpc,
    reach_pb2,
    reach_pb2_grpc,
    sandbox_pb2,
    sandbox_pb2_grpc,
    suppression_pb2,
    suppression_pb2_grpc,
)

from . import people, requests
from .errors import ReachError, UnavailableError, from_call
from .requests import IntentFields
from .resume import Attempts, Patience
from .settings import CHANNEL_OPTIONS, Settings, read_settings
from .submission import Result, Submission, Submitted
from .watching import Watched, Watching


class AsyncReach:
    """Does for asyncio what :class:`Reach` does for code that waits, with the same arguments and errors.

    Belongs to the event loop in which it was made. Use it as ``async with AsyncReach() as reach``.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        api_key: str | None = None,
        policy_target: str | None = None,
        sandbox_target: str | None = None,
        deadline_seconds: float = 10.0,
        patience_seconds: float = 60.0,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._settings = read_settings(
            target,
            api_key,
            policy_target=policy_target,
            sandbox_target=sandbox_target,
            deadline_seconds=deadline_seconds,
        )
        self._patience_seconds = patience_seconds
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._reach = reach_pb2_grpc.ReachServiceStub(self._channel(self._settings.target))
        policy = self._channel(self._settings.policy_target)
        self._profiles = profile_pb2_grpc.ProfileServiceStub(policy)
        self._preferences = preference_pb2_grpc.PreferenceServiceStub(policy)
        self._suppressions = suppression_pb2_grpc.SuppressionServiceStub(policy)
        self._sandbox = sandbox_pb2_grpc.SandboxServiceStub(self._channel(self._settings.sandbox_target))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; running calls end."""
        for channel in self._channels.values():
            await channel.close()

    async def submit(self, **fields: Unpack[IntentFields]) -> Submitted:
        """Has one intent stored and returns its id; see :meth:`Reach.submit`."""
        request = reach_pb2.SubmitRequest(intent=requests.intent(fields))
        response = await self._call(self._reach.Submit, request)
        return Submitted(response.intent_id, response.duplicate)

    async def submit_many(
        self, intents: Iterable[IntentFields] | AsyncIterable[IntentFields], *, batch_size: int = 500
    ) -> AsyncIterator[Result]:
        """Has many intents stored; yields one result for each, in their order; see :meth:`Reach.submit_many`."""
        submission = Submission(batch_size)
        stream = _SubmitStream(self._reach.SubmitStream, self._settings, submission, self._patience())
        try:
            async for fields in _as_async(intents):
                if batch := submission.add(fields):
                    stream.send(batch)
                for result in submission.answered_here():
                    yield result
                while submission.is_full:
                    for result in await stream.receive():
                        yield result
            if batch := submission.close_batch():
                stream.send(batch)
            for result in submission.answered_here():
                yield result
            while not submission.is_done:
                for result in await stream.receive():
                    yield result
        finally:
            stream.close()

    async def get_intent(self, intent_id: str) -> reach_pb2.Intent:
        """Returns one intent; see :meth:`Reach.get_intent`."""
        request = requests.build(reach_pb2.GetIntentRequest, intent_id=intent_id)
        intent: reach_pb2.Intent = (await self._call(self._reach.GetIntent, request)).intent
        return intent

    async def list_intents(
        self,
        *,
        user_id: str = "",
        agent: str = "",
        scene: str = "",
        state: str = "",
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[reach_pb2.Intent]:
        """Yields intents, newest first; see :meth:`Reach.list_intents`."""
        request = requests.list_intents(
            user_id=user_id,
            agent=agent,
            scene=scene,
            state_name=state,
            created_from=created_from,
            created_before=created_before,
            page_size=page_size,
        )
        async for page in self._pages(self._reach.ListIntents, request):
            for intent in page.intents:
                yield intent

    async def cancel(self, intent_id: str) -> reach_pb2.Intent:
        """Cancels an intent that has not left yet; see :meth:`Reach.cancel`."""
        request = requests.build(reach_pb2.CancelIntentRequest, intent_id=intent_id)
        intent: reach_pb2.Intent = (await self._call(self._reach.CancelIntent, request)).intent
        return intent

    async def explain(self, intent_id: str) -> reach_pb2.ExplainIntentResponse:
        """Explains why this person did or did not get this message; see :meth:`Reach.explain`."""
        request = requests.build(reach_pb2.ExplainIntentRequest, intent_id=intent_id)
        response: reach_pb2.ExplainIntentResponse = await self._call(self._reach.ExplainIntent, request)
        return response

    async def watch_outcomes(
        self, *, cursor: str = "", intent_ids: Iterable[str] = (), from_now: bool = False
    ) -> AsyncIterator[Watched]:
        """Yields every change of state in order, without an end; see :meth:`Reach.watch_outcomes`."""
        watching = Watching(cursor, intent_ids, from_now=from_now)
        patience = self._patience()
        while True:
            call = self._reach.WatchOutcomes(watching.request(), metadata=self._settings.metadata)
            try:
                async for response in call:
                    patience.progress()
                    for watched in watching.take(response):
                        yield watched
                delay = patience.delay_after(UnavailableError("the service ended the stream"))
            except grpc.aio.AioRpcError as error:
                delay = patience.delay_after(from_call(error))
            finally:
                call.cancel()
            await asyncio.sleep(delay)

    async def upsert_profiles(self, profiles: Iterable[profile_pb2.Profile]) -> Sequence[profile_pb2.Profile]:
        """Creates or replaces profiles, all or none; see :meth:`Reach.upsert_profiles`."""
        request = profile_pb2.UpsertProfilesRequest(profiles=profiles)
        stored: Sequence[profile_pb2.Profile] = (await self._call(self._profiles.UpsertProfiles, request)).profiles
        return stored

    async def get_profiles(self, user_ids: Iterable[str]) -> Sequence[profile_pb2.Profile]:
        """Returns the profiles that exist; see :meth:`Reach.get_profiles`."""
        names = requests.named_list(user_ids, "user_ids")
        request = requests.build(profile_pb2.GetProfilesRequest, user_ids=names)
        found: Sequence[profile_pb2.Profile] = (await self._call(self._profiles.GetProfiles, request)).profiles
        return found

    async def report_activity(self, user_id: str, time_zone: str, seen_at: datetime | None = None) -> None:
        """Notes that a user was seen in a time zone; see :meth:`Reach.report_activity`."""
        await self._call(self._profiles.ReportActivity, people.activity(user_id, time_zone, seen_at))

    async def list_profiles(self, *, page_size: int = 1_000) -> AsyncIterator[profile_pb2.Profile]:
        """Yields every profile; see :meth:`Reach.list_profiles`."""
        request = requests.build(profile_pb2.ListProfilesRequest, page_size=page_size)
        async for page in self._pages(self._profiles.ListProfiles, request):
            for profile in page.profiles:
                yield profile

    async def set_preferences(
        self, preferences: Iterable[preference_pb2.Preference]
    ) -> preference_pb2.SetPreferencesResponse:
        """Stores what users chose to hear about; see :meth:`Reach.set_preferences`."""
        request = preference_pb2.SetPreferencesRequest(preferences=preferences)
        response: preference_pb2.SetPreferencesResponse = await self._call(self._preferences.SetPreferences, request)
        return response

    async def get_preferences(self, user_ids: Iterable[str]) -> Sequence[preference_pb2.Preference]:
        """Returns what users chose to hear about; see :meth:`Reach.get_preferences`."""
        names = requests.named_list(user_ids, "user_ids")
        request = requests.build(preference_pb2.GetPreferencesRequest, user_ids=names)
        found: Sequence[preference_pb2.Preference] = (
            await self._call(self._preferences.GetPreferences, request)
        ).preferences
        return found

    async def suppress(
        self,
        *,
        user_id: str = "",
        address: str = "",
        channel: str = "",
        category: str = "",
        source: str = "operator",
        note: str = "",
    ) -> suppression_pb2.SuppressResponse:
        """Sees to it that a user or an address is not written to; see :meth:`Reach.suppress`."""
        one = people.suppression(
            user_id=user_id, address=address, channel=channel, category=category, source=source, note=note
        )
        return await self.suppress_many([one])

    async def suppress_many(
        self, suppressions: Iterable[suppression_pb2.Suppression]
    ) -> suppression_pb2.SuppressResponse:
        """Stores suppressions, all or none; see :meth:`Reach.suppress_many`."""
        request = suppression_pb2.SuppressRequest(suppressions=suppressions)
        response: suppression_pb2.SuppressResponse = await self._call(self._suppressions.Suppress, request)
        return response

    async def check_suppressions(
        self, queries: Iterable[suppression_pb2.SuppressionQuery]
    ) -> Sequence[suppression_pb2.SuppressionAnswer]:
        """Says which thinkable messages would be withheld; see :meth:`Reach.check_suppressions`."""
        request = suppression_pb2.CheckSuppressionsRequest(queries=queries)
        answers: Sequence[suppression_pb2.SuppressionAnswer] = (
            await self._call(self._suppressions.CheckSuppressions, request)
        ).answers
        return answers

    async def lift(self, suppression_ids: Iterable[str]) -> int:
        """Lifts suppressions and returns how many stood; see :meth:`Reach.lift`."""
        names = requests.named_list(suppression_ids, "suppression_ids")
        request = requests.build(suppression_pb2.LiftSuppressionsRequest, suppression_ids=names)
        lifted: int = (await self._call(self._suppressions.LiftSuppressions, request)).lifted
        return lifted

    async def list_suppressions(
        self,
        *,
        user_id: str = "",
        address: str = "",
        source: str = "",
        include_lifted: bool = False,
        page_size: int = 100,
    ) -> AsyncIterator[suppression_pb2.Suppression]:
        """Yields suppressions, newest first; see :meth:`Reach.list_suppressions`."""
        request = people.list_suppressions(
            user_id=user_id, address=address, source=source, include_lifted=include_lifted, page_size=page_size
        )
        async for page in self._pages(self._suppressions.ListSuppressions, request):
            for suppression in page.suppressions:
                yield suppression

    async def execute(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 30.0,
        max_output_bytes: int = 1024 * 1024,
    ) -> AsyncIterator[sandbox_pb2.ExecuteResponse]:
        """Runs code in the sandbox and yields what it prints, then the result; see :meth:`Reach.execute`."""
        request = requests.execute(code, language, stdin, environment or {}, timeout_seconds, max_output_bytes)
        call = self._sandbox.Execute(
            request, timeout=timeout_seconds + self._settings.deadline_seconds, metadata=self._settings.metadata
        )
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise from_call(error, request) from error
        finally:
            call.cancel()

    def _patience(self) -> Patience:
        return Patience(self._patience_seconds)

    def _channel(self, target: str) -> grpc.aio.Channel:
        if target not in self._channels:
            self._channels[target] = (
                grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
                if self._credentials is None
                else grpc.aio.secure_channel(target, self._credentials, options=CHANNEL_OPTIONS)
            )
        return self._channels[target]

    async def _call(self, method: Callable[..., Any], request: Message) -> Any:
        attempts = Attempts(self._settings.deadline_seconds)
        while True:
            try:
                return await method(request, timeout=attempts.begin(), metadata=self._settings.metadata)
            except grpc.aio.AioRpcError as error:
                delay = attempts.delay_after(from_call(error, request))
            await asyncio.sleep(delay)

    async def _pages(self, method: Callable[..., Any], request: Any) -> AsyncIterator[Any]:
        while True:
            page = await self._call(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


class _SubmitStream:
    """Carries the batches of a submission over one stream after another, each for one deadline at most."""

    def __init__(
        self, method: Callable[..., Any], settings: Settings, submission: Submission, patience: Patience
    ) -> None:
        self._method = method
        self._settings = settings
        self._submission = submission
        self._patience = patience
        self._requests: asyncio.Queue[reach_pb2.SubmitStreamRequest | None] = asyncio.Queue()
        self._call: Any = None

    def send(self, batch: reach_pb2.SubmitStreamRequest) -> None:
        """Sends a batch that the submission counts as unanswered."""
        if self._call is None:
            self._open()
        else:
            self._requests.put_nowait(batch)

    async def receive(self) -> Iterator[Result]:
        """Waits for the next answer, over as many streams as it takes; returns the results that are due."""
        while True:
            if self._call is None:
                self._open()
            try:
                response = await self._call.read()
            except grpc.aio.AioRpcError as failure:
                error: ReachError = from_call(failure)
            else:
                if response is not grpc.aio.EOF:
                    self._patience.progress()
                    return self._submission.answer(response)
                error = UnavailableError("the service ended the stream")
            self.close()
            await asyncio.sleep(self._patience.delay_after(error))

    def close(self) -> None:
        """Ends the stream that is open."""
        self._requests.put_nowait(None)
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _open(self) -> None:
        waiting: asyncio.Queue[reach_pb2.SubmitStreamRequest | None] = asyncio.Queue()
        self._requests = waiting
        for batch in self._submission.unanswered():
            waiting.put_nowait(batch)

        async def carried() -> AsyncIterator[reach_pb2.SubmitStreamRequest]:
            while (batch := await waiting.get()) is not None:
                yield batch

        self._call = self._method(carried(), timeout=self._settings.deadline_seconds, metadata=self._settings.metadata)


async def _as_async(
    intents: Iterable[IntentFields] | AsyncIterable[IntentFields],
) -> AsyncIterator[IntentFields]:
    if isinstance(intents, AsyncIterable):
        async for fields in intents:
            yield fields
    else:
        for fields in intents:
            yield fields
