"""What is judged, what is known, and what comes out; the vocabulary of this room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from services.catalog.rules import Category, Channel, ChannelRules, SceneRules

from .record import record


class Action(StrEnum):
    """What to do with a message."""

    SEND_NOW = "send_now"
    DEFER = "defer"
    FALL_BACK = "fall_back"
    DROP = "drop"


class Gate(StrEnum):
    """The rules, in the order in which they are asked."""

    SCHEDULE = "schedule"
    RELEASE = "release"
    CHANNEL = "channel"
    SUPPRESSION = "suppression"
    DIGEST = "digest"
    QUIET_HOURS = "quiet_hours"
    FREQUENCY = "frequency"
    CHANNEL_QUOTA = "channel_quota"


class GateOutcome(StrEnum):
    """How one gate answered."""

    PASSED = "passed"
    EXEMPT = "exempt"
    DEFERRED = "deferred"
    FELL_BACK = "fell_back"
    DROPPED = "dropped"


class SuppressionSource(StrEnum):
    """Where a suppression comes from."""

    UNSUBSCRIBE = "unsubscribe"
    COMPLAINT = "complaint"
    BOUNCE = "bounce"
    OPERATOR = "operator"
    IMPORT = "import"


class UserKey(NamedTuple):
    """One user of one tenant. A tuple: it is the key of every look-up."""

    tenant: str
    user_id: str


class Address(NamedTuple):
    """One address in normal form, and the channel it is for. A tuple: it is the key of look-ups."""

    channel: Channel
    value: str


@dataclass(frozen=True, slots=True)
class LocalTime:
    """A time by the recipient's own clock, as an intent asks for it.

    Attributes:
        at: the time of day.
        weekday: the only day of the week, 0 (Monday) to 6 (Sunday); None for any.
        day: the only local date; None for any.
    """

    at: time
    weekday: int | None = None
    day: date | None = None


@record(frozen=True, slots=True)
class Item:
    """One message to judge.

    Attributes:
        intent_id: the intent.
        hop: number of the task: 0, or 1 after a fallback.
        tenant: whose user it is.
        user_id: the user.
        scene: why we write.
        address: bare address of a recipient without a profile; None for users.
        channels: wished channels, best first.
        expires_at: when the message is worthless; None for never.
        deferrals: how often quiet hours deferred it so far.
        planned_at: when a deferred message was to be judged again.
        template: what will be rendered; the scene's own template where it is empty.
        send_at: the earliest moment at which it may leave.
        send_at_local: that moment by the recipient's own clock.
        submitted_at: from when `send_at_local` counts; None for now.
        scheduled: the schedule gate held it already, and its moment has come.
        gathered: it is a digest, or was judged as part of one.
    """

    intent_id: str
    hop: int
    tenant: str
    user_id: str
    scene: str
    address: Address | None = None
    channels: tuple[Channel, ...] = ()
    expires_at: datetime | None = None
    deferrals: int = 0
    planned_at: datetime | None = None
    template: str = ""
    send_at: datetime | None = None
    send_at_local: LocalTime | None = None
    submitted_at: datetime | None = None
    scheduled: bool = False
    gathered: bool = False


@record(frozen=True, slots=True)
class Person:
    """What is known of a user; nothing, by default.

    Attributes:
        addresses: address in normal form by channel.
        locale: BCP 47, empty where unknown.
        time_zone: zone of the profile, empty where unknown.
        active_zone: zone of the last activity, empty where none was seen.
        active_at: moment of the last activity.
    """

    addresses: Mapping[Channel, str] = field(default_factory=lambda: MappingProxyType({}))
    locale: str = ""
    time_zone: str = ""
    active_zone: str = ""
    active_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Suppression:
    """A standing wish for silence, of a user or of an address.

    Attributes:
        suppression_id: its id.
        source: where it comes from.
        user_id: the user; empty where an address is named.
        address: the address; None where a user is named.
        channel: the only channel it holds for; None for all.
        category: the only category it holds for; None for all but verification.
    """

    suppression_id: str
    source: SuppressionSource
    user_id: str = ""
    address: Address | None = None
    channel: Channel | None = None
    category: Category | None = None


@dataclass(frozen=True, slots=True)
class Preference:
    """What a user chose to hear about, or not.

    Attributes:
        category: the only category it holds for; None for all but verification.
        channel: the only channel it holds for; None for all.
        opt_in: whether the user wants to hear.
    """

    category: Category | None
    channel: Channel | None
    opt_in: bool


@record(frozen=True, slots=True)
class Known:
    """What stands about a user, at the moment of the judgement.

    Attributes:
        person: who it is.
        suppressions: standing suppressions of the user, and of the addresses in question.
        preferences: what the user chose to hear about.
    """

    person: Person
    suppressions: tuple[Suppression, ...] = ()
    preferences: tuple[Preference, ...] = ()


class Usage(NamedTuple):
    """What a user got, as the counter saw it in the moment it judged; the message itself left out.

    Attributes:
        user: messages on all channels on the local day.
        channel: messages on the channel in question on that day.
        own: the message has its own place already, in the caps and in the quotas it counts on: it never blocks itself.
        windows: messages of its category within each sliding window, in the order of the policy's caps.
    """

    user: int = 0
    channel: int = 0
    own: bool = False
    windows: tuple[int, ...] = ()


@record(frozen=True, slots=True)
class Facts:
    """Everything that a decision about one message depends on, beside the rules and the moment.

    Attributes:
        person: who it is for.
        suppressions: standing suppressions of this user and these addresses.
        preferences: what the user chose to hear about.
        usage: what the user got, by the channel that was asked about; missing means nothing was sent.
        quota_used: messages of this UTC day on a channel when this one's batch came, without itself, and the whole
            quota for those of the batch that found no place in it; missing means none.
        tenant_used: the same for the tenant's quota.
        kept_zone: the zone that was chosen for the user within the last two hours; empty where none was.
    """

    person: Person
    suppressions: tuple[Suppression, ...] = ()
    preferences: tuple[Preference, ...] = ()
    usage: Mapping[Channel, Usage] = field(default_factory=lambda: MappingProxyType({}))
    quota_used: Mapping[Channel, int] = field(default_factory=lambda: MappingProxyType({}))
    tenant_used: int = 0
    kept_zone: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator wrote, as far as one message is concerned.

    Attributes:
        scene: the scene with its policy.
        channels: the channels, the most wanted first.
        default_time_zone: zone of users of whom none is known.
        policy_version: content hash of the policy.
        served: channels that the scene's template can serve; None where that is not known.
    """

    scene: SceneRules
    channels: Mapping[Channel, ChannelRules]
    default_time_zone: str
    policy_version: str
    served: frozenset[Channel] | None = None


@record(frozen=True, slots=True)
class GateEntry:
    """How one gate judged, and by what.

    Attributes:
        gate: which one.
        outcome: its answer.
        reason: the stable reason, see `reasons`.
        inputs: what it saw, in words; never an address.
    """

    gate: Gate
    outcome: GateOutcome
    reason: str
    inputs: Mapping[str, str]


@record(frozen=True, slots=True)
class Decision:
    """What to do with a message, and why.

    Attributes:
        action: what to do.
        trace: every gate that was asked, in order.
        policy_version: content hash of the policy that judged.
        decided_at: moment of the judgement.
        reason: the reason of a DEFER, FALL_BACK or DROP; empty for SEND_NOW.
        until: when a deferred message is judged again.
        channel: the chosen channel; None where none was found.
        address: the address on it.
        locale: the recipient's locale.
        cap_date: local date (YYYY-MM-DD) on whose caps it counts; empty where it counts on none.
        held_by: the gate that deferred it.
    """

    action: Action
    trace: tuple[GateEntry, ...]
    policy_version: str
    decided_at: datetime
    reason: str = ""
    until: datetime | None = None
    channel: Channel | None = None
    address: str = ""
    locale: str = ""
    cap_date: str = ""
    held_by: Gate | None = None

    @property
    def sends(self) -> bool:
        """Whether a message leaves now, on whichever channel."""
        return self.action is Action.SEND_NOW or self.action is Action.FALL_BACK
