"""Past judgements, as the dispatcher keeps them, in the domain's words."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime

import grpc

from agent_reach.v1 import dispatcher_pb2, dispatcher_pb2_grpc, message_pb2, policy_pb2
from services.catalog.wire import channel_from_wire
from services.chassis.errors import UnavailableError
from services.chassis.moments import moment, timestamp

from .batches import read_items
from .decision import Action, Decision, Gate, GateEntry, GateOutcome
from .faults import MAX_BATCH
from .places import message_name
from .replay import Judgement

_ACTIONS = {message_pb2.Action.Value(f"ACTION_{action.name}"): action for action in Action}
_GATES: Mapping[int, Gate] = {message_pb2.Gate.Value(f"GATE_{gate.name}"): gate for gate in Gate}
_OUTCOMES = {message_pb2.GateOutcome.Value(f"GATE_OUTCOME_{outcome.name}"): outcome for outcome in GateOutcome}


class History:
    """The judgements of a tenant's messages, asked of the dispatcher.

    Args:
        channel: to the dispatcher.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = dispatcher_pb2_grpc.DispatcherServiceStub(channel)

    async def pages(
        self, tenant: str, since: datetime, before: datetime
    ) -> AsyncGenerator[list[tuple[Judgement, ...]]]:
        """Yields messages with all their judgements, the oldest first; as fast as they are taken.

        Raises:
            UnavailableError: the dispatcher cannot be asked, or stops.
        """
        request = dispatcher_pb2.StreamDecisionsRequest(
            tenant=tenant, since=timestamp(since), before=timestamp(before)
        )
        call = self._stub.StreamDecisions(request)
        try:
            async for response in call:
                yield _messages(response.decisions)
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(
                f"the history cannot be read ({error.code().name})", metadata={"service": "dispatcher"}
            ) from error
        finally:
            call.cancel()


def decision_from_wire(decision: message_pb2.Decision) -> Decision:
    """Returns a decision that was ours once."""
    return Decision(
        action=_ACTIONS[decision.action],
        trace=tuple(
            GateEntry(_GATES[entry.gate], _OUTCOMES[entry.outcome], entry.reason, dict(entry.inputs))
            for entry in decision.trace
        ),
        policy_version=decision.policy_version,
        decided_at=moment(decision.decided_at),
        reason=decision.reason,
        until=moment(decision.until) if decision.HasField("until") else None,
        channel=channel_from_wire(decision.channel),
        address=decision.address,
        locale=decision.locale,
        cap_date=decision.cap_date,
        held_by=_GATES.get(decision.held_by),
    )


def _messages(decisions: Sequence[dispatcher_pb2.PastDecision]) -> list[tuple[Judgement, ...]]:
    judgements: list[Judgement] = []
    for first in range(0, len(decisions), MAX_BATCH):
        some = decisions[first : first + MAX_BATCH]
        items = read_items(policy_pb2.EvaluateRequest(items=[past.item for past in some]))
        judgements += [
            Judgement(item, decision_from_wire(past.decision)) for item, past in zip(items, some, strict=True)
        ]
    return [tuple(group) for _, group in itertools.groupby(judgements, key=lambda each: message_name(each.item))]
