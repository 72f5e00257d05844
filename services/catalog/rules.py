"""The vocabulary of the configuration, resolved: what a scene, a policy and a channel mean once all is inherited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time, timedelta
from enum import StrEnum


class Channel(StrEnum):
    """The ways a message can leave."""

    EMAIL = "email"
    SMS = "sms"
    WEBHOOK = "webhook"
    INBOX = "inbox"
    CHAT = "chat"


class Category(StrEnum):
    """Groups of scenes by how far they may disturb a person."""

    VERIFICATION = "verification"
    ALERT = "alert"
    NOTIFICATION = "notification"
    MARKETING = "marketing"


class UnknownSend(StrEnum):
    """What to do when a request left and nobody knows whether it arrived."""

    AGAIN = "again"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class QuietWindow:
    """Hours of the user's local day in which nobody is disturbed.

    Attributes:
        start: first quiet moment of the day.
        end: first moment that is not quiet any more; before `start` when the window crosses midnight.
    """

    start: time
    end: time


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How often, and how far apart, a message is tried.

    Attributes:
        max_attempts: attempts in all, the first included.
        base_seconds: wait after the first failure; it doubles with each further one.
        cap_seconds: longest wait.
        jitter_ratio: share of a wait by which it is varied, 0 to 1.
    """

    max_attempts: int
    base_seconds: float
    cap_seconds: float
    jitter_ratio: float


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with everything it inherits filled in.

    Attributes:
        name: its key in `policies`.
        quiet_hours: the window; None disturbs at any hour.
        quiet_exempt_scenes: scenes that may disturb at night, beside those of category verification and alert.
        user_daily_cap: messages that one user may get on one local day; None sets no limit.
        user_channel_daily_cap: the same per channel; a channel that is not named has no limit of its own.
        retry: how sending is repeated.
        task_ttl: life of a message that names no expiry.
    """

    name: str
    quiet_hours: QuietWindow | None
    quiet_exempt_scenes: frozenset[str]
    user_daily_cap: int | None
    user_channel_daily_cap: Mapping[Channel, int]
    retry: RetryRules
    task_ttl: timedelta


@dataclass(frozen=True, slots=True)
class ChannelRules:
    """What a channel can bear.

    Attributes:
        channel: which one.
        burst: messages that may leave at once.
        rate_per_sec: messages per second in the long run.
        daily_quota: messages per day (UTC); None sets no limit.
        fallback: the channel that takes its place when it is spent or broken.
    """

    channel: Channel
    burst: int
    rate_per_sec: float
    daily_quota: int | None
    fallback: Channel | None


@dataclass(frozen=True, slots=True)
class SceneRules:
    """All that holds for one scene.

    Attributes:
        name: the scene.
        category: how far it may disturb.
        declared: whether the file declares it, or it is built in; otherwise it is taken for a notification.
        channels: the scene's own order of channels; None leaves it to the intent's wish.
        policy: the policy in force for it.
        template: the template of an intent that names none.
        quiet_exempt: whether it may disturb during quiet hours.
        unknown_send: what to do when nobody knows whether a message arrived.
        intent_key_window: time bucket of a derived intent key; None where the intent must give its key.
    """

    name: str
    category: Category
    declared: bool
    channels: tuple[Channel, ...] | None
    policy: Policy
    template: str
    quiet_exempt: bool
    unknown_send: UnknownSend
    intent_key_window: timedelta | None
