"""`policies.yaml` as the operator writes it, and how its parts inherit from each other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import time, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from .errors import CatalogError, Problem
from .rules import Category, Channel, ChannelRules, Policy, QuietWindow, RetryRules, SceneRules, UnknownSend
from .yaml_file import Lines, load_yaml

DEFAULT_POLICY = "default"
# Scenes that exist without being declared: each category under its own name, and the best known one.
BUILT_IN_SCENES: Mapping[str, Category] = MappingProxyType(
    {**{category.value: category for category in Category}, "verify_code": Category.VERIFICATION}
)
_QUIET_EXEMPT = frozenset({Category.VERIFICATION, Category.ALERT})
_CATEGORY_WINDOWS: Mapping[Category, int] = MappingProxyType(
    {Category.NOTIFICATION: 3_600, Category.ALERT: 3_600, Category.MARKETING: 86_400}
)

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.-]{1,64}$")]
ValueT = TypeVar("ValueT")


def check_time_zone(name: str) -> str:
    """Returns the name of an IANA time zone if it is one.

    Raises:
        ValueError: no such zone is known.
    """
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: names of folders, or too long
        raise ValueError(f"{name!r} is not a known IANA time zone") from error
    return name


def _check_time(value: str) -> str:
    time.fromisoformat(value)
    return value


def _no_repetition(values: tuple[ValueT, ...]) -> tuple[ValueT, ...]:
    if len(set(values)) != len(values):
        raise ValueError("names something twice")
    return values


ClockTime = Annotated[
    str,
    StringConstraints(pattern=r"^([01]\d|2[0-3]):[0-5]\d$"),
    AfterValidator(_check_time),
]


def _check_window(window: tuple[ClockTime, ClockTime] | None) -> tuple[ClockTime, ClockTime] | None:
    if window is not None and window[0] == window[1]:
        raise ValueError("starts and ends at the same time; write null for no quiet hours")
    return window


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RetrySection(_Section):
    """How sending is repeated after transport errors."""

    max_attempts: int = Field(default=4, ge=1, le=100, description="Attempts in all, the first included.")
    base_seconds: float = Field(
        default=3.0, gt=0, le=86_400, description="Wait after the first failure; doubles each time."
    )
    cap_seconds: float = Field(default=300.0, gt=0, le=86_400, description="Longest wait.")
    jitter_ratio: float = Field(default=0.3, ge=0, le=1, description="Share of a wait by which it is varied.")


class PolicySection(_Section):
    """One policy; what a named one leaves out comes from `default`."""

    quiet_hours: Annotated[tuple[ClockTime, ClockTime] | None, AfterValidator(_check_window)] = Field(
        default=("22:30", "08:00"),
        description='Start and end in the user\'s time, quoted: ["22:30", "08:00"]; null for none.',
    )
    quiet_exempt_scenes: Annotated[tuple[Name, ...], AfterValidator(_no_repetition)] = Field(
        default=(), description="Scenes that may disturb during quiet hours, beside verification and alert scenes."
    )
    user_daily_cap: int | None = Field(
        default=3, ge=0, description="Messages a user may get on one local day; null for no limit."
    )
    user_channel_daily_cap: dict[Channel, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict, description="The same per channel."
    )
    retry: RetrySection = Field(default=RetrySection(), description="How sending is repeated.")
    task_ttl_seconds: int = Field(
        default=86_400, ge=1, le=31_536_000, description="Life of a message that names no expiry."
    )


class ChannelSection(_Section):
    """One channel: what its provider bears."""

    burst: int = Field(default=100, ge=1, description="Messages that may leave at once.")
    rate_per_sec: float = Field(default=100.0, gt=0, description="Messages per second in the long run.")
    daily_quota: int | None = Field(default=None, ge=0, description="Messages per day (UTC); null for no limit.")
    fallback: Channel | None = Field(
        default=None, description="Channel that takes its place when it is spent or broken."
    )


class SceneSection(_Section):
    """One scene: why we write."""

    category: Category = Field(default=Category.NOTIFICATION, description="How far the scene may disturb.")
    channels: Annotated[tuple[Channel, ...], Field(min_length=1), AfterValidator(_no_repetition)] | None = Field(
        default=None, description="Order of channels; without it the intent's wish counts."
    )
    template: Name | None = Field(
        default=None, description="Template of an intent that names none; else the scene's name."
    )
    policy: Name = Field(default=DEFAULT_POLICY, description="Policy in force for the scene.")
    unknown_send: UnknownSend | None = Field(
        default=None, description="again or fail, when nobody knows whether a message arrived; by default by category."
    )
    intent_key_window_seconds: int | None = Field(
        default=None,
        ge=1,
        le=31_536_000,
        description="Time bucket of a derived intent key; by default the category's.",
    )


class PoliciesFile(_Section):
    """The whole of `policies.yaml`."""

    version: int = Field(ge=1, description="The operator's own number of the file, for people; the hash is exact.")
    policies: dict[Name, PolicySection] = Field(description="Policies by name; `default` must be there.")
    channels: dict[Channel, ChannelSection] = Field(min_length=1, description="Channels, the most wanted first.")
    scenes: dict[Name, SceneSection] = Field(default_factory=dict, description="Scenes by name.")
    strict_scenes: bool = Field(default=False, description="Refuse intents of scenes that are not declared.")
    default_time_zone: Annotated[str, AfterValidator(check_time_zone)] = Field(
        default="UTC", description="Zone of users of whom none is known."
    )
    intent_key_window_seconds: dict[Category, Annotated[int, Field(ge=1, le=31_536_000)]] = Field(
        default_factory=dict, description="Time buckets of derived intent keys by category; not for verification."
    )


class Policies:
    """A checked `policies.yaml` with everything resolved. Immutable.

    Attributes:
        version: SHA-256 (hex) of what the file says; comments and layout do not count.
        revision: the operator's own number of it.
        channels: the channels in their order.
        strict_scenes: whether undeclared scenes are refused.
        default_time_zone: zone of users of whom none is known.
        policies: the policies by name.
    """

    def __init__(self, file: PoliciesFile) -> None:
        self.version = hashlib.sha256(file.model_dump_json().encode()).hexdigest()
        self.revision = file.version
        self.strict_scenes = file.strict_scenes
        self.default_time_zone = file.default_time_zone
        self.channels: Mapping[Channel, ChannelRules] = MappingProxyType(
            {
                channel: ChannelRules(
                    channel, section.burst, section.rate_per_sec, section.daily_quota, section.fallback
                )
                for channel, section in file.channels.items()
            }
        )
        default = file.policies[DEFAULT_POLICY]
        self.policies: Mapping[str, Policy] = MappingProxyType(
            {name: _resolve_policy(name, section, default) for name, section in file.policies.items()}
        )
        self._windows = {**_CATEGORY_WINDOWS, **file.intent_key_window_seconds}
        sections = {name: SceneSection(category=category) for name, category in BUILT_IN_SCENES.items()}
        self._scenes: Mapping[str, SceneRules] = MappingProxyType(
            {
                name: self._resolve_scene(name, section, declared=True)
                for name, section in {**sections, **file.scenes}.items()
            }
        )

    @property
    def scenes(self) -> Mapping[str, SceneRules]:
        """The declared and the built-in scenes by name."""
        return self._scenes

    def scene(self, name: str) -> SceneRules:
        """Returns what holds for a scene; one that nobody declared is a notification."""
        known = self._scenes.get(name)
        return known if known is not None else self._resolve_scene(name, SceneSection(), declared=False)

    def _resolve_scene(self, name: str, section: SceneSection, *, declared: bool) -> SceneRules:
        policy = self.policies[section.policy]
        category = section.category
        default_send = UnknownSend.AGAIN if category in _QUIET_EXEMPT else UnknownSend.FAIL
        seconds = section.intent_key_window_seconds or self._windows.get(category)
        return SceneRules(
            name=name,
            category=category,
            declared=declared,
            channels=section.channels,
            policy=policy,
            template=section.template or name,
            quiet_exempt=category in _QUIET_EXEMPT or name in policy.quiet_exempt_scenes,
            unknown_send=section.unknown_send or default_send,
            intent_key_window=timedelta(seconds=seconds) if seconds is not None else None,
        )


def load_policies(file: Path) -> Policies:
    """Reads and checks `policies.yaml`.

    Raises:
        CatalogError: every fault with file, line and reason.
    """
    model, lines = load_yaml(file, PoliciesFile)
    if problems := _contradictions(model, lines):
        raise CatalogError(problems)
    return Policies(model)


def _resolve_policy(name: str, section: PolicySection, default: PolicySection) -> Policy:
    """Fills what a named policy leaves unset from the default; `retry` and the caps per channel value by value."""
    own = {field: getattr(section, field) for field in section.model_fields_set}
    if "retry" in own:
        retry = {field: getattr(section.retry, field) for field in section.retry.model_fields_set}
        own["retry"] = default.retry.model_copy(update=retry)
    own["user_channel_daily_cap"] = {**default.user_channel_daily_cap, **section.user_channel_daily_cap}
    whole = default.model_copy(update=own)
    window = whole.quiet_hours
    return Policy(
        name=name,
        quiet_hours=None
        if window is None
        else QuietWindow(time.fromisoformat(window[0]), time.fromisoformat(window[1])),
        quiet_exempt_scenes=frozenset(whole.quiet_exempt_scenes),
        user_daily_cap=whole.user_daily_cap,
        user_channel_daily_cap=MappingProxyType(whole.user_channel_daily_cap),
        retry=RetryRules(**whole.retry.model_dump()),
        task_ttl=timedelta(seconds=whole.task_ttl_seconds),
    )


def _contradictions(file: PoliciesFile, lines: Lines) -> list[Problem]:
    """Finds what is wrong between parts that are right by themselves."""
    problems: list[Problem] = []
    if DEFAULT_POLICY not in file.policies:
        problems.append(lines.problem(("policies",), "has no policy named default"))
    for channel, rules in file.channels.items():
        at = ("channels", channel.value, "fallback")
        if rules.fallback is channel:
            problems.append(lines.problem(at, "is the channel itself"))
        elif rules.fallback is not None and rules.fallback not in file.channels:
            problems.append(lines.problem(at, f"{rules.fallback.value} is not among the channels"))
    for name, scene in file.scenes.items():
        at_scene = ("scenes", name)
        if scene.policy not in file.policies:
            problems.append(lines.problem((*at_scene, "policy"), f"there is no policy named {scene.policy}"))
        if scene.category is Category.VERIFICATION and scene.intent_key_window_seconds is not None:
            reason = "a verification must give its intent_key; none is derived"
            problems.append(lines.problem((*at_scene, "intent_key_window_seconds"), reason))
        problems += [
            lines.problem((*at_scene, "channels"), f"{channel.value} is not among the channels")
            for channel in scene.channels or ()
            if channel not in file.channels
        ]
    if Category.VERIFICATION in file.intent_key_window_seconds:
        reason = "a verification must give its intent_key; none is derived"
        problems.append(lines.problem(("intent_key_window_seconds", "verification"), reason))
    return problems
