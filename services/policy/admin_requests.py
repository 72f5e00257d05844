"""Requests of operators, checked field by field and turned into the domain's words.

Every function raises InvalidFieldsError, which names each wrong field.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from agent_reach.v1 import policy_admin_pb2
from services.catalog.addresses import normalise, pseudonym
from services.catalog.rules import Channel
from services.catalog.wire import channel_from_wire

from .decision import Address, LocalTime
from .faults import MAX_USER, Faults, checking
from .simulate import Simulation, read_policies

MAX_PAGE = 500
DEFAULT_PAGE = 50
MAX_USERS = 100
MAX_POLICIES_BYTES = 1024 * 1024
_MAX_ID = 64
_MAX_REASON = 512
_MAX_HISTORY = timedelta(days=31)
# Who asks for "31 days ago" does so a moment before it is read.
_GRACE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class AskedMessage:
    """A message that somebody thinks of; see `decision.Item`.

    Attributes:
        at: the moment of the judgement; None for now.
    """

    user_id: str
    address: Address | None
    scene: str
    template: str
    channels: tuple[Channel, ...]
    expires_at: datetime | None
    at: datetime | None
    send_at: datetime | None
    send_at_local: LocalTime | None


@dataclass(frozen=True, slots=True)
class ShadowPage:
    """Which decisions in shadow are to be listed."""

    scene: str
    since: datetime | None
    before: UUID | None
    limit: int


def read_question(request: policy_admin_pb2.AskPolicyRequest) -> AskedMessage:
    """Returns the message that somebody thinks of."""
    with checking() as faults:
        faults.text("user_id", request.user_id, max_length=MAX_USER, required=False)
        faults.text("scene", request.scene, max_length=_MAX_ID)
        faults.text("template", request.template, max_length=_MAX_ID, required=False)
        has_address = request.HasField("address")
        if bool(request.user_id) == has_address:
            faults.add("user_id", "set either this or address")
        if request.HasField("send_at") and request.HasField("send_at_local"):
            faults.add("send_at", "set either this or send_at_local")
        return AskedMessage(
            user_id=request.user_id,
            address=faults.address("address", request.address) if has_address else None,
            scene=request.scene,
            template=request.template,
            channels=_channels(faults, request),
            expires_at=faults.optional_moment("expires_at", request, "expires_at"),
            at=faults.optional_moment("at", request, "at"),
            send_at=faults.optional_moment("send_at", request, "send_at"),
            send_at_local=faults.local_time("send_at_local", request.send_at_local)
            if request.HasField("send_at_local")
            else None,
        )


def read_simulation(request: policy_admin_pb2.SimulatePolicyRequest, tenant: str, now: datetime) -> Simulation:
    """Returns what is to be replayed, and by what."""
    with checking() as faults:
        faults.text("scene", request.scene, max_length=_MAX_ID, required=False)
        if not request.HasField("since"):
            faults.add("since", "is required")
        since = faults.moment("since", request.since) or now
        before = min(faults.optional_moment("before", request, "before") or now, now)
        if since < now - _MAX_HISTORY - _GRACE:
            faults.add("since", "lies more than 31 days back")
        elif since >= before:
            faults.add("since", "does not lie before the end")
        if not 1 <= len(request.policies_yaml) <= MAX_POLICIES_BYTES:
            faults.add("policies_yaml", f"has {len(request.policies_yaml):,} bytes; 1 to 1 MiB are allowed")
    return Simulation(tenant, read_policies(request.policies_yaml), since, before, request.scene)


def read_shadow_page(request: policy_admin_pb2.ListShadowDecisionsRequest) -> ShadowPage:
    """Returns which decisions in shadow are to be listed."""
    before: UUID | None = None
    with checking() as faults:
        faults.text("scene", request.scene, max_length=_MAX_ID, required=False)
        if not 0 <= request.page_size <= MAX_PAGE:
            faults.add("page_size", f"is {request.page_size}; 1 to {MAX_PAGE} are allowed")
        since = faults.optional_moment("since", request, "since")
        if request.page_token:
            try:
                before = UUID(request.page_token)
            except ValueError:
                faults.add("page_token", "is none that an earlier page gave")
    return ShadowPage(request.scene, since, before, request.page_size or DEFAULT_PAGE)


def read_users(request: policy_admin_pb2.GetCountersRequest) -> dict[str, str]:
    """Returns whose counters are to be shown: users, and as what each was asked for."""
    with checking() as faults:
        faults.count("user_ids", len(request.user_ids), MAX_USERS)
        for index, user_id in enumerate(request.user_ids[:MAX_USERS]):
            faults.text(f"user_ids[{index}]", user_id, max_length=MAX_USER)
    return {user_id: asked for asked in request.user_ids for user_id in _users_of(asked)}


def read_clearance(request: policy_admin_pb2.ClearCountersRequest) -> tuple[list[str], str]:
    """Returns the users whose counters are to be cleared, and why."""
    with checking() as faults:
        faults.text("user_id", request.user_id, max_length=MAX_USER)
        faults.text("reason", request.reason.strip(), max_length=_MAX_REASON)
    return _users_of(request.user_id), request.reason.strip()


def _users_of(asked: str) -> list[str]:
    """Returns the user that is asked for; of ``email:ada@example.com`` also the one whom the bare address makes."""
    channel, colon, value = asked.partition(":")
    with suppress(ValueError):  # no channel, or no address there: it is a user like any other
        if colon:
            wanted = Channel(channel.lower())
            return [asked, pseudonym(wanted, normalise(wanted, value))]
    return [asked]


def _channels(faults: Faults, request: policy_admin_pb2.AskPolicyRequest) -> tuple[Channel, ...]:
    channels: dict[Channel, None] = {}
    for index, number in enumerate(request.channels):
        channel = channel_from_wire(number)
        if channel is None:
            faults.add(f"channels[{index}]", "is no known channel")
        else:
            channels[channel] = None
    return tuple(channels)
