"""The domain's words as the contract writes them. What comes in is checked in `requests`."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import message_pb2, profile_pb2, suppression_pb2
from services.catalog.wire import category_to_wire, channel_to_wire

from .decision import Action, Address, Decision, Gate, GateOutcome, SuppressionSource
from .records import Profile, StoredSuppression

_ACTIONS = {action: message_pb2.Action.Value(f"ACTION_{action.name}") for action in Action}
_GATES = {gate: message_pb2.Gate.Value(f"GATE_{gate.name}") for gate in Gate}
_OUTCOMES = {outcome: message_pb2.GateOutcome.Value(f"GATE_OUTCOME_{outcome.name}") for outcome in GateOutcome}
_SOURCES = {
    source: suppression_pb2.SuppressionSource.Value(f"SUPPRESSION_SOURCE_{source.name}")
    for source in SuppressionSource
}
_SOURCES_BACK = {number: source for source, number in _SOURCES.items()}


def moment_to_wire(moment: datetime) -> Timestamp:
    """Returns a moment as a protobuf timestamp."""
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp


def address_to_wire(address: Address) -> message_pb2.Address:
    """Returns an address as the contract writes it."""
    return message_pb2.Address(channel=channel_to_wire(address.channel), value=address.value)


def decision_to_wire(decision: Decision) -> message_pb2.Decision:
    """Returns a decision as the contract writes it, with every gate."""
    return message_pb2.Decision(
        action=_ACTIONS[decision.action],
        reason=decision.reason,
        until=None if decision.until is None else moment_to_wire(decision.until),
        channel=channel_to_wire(decision.channel),
        address=decision.address,
        locale=decision.locale,
        cap_date=decision.cap_date,
        trace=[
            message_pb2.GateTrace(
                gate=_GATES[entry.gate],
                outcome=_OUTCOMES[entry.outcome],
                reason=entry.reason,
                inputs=entry.inputs,
            )
            for entry in decision.trace
        ],
        policy_version=decision.policy_version,
        decided_at=moment_to_wire(decision.decided_at),
    )


def profile_to_wire(profile: Profile) -> profile_pb2.Profile:
    """Returns a stored profile as the contract writes it."""
    return profile_pb2.Profile(
        user_id=profile.user_id,
        addresses=[address_to_wire(Address(channel, value)) for channel, value in profile.addresses.items()],
        locale=profile.locale,
        time_zone=profile.time_zone,
    )


def suppression_to_wire(stored: StoredSuppression) -> suppression_pb2.Suppression:
    """Returns a stored suppression as the contract writes it."""
    wish = stored.wish
    return suppression_pb2.Suppression(
        suppression_id=stored.suppression_id,
        user_id=wish.user_id,
        address=None if wish.address is None else address_to_wire(wish.address),
        channel=channel_to_wire(wish.channel),
        category=category_to_wire(wish.category),
        source=_SOURCES[wish.source],
        note=wish.note,
        created_by=stored.created_by,
        created_at=moment_to_wire(stored.created_at),
    )


def source_from_wire(number: suppression_pb2.SuppressionSource.ValueType) -> SuppressionSource | None:
    """Returns the source of a suppression; None where it is not set, or not known to this version."""
    return _SOURCES_BACK.get(number)
