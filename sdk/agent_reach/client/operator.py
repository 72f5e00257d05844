"""`PolicyOperator`: the client of those who answer for the policy. The command line `reach policy` is made of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from agent_reach.v1 import message_pb2, policy_admin_pb2, policy_admin_pb2_grpc

from . import requests
from .errors import FailedCall, ReachError, from_call
from .requests import Moment
from .resume import Attempts
from .settings import CHANNEL_OPTIONS, read_settings

ResponseT = TypeVar("ResponseT")


class PolicyOperator:
    """Shows which policy is in force, asks what would happen, and tries another policy on what did happen.

    Args:
        target: gRPC target; ``REACH_TARGET`` or ``127.0.0.1:7401`` when left out.
        api_key: key of an operator; ``REACH_API_KEY`` when left out.
        policy_target: where the policy is; ``REACH_POLICY_TARGET`` or `target` when left out.
        deadline_seconds: how long one call may take; a simulation takes as long as it needs.
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
        deadline_seconds: float = 10.0,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._settings = read_settings(
            target, api_key, policy_target=policy_target, sandbox_target=None, deadline_seconds=deadline_seconds
        )
        where = self._settings.policy_target
        self._channel = (
            grpc.insecure_channel(where, options=CHANNEL_OPTIONS)
            if credentials is None
            else grpc.secure_channel(where, credentials, options=CHANNEL_OPTIONS)
        )
        self._stub = policy_admin_pb2_grpc.PolicyAdminServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; running calls end."""
        self._channel.close()

    def show(self) -> Sequence[policy_admin_pb2.ProcessPolicy]:
        """Returns which version is in force in which process, by role."""
        return self._call(self._stub.ShowPolicy, policy_admin_pb2.ShowPolicyRequest()).processes

    def ask(
        self,
        scene: str,
        *,
        user_id: str = "",
        address: str = "",
        template: str = "",
        channels: Sequence[str] = (),
        at: datetime | None = None,
        expires_at: Moment | None = None,
        send_at: Moment | None = None,
        send_at_local: str | message_pb2.LocalTime = "",
    ) -> message_pb2.Decision:
        """Returns what would happen to a message at a moment, now when none is given. Nothing happens."""
        request = requests.build(
            policy_admin_pb2.AskPolicyRequest,
            scene=scene,
            user_id=user_id,
            template=template,
            channels=[requests.channel(name, "channels") for name in channels],
        )
        if address:
            request.address.CopyFrom(requests.address(address))
        if send_at_local:
            local = requests.local_time(send_at_local) if isinstance(send_at_local, str) else send_at_local
            request.send_at_local.CopyFrom(local)
        moments = (("at", at), ("expires_at", expires_at), ("send_at", send_at))
        for name, moment in moments:
            if moment is not None:
                getattr(request, name).CopyFrom(requests.timestamp(moment, name))
        return self._call(self._stub.AskPolicy, request).decision

    def simulate(
        self, policies_yaml: bytes, *, since: datetime, before: datetime | None = None, scene: str = ""
    ) -> Iterator[policy_admin_pb2.SimulatePolicyResponse]:
        """Yields the past messages about which another policy decides differently, as they are found.

        Every response carries the sums so far. Closing the iterator ends the simulation.

        Raises:
            InvalidArgumentError: the file has a fault; each is named with its line.
        """
        request = requests.build(policy_admin_pb2.SimulatePolicyRequest, policies_yaml=policies_yaml, scene=scene)
        request.since.CopyFrom(requests.timestamp(since, "since"))
        if before is not None:
            request.before.CopyFrom(requests.timestamp(before, "before"))
        call = self._stub.SimulatePolicy(request, metadata=self._settings.metadata)
        try:
            yield from call
        except grpc.RpcError as error:
            raise _translated(error, request) from error
        finally:
            call.cancel()

    def shadow_decisions(
        self, *, scene: str = "", since: datetime | None = None, page_size: int = 100
    ) -> Iterator[policy_admin_pb2.ChangedDecision]:
        """Yields the messages about which the policy in shadow decided otherwise, newest first, page by page."""
        request = requests.build(policy_admin_pb2.ListShadowDecisionsRequest, scene=scene, page_size=page_size)
        if since is not None:
            request.since.CopyFrom(requests.timestamp(since, "since"))
        while True:
            page = self._call(self._stub.ListShadowDecisions, request)
            yield from page.changes
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def counters(self, user_ids: Iterable[str]) -> Sequence[policy_admin_pb2.CountedMessage]:
        """Returns what counts on the caps of up to 100 users; a bare address is one, as ``email:ada@example.com``."""
        names = requests.named_list(user_ids, "user_ids")
        request = requests.build(policy_admin_pb2.GetCountersRequest, user_ids=names)
        return self._call(self._stub.GetCounters, request).messages

    def clear_counters(self, user_id: str, reason: str) -> int:
        """Has nothing count on a user's caps that was sent so far; the audit keeps who did it and why.

        Returns:
            How many messages count no more.
        """
        request = requests.build(policy_admin_pb2.ClearCountersRequest, user_id=user_id, reason=reason)
        return self._call(self._stub.ClearCounters, request).cleared

    def _call(self, method: Callable[..., ResponseT], request: Message) -> ResponseT:
        attempts = Attempts(self._settings.deadline_seconds)
        while True:
            try:
                return method(request, timeout=attempts.begin(), metadata=self._settings.metadata)
            except grpc.RpcError as error:
                delay = attempts.delay_after(_translated(error, request))
            time.sleep(delay)


def _translated(error: grpc.RpcError, request: Message) -> ReachError:
    # Every error that a call of the sync API raises is the call itself; the base class does not say so.
    assert isinstance(error, FailedCall)
    return from_call(error, request)
