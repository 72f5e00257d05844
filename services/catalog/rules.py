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


# Days of the week as `datetime.weekday` counts them.
EVERY_DAY = frozenset(range(7))


@dataclass(frozen=True, slots=True)
class QuietWindow:
    """Hours of the user's local day in which nobody is disturbed.

    Attributes:
        start: first quiet moment of the day.
        end: first moment that is not quiet any more; before `start` when the window crosses midnight.
        days: days of the week, 0 (Monday) to 6 (Sunday), on which it starts.
    """

    start: time
    end: time
    days: frozenset[int] = EVERY_DAY


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
class WindowCap:
    """A cap over a sliding window: so many messages of the scene's category to one user within so much time."""

    messages: int
    window: timedelta


@dataclass(frozen=True, slots=True)
class Digest:
    """How intents of one user and scene are gathered into one message.

    Attributes:
        window: from the first intent on, how long others are gathered.
        max_items: the digest leaves at once when it holds so many; None waits for the window's end.
    """

    window: timedelta
    max_items: int | None


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with everything it inherits, and what its scene overrides, filled in.

    Attributes:
        name: its key in `policies`.
        quiet_hours: the windows; none disturbs at any hour.
        quiet_exempt_scenes: scenes that may disturb at night, beside those of category verification and alert.
        user_daily_cap: messages that one user may get on one local day; None sets no limit.
        user_channel_daily_cap: the same per channel; a channel that is not named has no limit of its own.
        user_window_caps: caps over sliding windows, by the category of the scene.
        tenant_daily_quota: messages of the whole tenant on one UTC day; None sets no limit.
        retry: how sending is repeated.
        task_ttl: life of a message that names no expiry.
    """

    name: str
    quiet_hours: tuple[QuietWindow, ...]
    quiet_exempt_scenes: frozenset[str]
    user_daily_cap: int | None
    user_channel_daily_cap: Mapping[Channel, int]
    user_window_caps: tuple[WindowCap, ...]
    tenant_daily_quota: int | None
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
        dedupe_window: the same text to the same user on the same channel goes out once within it; None sends all.
        digest: how its intents are gathered into one message; None sends each by itself.
        share: of all users, the share for whom the scene is switched on, 0 to 1; the same users every time.
        opt_in: whether it needs a user's opting in.
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
    dedupe_window: timedelta | None
    digest: Digest | None
    share: float
    opt_in: bool
