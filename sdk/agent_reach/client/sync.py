"""`Reach`: the client for code that waits."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

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
from .errors import FailedCall, ReachError, UnavailableError, from_call
from .requests import IntentFields
from .resume import Attempts, Patience
from .settings import CHANNEL_OPTIONS, Settings, read_settings
from .submission import Result, Submission, Submitted
from .watching import Watched, Watching

ResponseT = TypeVar("ResponseT")


class Reach:
    """Asks Agent-Reach to tell people something, and learns what became of it. Safe to share between threads.

    Args:
        target: gRPC target of intake; ``REACH_TARGET`` or ``127.0.0.1:7401`` when left out.
        api_key: names tenant and agent; ``REACH_API_KEY`` when left out.
        policy_target: where profiles and suppressions are; ``REACH_POLICY_TARGET`` or `target` when left out.
        sandbox_target: where code is run; ``REACH_SANDBOX_TARGET`` or `target` when left out.
        deadline_seconds: how long one call, or one batch of a stream, may take.
        patience_seconds: how long streams try to go on without any progress.
        credentials: TLS; plain text when left out.

    Raises:
        InvalidArgumentError: there is no API key.

    Every method raises a :class:`ReachError` when the answer is not the one that was asked for.
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
        self._channels: dict[str, grpc.Channel] = {}
        self._reach = reach_pb2_grpc.ReachServiceStub(self._channel(self._settings.target))
        policy = self._channel(self._settings.policy_target)
        self._profiles = profile_pb2_grpc.ProfileServiceStub(policy)
        self._preferences = preference_pb2_grpc.PreferenceServiceStub(policy)
        self._suppressions = suppression_pb2_grpc.SuppressionServiceStub(policy)
        self._sandbox = sandbox_pb2_grpc.SandboxServiceStub(self._channel(self._settings.sandbox_target))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; running calls end."""
        for channel in self._channels.values():
            channel.close()

    def submit(self, **fields: Unpack[IntentFields]) -> Submitted:
        """Has one intent stored and returns its id. Repeating it is safe.

        Raises:
            InvalidArgumentError: fields are wrong, each is named.
            AlreadyExistsError: the `intent_key` was used for other content; the first intent stands.
        """
        request = reach_pb2.SubmitRequest(intent=requests.intent(fields))
        response = self._call(self._reach.Submit, request)
        return Submitted(response.intent_id, response.duplicate)

    def submit_many(self, intents: Iterable[IntentFields], *, batch_size: int = 500) -> Iterator[Result]:
        """Has many intents stored, in batches; yields one result for each, in their order.

        Holds a few batches in memory, however many intents there are. An intent that is refused spoils no other. A
        stream that breaks is opened again and carries first what was not answered; repeating is safe.
        """
        submission = Submission(batch_size)
        with closing(_SubmitStream(self._reach.SubmitStream, self._settings, submission, self._patience())) as stream:
            for fields in intents:
                if batch := submission.add(fields):
                    stream.send(batch)
                yield from submission.answered_here()
                while submission.is_full:
                    yield from stream.receive()
            if batch := submission.close_batch():
                stream.send(batch)
            yield from submission.answered_here()
            while not submission.is_done:
                yield from stream.receive()

    def get_intent(self, intent_id: str) -> reach_pb2.Intent:
        """Returns one intent. Raises NotFoundError."""
        request = requests.build(reach_pb2.GetIntentRequest, intent_id=intent_id)
        return self._call(self._reach.GetIntent, request).intent

    def list_intents(
        self,
        *,
        user_id: str = "",
        agent: str = "",
        scene: str = "",
        state: str = "",
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int = 100,
    ) -> Iterator[reach_pb2.Intent]:
        """Yields the intents for which every given filter holds, newest first, page by page."""
        request = requests.list_intents(
            user_id=user_id,
            agent=agent,
            scene=scene,
            state_name=state,
            created_from=created_from,
            created_before=created_before,
            page_size=page_size,
        )
        for page in self._pages(self._reach.ListIntents, request):
            yield from page.intents

    def cancel(self, intent_id: str) -> reach_pb2.Intent:
        """Cancels an intent that has not left yet. Raises NotFoundError, FailedPreconditionError (too late)."""
        request = requests.build(reach_pb2.CancelIntentRequest, intent_id=intent_id)
        return self._call(self._reach.CancelIntent, request).intent

    def explain(self, intent_id: str) -> reach_pb2.ExplainIntentResponse:
        """Explains why this person did or did not get this message. Raises NotFoundError."""
        request = requests.build(reach_pb2.ExplainIntentRequest, intent_id=intent_id)
        return self._call(self._reach.ExplainIntent, request)

    def watch_outcomes(
        self, *, cursor: str = "", intent_ids: Iterable[str] = (), from_now: bool = False
    ) -> Iterator[Watched]:
        """Yields every change of state in order, without an end; goes on by itself where a stream broke.

        Args:
            cursor: starts after it; keep `Watched.cursor` of what was dealt with to go on later.
            intent_ids: keeps the outcomes of these intents only; all when left out.
            from_now: starts with what happens from now on; `cursor` must then be left out.
        """
        watching = Watching(cursor, intent_ids, from_now=from_now)
        patience = self._patience()
        while True:
            call = self._reach.WatchOutcomes(watching.request(), metadata=self._settings.metadata)
            try:
                for response in call:
                    patience.progress()
                    yield from watching.take(response)
                delay = patience.delay_after(UnavailableError("the service ended the stream"))
            except grpc.RpcError as error:
                delay = patience.delay_after(_translated(error))
            finally:
                call.cancel()
            time.sleep(delay)

    def upsert_profiles(self, profiles: Iterable[profile_pb2.Profile]) -> Sequence[profile_pb2.Profile]:
        """Creates or replaces up to 1,000 profiles (see :func:`profile`), all or none; returns them as stored."""
        request = profile_pb2.UpsertProfilesRequest(profiles=profiles)
        return self._call(self._profiles.UpsertProfiles, request).profiles

    def get_profiles(self, user_ids: Iterable[str]) -> Sequence[profile_pb2.Profile]:
        """Returns the profiles that exist among up to 1,000 users."""
        names = requests.named_list(user_ids, "user_ids")
        request = requests.build(profile_pb2.GetProfilesRequest, user_ids=names)
        return self._call(self._profiles.GetProfiles, request).profiles

    def report_activity(self, user_id: str, time_zone: str, seen_at: datetime | None = None) -> None:
        """Notes that a user was seen in a time zone, now when no moment is given."""
        self._call(self._profiles.ReportActivity, people.activity(user_id, time_zone, seen_at))

    def list_profiles(self, *, page_size: int = 1_000) -> Iterator[profile_pb2.Profile]:
        """Yields every profile of the tenant by user, page by page."""
        request = requests.build(profile_pb2.ListProfilesRequest, page_size=page_size)
        for page in self._pages(self._profiles.ListProfiles, request):
            yield from page.profiles

    def set_preferences(
        self, preferences: Iterable[preference_pb2.Preference]
    ) -> preference_pb2.SetPreferencesResponse:
        """Stores up to 1,000 choices of users (see :func:`preference`), all or none.

        Returns:
            The choices as stored, and how many messages were just being handed over and could not be waited for
            (`in_flight`). When that is 0, nothing leaves any more that they forbid.
        """
        request = preference_pb2.SetPreferencesRequest(preferences=preferences)
        return self._call(self._preferences.SetPreferences, request)

    def get_preferences(self, user_ids: Iterable[str]) -> Sequence[preference_pb2.Preference]:
        """Returns what up to 1,000 users chose to hear about, by user."""
        names = requests.named_list(user_ids, "user_ids")
        request = requests.build(preference_pb2.GetPreferencesRequest, user_ids=names)
        return self._call(self._preferences.GetPreferences, request).preferences

    def suppress(
        self,
        *,
        user_id: str = "",
        address: str = "",
        channel: str = "",
        category: str = "",
        source: str = "operator",
        note: str = "",
    ) -> suppression_pb2.SuppressResponse:
        """Sees to it that a user or an address is not written to; either of both must be given.

        Returns:
            The suppression as stored, and how many messages were just being handed over and could not be waited for
            (`in_flight`). When that is 0, nothing leaves any more.
        """
        one = people.suppression(
            user_id=user_id, address=address, channel=channel, category=category, source=source, note=note
        )
        return self.suppress_many([one])

    def suppress_many(self, suppressions: Iterable[suppression_pb2.Suppression]) -> suppression_pb2.SuppressResponse:
        """Stores up to 1,000 suppressions (see :func:`suppression`), all or none, as :meth:`suppress` does one."""
        request = suppression_pb2.SuppressRequest(suppressions=suppressions)
        return self._call(self._suppressions.Suppress, request)

    def check_suppressions(
        self, queries: Iterable[suppression_pb2.SuppressionQuery]
    ) -> Sequence[suppression_pb2.SuppressionAnswer]:
        """Says which of up to 1,000 thinkable messages (see :func:`suppression_query`) would be withheld, and why.

        Returns:
            One answer per question, in their order; one with an empty `reason` lets the message pass.
        """
        request = suppression_pb2.CheckSuppressionsRequest(queries=queries)
        return self._call(self._suppressions.CheckSuppressions, request).answers

    def lift(self, suppression_ids: Iterable[str]) -> int:
        """Lifts suppressions and returns how many stood; for operators."""
        names = requests.named_list(suppression_ids, "suppression_ids")
        request = requests.build(suppression_pb2.LiftSuppressionsRequest, suppression_ids=names)
        return self._call(self._suppressions.LiftSuppressions, request).lifted

    def list_suppressions(
        self,
        *,
        user_id: str = "",
        address: str = "",
        source: str = "",
        include_lifted: bool = False,
        page_size: int = 100,
    ) -> Iterator[suppression_pb2.Suppression]:
        """Yields the suppressions for which every given filter holds, newest first, page by page."""
        request = people.list_suppressions(
            user_id=user_id, address=address, source=source, include_lifted=include_lifted, page_size=page_size
        )
        for page in self._pages(self._suppressions.ListSuppressions, request):
            yield from page.suppressions

    def execute(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 30.0,
        max_output_bytes: int = 1024 * 1024,
    ) -> Iterator[sandbox_pb2.ExecuteResponse]:
        """Runs code in the sandbox and yields what it prints; the last event is the result.

        Closing the iterator ends the code and everything it started.
        """
        request = requests.execute(code, language, stdin, environment or {}, timeout_seconds, max_output_bytes)
        call = self._sandbox.Execute(
            request, timeout=timeout_seconds + self._settings.deadline_seconds, metadata=self._settings.metadata
        )
        try:
            yield from call
        except grpc.RpcError as error:
            raise _translated(error, request) from error
        finally:
            call.cancel()

    def _patience(self) -> Patience:
        return Patience(self._patience_seconds)

    def _channel(self, target: str) -> grpc.Channel:
        if target not in self._channels:
            self._channels[target] = (
                grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
                if self._credentials is None
                else grpc.secure_channel(target, self._credentials, options=CHANNEL_OPTIONS)
            )
        return self._channels[target]

    def _call(self, method: Callable[..., ResponseT], request: Message) -> ResponseT:
        # Every unary RPC may be repeated: the second time it finds done what the first one did.
        attempts = Attempts(self._settings.deadline_seconds)
        while True:
            try:
                return method(request, timeout=attempts.begin(), metadata=self._settings.metadata)
            except grpc.RpcError as error:
                delay = attempts.delay_after(_translated(error, request))
            time.sleep(delay)

    def _pages(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        while True:
            page = self._call(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


class _SubmitStream:
    """Carries the batches of a submission over one stream after another.

    Each stream lives for one deadline at most and is then opened anew, so that no batch waits longer for its answer.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        settings: Settings,
        submission: Submission,
        patience: Patience,
    ) -> None:
        self._method = method
        self._settings = settings
        self._submission = submission
        self._patience = patience
        self._requests: queue.SimpleQueue[reach_pb2.SubmitStreamRequest | None] = queue.SimpleQueue()
        self._call: Any = None

    def send(self, batch: reach_pb2.SubmitStreamRequest) -> None:
        """Sends a batch that the submission counts as unanswered."""
        if self._call is None:
            self._open()
        else:
            self._requests.put(batch)

    def receive(self) -> Iterator[Result]:
        """Waits for the next answer, over as many streams as it takes."""
        while True:
            if self._call is None:
                self._open()
            try:
                response = next(self._call)
            except StopIteration:
                error: ReachError = UnavailableError("the service ended the stream")
            except grpc.RpcError as failure:
                error = _translated(failure)
            else:
                self._patience.progress()
                return self._submission.answer(response)
            self.close()
            time.sleep(self._patience.delay_after(error))

    def close(self) -> None:
        """Ends the stream that is open."""
        self._requests.put(None)
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _open(self) -> None:
        self._requests = queue.SimpleQueue()
        for batch in self._submission.unanswered():
            self._requests.put(batch)
        self._call = self._method(
            iter(self._requests.get, None),
            timeout=self._settings.deadline_seconds,
            metadata=self._settings.metadata,
        )


def _translated(error: grpc.RpcError, request: Message | None = None) -> ReachError:
    # Every error that a call of the sync API raises is the call itself; the base class does not say so.
    assert isinstance(error, FailedCall)
    return from_call(error, request)
