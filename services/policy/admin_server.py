"""The gRPC surface of the operator's view: reads requests, hands them on, writes responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import redis.asyncio
from redis import exceptions

from agent_reach.v1 import error_reason_pb2, message_pb2, policy_admin_pb2, policy_admin_pb2_grpc
from services.catalog.presence import list_processes
from services.catalog.wire import category_to_wire, channel_to_wire
from services.chassis.clock import Clock
from services.chassis.errors import UnavailableError
from services.chassis.moments import timestamp
from services.chassis.principal import current_principal

from . import admin_requests as requests
from .ask import Asker
from .clearing import Clearing
from .decision import Gate, UserKey
from .operator_store import OperatorStore, ShadowRecord
from .replay import Change
from .simulate import Simulator
from .translate import decision_to_wire

Context = grpc.aio.ServicerContext[Any, Any]

# Fits into the smallest message that a service accepts, whatever the traces hold.
_MAX_CHANGES = 100


class PolicyAdminServicer(policy_admin_pb2_grpc.PolicyAdminServiceServicer):
    """Shows and tries the policy.

    Args:
        client: Redis, where the processes tell which policy they have.
        deployment: name of this installation.
        asker: answers what would happen.
        simulator: replays what happened.
        clearing: shows and clears counters.
        store: keeps decisions in shadow.
        clock: the present moment.
    """

    def __init__(
        self,
        *,
        client: redis.asyncio.Redis,
        deployment: str,
        asker: Asker,
        simulator: Simulator,
        clearing: Clearing,
        store: OperatorStore,
        clock: Clock,
    ) -> None:
        self._redis = client
        self._deployment = deployment
        self._asker = asker
        self._simulator = simulator
        self._clearing = clearing
        self._store = store
        self._clock = clock

    async def ShowPolicy(
        self, request: policy_admin_pb2.ShowPolicyRequest, context: Context
    ) -> policy_admin_pb2.ShowPolicyResponse:
        """Tells which version is in force in which process."""
        try:
            processes = await list_processes(self._redis, self._deployment)
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            raise UnavailableError(
                "Redis cannot be reached, where the processes tell which policy they have",
                reason=error_reason_pb2.ERROR_REASON_REDIS_UNAVAILABLE,
            ) from error
        return policy_admin_pb2.ShowPolicyResponse(
            processes=[
                policy_admin_pb2.ProcessPolicy(
                    process=process.process,
                    role=process.role,
                    policy_version=process.policy_version,
                    revision=process.revision,
                    loaded_at=timestamp(process.loaded_at),
                    seen_at=timestamp(process.seen_at),
                    error=process.error,
                )
                for process in processes
            ]
        )

    async def AskPolicy(
        self, request: policy_admin_pb2.AskPolicyRequest, context: Context
    ) -> policy_admin_pb2.AskPolicyResponse:
        """Answers what would happen to a message."""
        decision = await self._asker.ask(current_principal().tenant, requests.read_question(request))
        return policy_admin_pb2.AskPolicyResponse(decision=decision_to_wire(decision))

    async def SimulatePolicy(
        self, request: policy_admin_pb2.SimulatePolicyRequest, context: Context
    ) -> AsyncIterator[policy_admin_pb2.SimulatePolicyResponse]:
        """Streams the messages whose decision would change, as they are found."""
        simulation = requests.read_simulation(request, current_principal().tenant, self._clock.now())
        give_back = self._simulator.reserve()
        # Not by the end of this method: blocked in the flow control of a caller who is gone, it may never come.
        context.add_done_callback(lambda _: give_back())  # type: ignore[arg-type]  # the stubs name a class
        async with aclosing(self._simulator.run(simulation)) as run:
            async for progress in run:
                changes = [_change_to_wire(change) for change in progress.changes]
                for first in range(0, max(1, len(changes)), _MAX_CHANGES):
                    yield policy_admin_pb2.SimulatePolicyResponse(
                        changes=changes[first : first + _MAX_CHANGES],
                        replayed=progress.replayed,
                        changed=progress.changed,
                    )

    async def ListShadowDecisions(
        self, request: policy_admin_pb2.ListShadowDecisionsRequest, context: Context
    ) -> policy_admin_pb2.ListShadowDecisionsResponse:
        """Lists messages about which the policy in shadow decided otherwise."""
        page = requests.read_shadow_page(request)
        records = await self._store.list_shadow(
            current_principal().tenant,
            scene=page.scene,
            since=page.since,
            before=page.before,
            limit=page.limit + 1,
        )
        more = len(records) > page.limit
        records = records[: page.limit]
        return policy_admin_pb2.ListShadowDecisionsResponse(
            changes=[_record_to_wire(record) for record in records],
            next_page_token=records[-1].record_id if more else "",
        )

    async def GetCounters(
        self, request: policy_admin_pb2.GetCountersRequest, context: Context
    ) -> policy_admin_pb2.GetCountersResponse:
        """Shows what counts on the caps of users."""
        tenant = current_principal().tenant
        asked = requests.read_users(request)
        users = [UserKey(tenant, user_id) for user_id in asked]
        return policy_admin_pb2.GetCountersResponse(
            messages=[
                policy_admin_pb2.CountedMessage(
                    user_id=asked[counted.user.user_id],
                    intent_id=counted.message.rpartition(":")[0],
                    hop=int(counted.message.rpartition(":")[2]),
                    channel=channel_to_wire(counted.channel),
                    category=category_to_wire(counted.category),
                    cap_date=counted.cap_date,
                    counted_at=timestamp(counted.counted_at),
                    pending=counted.pending,
                )
                for counted in await self._clearing.show(users)
            ]
        )

    async def ClearCounters(
        self, request: policy_admin_pb2.ClearCountersRequest, context: Context
    ) -> policy_admin_pb2.ClearCountersResponse:
        """Forgets what counts on the caps of one user."""
        principal = current_principal()
        user_ids, reason = requests.read_clearance(request)
        cleared = 0
        for user_id in user_ids:
            cleared += await self._clearing.clear(UserKey(principal.tenant, user_id), principal.subject, reason)
        return policy_admin_pb2.ClearCountersResponse(cleared=cleared)


def _change_to_wire(change: Change) -> policy_admin_pb2.ChangedDecision:
    item = change.item
    return policy_admin_pb2.ChangedDecision(
        intent_id=item.intent_id,
        hop=item.hop,
        user_id=item.user_id,
        scene=item.scene,
        decided_at=timestamp(change.actual.decided_at),
        actual=decision_to_wire(change.actual),
        other=decision_to_wire(change.other),
        gate=_gate_to_wire(change.gate),
    )


def _record_to_wire(record: ShadowRecord) -> policy_admin_pb2.ChangedDecision:
    return policy_admin_pb2.ChangedDecision(
        intent_id=record.intent_id,
        hop=record.hop,
        user_id=record.user_id,
        scene=record.scene,
        decided_at=timestamp(record.decided_at),
        actual=message_pb2.Decision.FromString(record.actual),
        other=message_pb2.Decision.FromString(record.other),
        gate=_gate_to_wire(Gate(record.gate)),
    )


def _gate_to_wire(gate: Gate) -> message_pb2.Gate.ValueType:
    return message_pb2.Gate.Value(f"GATE_{gate.name}")
