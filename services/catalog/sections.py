"""The shape of `policies.yaml`: what each setting may be, and what it means.

Settings say where they can stand by the class that holds them: `RulesSection` everywhere, `MessageSection` for
categories and scenes. What is left out is inherited (see `resolve`), so an unset value and its default are different
things: `model_fields_set` tells them apart. The JSON Schema in `config/` is made from these classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)

from services.chassis.tenants import TENANT_PATTERN

from .rules import Category, Channel, UnknownSend
from .zones import check_time_zone

DEFAULT_POLICY = "default"
_DAY_MINUTES = 1_440
_WEEK_MINUTES = 7 * _DAY_MINUTES
_YEAR_SECONDS = 31_536_000
_START = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_END = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
_NO_MINUTE_LEFT = "leave no minute of the week at which anything could be sent"
# What Redis and its Lua count exactly, and more than anybody sends.
_MANY = 10**12

ValueT = TypeVar("ValueT")


class Day(StrEnum):
    """The days of the week, in their order."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


DAYS = tuple(Day)


def _no_repetition(values: tuple[ValueT, ...]) -> tuple[ValueT, ...]:
    if len(set(values)) != len(values):
        raise ValueError("names something twice")
    return values


def _unique(schema: dict[str, Any]) -> None:
    """Says in the JSON Schema what `_no_repetition` checks."""
    for part in (schema, *schema.get("anyOf", ())):
        if part.get("type") == "array":
            part["uniqueItems"] = True


def _inherited(schema: dict[str, Any]) -> None:
    """Takes the defaults out of the JSON Schema: a setting that is left out is inherited."""
    for field in schema["properties"].values():
        field.pop("default", None)


def _one_length(schema: dict[str, Any]) -> None:
    """Says in the JSON Schema that a sliding window has one length, in days or in seconds."""
    _inherited(schema)
    schema["oneOf"] = [{"required": ["days"]}, {"required": ["seconds"]}]


def _check_pair(window: tuple[str, str]) -> tuple[str, str]:
    if window[0] == window[1]:
        raise ValueError("starts and ends at the same time; write null for no quiet hours")
    if window == ("00:00", "24:00"):
        raise ValueError(_NO_MINUTE_LEFT)
    return window


def _check_start(text: str) -> str:
    if not re.fullmatch(_START, text):
        raise ValueError(f'{text!r} is no time of day; write "00:00" to "23:59", in quotes')
    return text


def _check_end(text: str) -> str:
    if not re.fullmatch(_END, text):
        raise ValueError(f'{text!r} is no time of day; write "00:00" to "23:59", or "24:00" for its end, in quotes')
    return text


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.-]{1,64}$")]
TenantName = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]
StartTime = Annotated[str, AfterValidator(_check_start), WithJsonSchema({"type": "string", "pattern": _START})]
EndTime = Annotated[str, AfterValidator(_check_end), WithJsonSchema({"type": "string", "pattern": _END})]
Seconds = Annotated[int, Field(ge=1, le=_YEAR_SECONDS)]
Limit = Annotated[int, Field(ge=0, le=_MANY)]
Share = Annotated[float, Field(ge=0, le=1)]
Channels = Annotated[tuple[Channel, ...], Field(min_length=1), AfterValidator(_no_repetition)]


class Section(BaseModel):
    """A mapping of the file; a name that is no setting is a fault."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WindowSection(Section):
    """Quiet hours of some days of the week."""

    start: StartTime = Field(alias="from", description="First quiet minute by the user's clock, `HH:MM`.")
    end: EndTime = Field(
        alias="to",
        description="First minute that is not quiet any more; on the next day when it is before `from`. `24:00` ends "
        "with the day.",
    )
    days: Annotated[tuple[Day, ...], Field(min_length=1), AfterValidator(_no_repetition)] = Field(
        default=DAYS,
        description="Days of the week on which it starts; by default all.",
        json_schema_extra=_unique,
    )

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.start == self.end:
            raise ValueError('starts and ends at the same time; a whole day goes from "00:00" to "24:00"')
        return self

    def minutes(self) -> set[int]:
        """Returns the minutes of the week (0: Monday 00:00) that are quiet by it."""
        start, end = (int(at[:2]) * 60 + int(at[3:]) for at in (self.start, self.end))
        length = end - start if end > start else end - start + _DAY_MINUTES
        starts = (DAYS.index(day) * _DAY_MINUTES + start for day in self.days)
        return {(first + minute) % _WEEK_MINUTES for first in starts for minute in range(length)}


def _check_windows(windows: tuple[WindowSection, ...]) -> tuple[WindowSection, ...]:
    if not windows:
        raise ValueError("is empty; write null for no quiet hours")
    if len(set[int]().union(*(window.minutes() for window in windows))) == _WEEK_MINUTES:
        raise ValueError(_NO_MINUTE_LEFT)
    return windows


def _form(value: object) -> str:
    """Tells the two ways to write quiet hours apart; the names are left out of what a user reads."""
    if not isinstance(value, list | tuple):
        return "[pair]"
    return "[windows]" if not value or isinstance(value[0], Mapping | WindowSection) else "[pair]"


QuietHours = Annotated[
    Annotated[tuple[StartTime, EndTime], AfterValidator(_check_pair), Tag("[pair]")]
    | Annotated[
        tuple[WindowSection, ...],
        AfterValidator(_check_windows),
        Field(json_schema_extra={"minItems": 1}),
        Tag("[windows]"),
    ],
    Discriminator(_form),
]


class WindowCapSection(Section):
    """At most so many messages within a sliding window of time; give `days` or `seconds`."""

    model_config = ConfigDict(json_schema_extra=_one_length)

    messages: int = Field(ge=0, le=10_000, description="Messages of the scene's category that one user may get.")
    days: int = Field(default=0, ge=1, le=90, description="Length of the window in days of 24 hours, at most 90.")
    seconds: int = Field(default=0, ge=1, le=90 * 86_400, description="The same in seconds.")

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        if self.days and self.seconds:
            raise ValueError("has days and seconds; give one of them")
        if not self.days and not self.seconds:
            raise ValueError("needs days or seconds")
        return self


class RetrySection(Section):
    """How sending is repeated after transport errors."""

    model_config = ConfigDict(json_schema_extra=_inherited)

    max_attempts: int = Field(
        default=4, ge=1, le=100, description="Attempts in all, the first included; by default 4, marketing 8."
    )
    base_seconds: float = Field(
        default=3.0, gt=0, le=86_400, description="Wait after the first failure; doubles each time. By default 3."
    )
    cap_seconds: float = Field(default=300.0, gt=0, le=86_400, description="Longest wait; by default 300.")
    jitter_ratio: float = Field(
        default=0.3, ge=0, le=1, description="Share of a wait by which it is varied; by default 0.3."
    )


class DigestSection(Section):
    """Gathers intents of one user and scene into one message."""

    window_seconds: int = Field(
        ge=1, le=7 * 86_400, description="How long others are gathered, from the first intent on; at most 7 days."
    )
    max_items: int | None = Field(
        default=None, ge=2, le=1_000, description="It leaves at once when it holds so many; null waits for the end."
    )


class RulesSection(Section):
    """Settings of messages that can stand in a policy, in a category, and in a scene."""

    model_config = ConfigDict(json_schema_extra=_inherited)

    quiet_hours: QuietHours | None = Field(
        default=("22:30", "08:00"),
        description='Hours in the user\'s time, quoted: ["22:30", "08:00"], or a list of windows '
        '{from: "22:30", to: "08:00", days: [mon, tue]}; null for none. By default ["22:30", "08:00"].',
    )
    user_daily_cap: Limit | None = Field(
        default=3, description="Messages a user may get on one local day; null for no limit. By default 3."
    )
    user_channel_daily_cap: dict[Channel, Limit | None] = Field(
        default_factory=dict,
        description="The same per channel, each inherited by itself; null for no limit. By default none.",
    )
    user_window_caps: Annotated[tuple[WindowCapSection, ...], Field(max_length=8)] = Field(
        default=(),
        description="Caps over sliding windows, counted by the category of the scene; all of them hold. By default "
        "none; an empty list takes away what would be inherited.",
    )
    retry: RetrySection = Field(
        default=RetrySection(), description="How sending is repeated; value by value, each inherited by itself."
    )
    task_ttl_seconds: Seconds = Field(
        default=86_400, description="Life of a message that names no expiry; by default 86400, one day."
    )
    dedupe_window_seconds: Seconds | None = Field(
        default=3_600,
        description="The same text to the same user on the same channel goes out once within it; null sends all. By "
        "default 3600, for verification null.",
    )


class PolicySection(RulesSection):
    """One policy. `default` holds for all; a scene may name another one, which says only what differs."""

    quiet_exempt_scenes: Annotated[tuple[Name, ...], AfterValidator(_no_repetition)] = Field(
        default=(),
        description="Scenes that may disturb during quiet hours, beside those of category verification and alert.",
        json_schema_extra=_unique,
    )
    tenant_daily_quota: Limit | None = Field(
        default=None,
        description="Messages of the whole tenant per day (UTC), in policy `default` only; null, the default, for no "
        "limit.",
    )


class MessageSection(RulesSection):
    """Settings that can stand in a category and in a scene."""

    quiet_exempt: bool = Field(
        default=False, description="May disturb during quiet hours; by default verification and alert may."
    )
    unknown_send: UnknownSend = Field(
        default=UnknownSend.FAIL,
        description="again or fail, when nobody knows whether a message arrived; by default again for verification "
        "and alert.",
    )
    intent_key_window_seconds: Seconds | None = Field(
        default=None,
        description="Time bucket of a derived intent key, not for verification; by default 3600, marketing 86400.",
    )
    opt_in: bool = Field(default=False, description="Needs the user's opting in; by default it does not.")


class CategorySection(MessageSection):
    """What holds for all scenes of a category that do not say otherwise."""


class SceneSection(MessageSection):
    """One scene: why we write."""

    category: Category = Field(
        default=Category.NOTIFICATION, description="How far the scene may disturb; by default notification."
    )
    channels: Channels | None = Field(
        default=None,
        description="Order of channels; without it the intent's wish counts, then the order of `channels`.",
        json_schema_extra=_unique,
    )
    template: Name | None = Field(
        default=None, description="Template of an intent that names none; by default the scene's name."
    )
    policy: Name = Field(default=DEFAULT_POLICY, description="Policy in force for the scene; by default `default`.")
    digest: DigestSection | None = Field(
        default=None, description="Gathers its intents into one message; by default each is one. Not for verification."
    )
    share: Share = Field(
        default=1.0,
        description="Share of users, 0 to 1, for whom it is switched on: the same every time. By default 1.",
    )


class ChannelSection(Section):
    """One channel: what its provider bears. Set rates to 80 % of what the provider allows."""

    burst: int = Field(default=100, ge=1, le=_MANY, description="Messages that may leave at once.")
    rate_per_sec: float = Field(
        default=100.0,
        gt=0,
        le=1e9,
        description="Messages per second in the long run: 80 % of what the provider allows.",
    )
    daily_quota: Limit | None = Field(default=None, description="Messages per day (UTC); null for no limit.")
    fallback: Channel | None = Field(
        default=None, description="Channel that takes its place when it is spent or broken."
    )


PolicySections = dict[Name, PolicySection]
CategorySections = dict[Category, CategorySection]
SceneSections = dict[Name, SceneSection]


class TenantSection(Section):
    """What one tenant has otherwise; at the same width its word counts before the file's."""

    model_config = ConfigDict(json_schema_extra=_inherited)

    policies: PolicySections = Field(
        default_factory=dict, description="Its policies, `default` included, each by value."
    )
    categories: CategorySections = Field(default_factory=dict, description="Its categories, each by value.")
    scenes: SceneSections = Field(default_factory=dict, description="Its scenes, each by value, and further ones.")
    strict_scenes: bool = Field(default=False, description="Whether its intents of undeclared scenes are refused.")
    default_time_zone: Annotated[str, AfterValidator(check_time_zone)] = Field(
        default="UTC", description="Zone of its users of whom none is known."
    )


class ShadowSection(Section):
    """A second file that is tried: what it decides is recorded, and not acted on."""

    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}\.ya?ml$")] = Field(
        description="Its name; it lies beside this one and has no shadow of its own."
    )
    share: Share = Field(default=1.0, description="Share of users, 0 to 1, for whom it is asked; by default all.")
    scenes: Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_no_repetition)] | None = Field(
        default=None, description="Scenes for which it is asked; by default all.", json_schema_extra=_unique
    )


class PoliciesFile(Section):
    """Who may be disturbed, when, how often, over which channel."""

    version: int = Field(
        ge=1, le=2**31 - 1, description="The operator's own number of the file, for people; the hash is exact."
    )
    policies: PolicySections = Field(
        description="Policies by name; `default` must be there.", json_schema_extra={"required": [DEFAULT_POLICY]}
    )
    channels: dict[Channel, ChannelSection] = Field(min_length=1, description="Channels, the most wanted first.")
    categories: CategorySections = Field(default_factory=dict, description="What holds for the scenes of a category.")
    scenes: SceneSections = Field(default_factory=dict, description="Scenes by name.")
    tenants: dict[TenantName, TenantSection] = Field(
        default_factory=dict, description="What single tenants have otherwise."
    )
    strict_scenes: bool = Field(default=False, description="Refuse intents of scenes that are not declared.")
    default_time_zone: Annotated[str, AfterValidator(check_time_zone)] = Field(
        default="UTC", description="Zone of users of whom none is known."
    )
    shadow: ShadowSection | None = Field(default=None, description="A second file that is tried beside this one.")


Location = tuple[str, ...]


def owners(file: PoliciesFile) -> Iterator[tuple[Location, PoliciesFile | TenantSection]]:
    """Yields the file and its tenants, each with where it stands: all that has policies, categories and scenes."""
    yield (), file
    yield from ((("tenants", name), tenant) for name, tenant in file.tenants.items())


def scenes_of(file: PoliciesFile) -> Iterator[tuple[Location, PoliciesFile | TenantSection, SceneSection]]:
    """Yields every scene that is written down: where, whose, and what stands there."""
    for at, owner in owners(file):
        yield from (((*at, "scenes", name), owner, section) for name, section in owner.scenes.items())
