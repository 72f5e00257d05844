"""What is judged, what is known, and what comes out; the vocabulary of this room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from services.catalog.rules import Category, Channel, ChannelRules, SceneRules


class Action(StrEnum):
    """What to do with a message."""

    SEND_NOW = "send_now"
    DEFER = "defer"
    FALL_BACK = "fall_back"
    DROP = "drop"


class Gate(StrEnum):
    """The rules, in the order in which they are asked."""

    CHANNEL = "channel"
    SUPPRESSION = "suppression"
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


@dataclass(frozen=True, slots=True)
class UserKey:
    """One user of one tenant."""

    tenant: str
    user_id: str


@dataclass(frozen=True, slots=True)
class Address:
    """One address in normal form, and the channel it is for."""

    channel: Channel
    value: str


@dataclass(frozen=True, slots=True)
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
        deferrals: how often it was deferred so far.
        planned_at: when a deferred message was to be judged again.
        template: what will be rendered; the scene's own template where it is empty.
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


@dataclass(frozen=True, slots=True)
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
class Usage:
    """What a user got on one local day, as the counter saw it in the moment it judged; the message itself left out.

    Attributes:
        user: messages on all channels.
        channel: messages on the channel in question.
        own: the message has its own place already, which never blocks it.
    """

    user: int = 0
    channel: int = 0
    own: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a decision about one message depends on, beside the rules and the moment.

    Attributes:
        person: who it is for.
        suppressions: standing suppressions of this user and these addresses.
        usage: the user's day, by the channel that was asked about; missing means nothing was sent.
        quota_used: messages of this UTC day on a channel, before this one; missing means none.
    """

    person: Person
    suppressions: tuple[Suppression, ...] = ()
    usage: Mapping[Channel, Usage] = field(default_factory=lambda: MappingProxyType({}))
    quota_used: Mapping[Channel, int] = field(default_factory=lambda: MappingProxyType({}))


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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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

    @property
    def sends(self) -> bool:
        """Whether a message leaves now, on whichever channel."""
        return self.action in {Action.SEND_NOW, Action.FALL_BACK}
