"""`policies.yaml` resolved: what holds for each scene of each tenant.

The narrower word counts: scene, named policy, category, policy `default`. At the same width the tenant's counts before
the file's, and the file's before what is built in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import time, timedelta
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import built_in
from .errors import CatalogError
from .faults import broken_references, contradictions
from .layers import first, first_word, layers_of
from .rules import (
    Channel,
    ChannelRules,
    Digest,
    Policy,
    QuietWindow,
    RetryRules,
    SceneRules,
    WindowCap,
)
from .sections import (
    DAYS,
    DigestSection,
    Location,
    PoliciesFile,
    RetrySection,
    RulesSection,
    TenantSection,
    WindowCapSection,
    WindowSection,
    owners,
    scenes_of,
)
from .yaml_file import Lines, parse_yaml, read_text

_NOTHING = TenantSection()
_KNOWN_SCENES = 20_000


@dataclass(frozen=True, slots=True)
class Shadow:
    """A policy that is tried: what it decides is recorded, and not acted on.

    Attributes:
        policies: what it says, resolved.
        share: of all users, the share for whom it is asked, 0 to 1; the same users every time.
        scenes: the scenes for which it is asked; None asks for all.
    """

    policies: Policies
    share: float
    scenes: frozenset[str] | None


class Policies:
    """A checked `policies.yaml` with everything resolved. Immutable.

    Attributes:
        version: SHA-256 (hex) of what the file says; comments, layout and the shadow do not count.
        revision: the operator's own number of it.
        channels: the channels in their order.
        shadow: the policy that is tried beside; None where there is none.
        lines: finds the line of a fault that only others can see.
    """

    def __init__(self, file: PoliciesFile, lines: Lines, shadow: Policies | None = None) -> None:
        self.lines = lines
        # Unset is not the same as set to the default: the one inherits, the other does not.
        said = file.model_dump_json(exclude_unset=True, exclude={"shadow"})
        self.version = hashlib.sha256(said.encode()).hexdigest()
        self.revision = file.version
        self.channels: Mapping[Channel, ChannelRules] = MappingProxyType(
            {
                channel: ChannelRules(
                    channel, section.burst, section.rate_per_sec, section.daily_quota, section.fallback
                )
                for channel, section in file.channels.items()
            }
        )
        self.shadow: Shadow | None = None
        if file.shadow is not None and shadow is not None:
            scenes = file.shadow.scenes
            self.shadow = Shadow(shadow, file.shadow.share, frozenset(scenes) if scenes is not None else None)
        self._file = file
        # By tenant (empty for all that the file does not name) and scene, each resolved when it is first asked for.
        self._known: dict[tuple[str, str], SceneRules] = {}

    def scene(self, name: str, tenant: str = "") -> SceneRules:
        """Returns what holds for a tenant's scene; one that nobody declared is a notification."""
        key = (tenant if tenant in self._file.tenants else "", name)
        rules = self._known.get(key)
        if rules is None:
            rules = self._resolve(name, tenant)
            # Anybody may name scenes that nobody declared; they must not fill the memory.
            if len(self._known) >= _KNOWN_SCENES:
                self._known.clear()
            self._known[key] = rules
        return rules

    def accepts_scene(self, name: str, tenant: str = "") -> bool:
        """Says whether a tenant's intent may name this scene: with `strict_scenes` only those that are declared."""
        own = self._tenant(tenant)
        strict = own.strict_scenes if "strict_scenes" in own.model_fields_set else self._file.strict_scenes
        return not strict or self.scene(name, tenant).declared

    def time_zone(self, tenant: str = "") -> str:
        """Returns the zone of a tenant's users of whom none is known."""
        own = self._tenant(tenant)
        return own.default_time_zone if "default_time_zone" in own.model_fields_set else self._file.default_time_zone

    @cached_property
    def longest_window(self) -> timedelta:
        """How far back the longest cap over a sliding window looks, of any scene of any tenant; zero without any.

        The caps of the policy in the shadow count as well: it judges by the same counters.
        """
        groups = [
            group for _, owner in owners(self._file) for group in (owner.policies, owner.categories, owner.scenes)
        ]
        sections: list[RulesSection] = [section for group in groups for section in group.values()]
        windows = [_window_cap(cap).window for section in sections for cap in section.user_window_caps]
        if self.shadow is not None:
            windows.append(self.shadow.policies.longest_window)
        return max(windows, default=timedelta())

    def declared(self) -> Iterator[tuple[Location, SceneRules]]:
        """Yields every scene that is written down: where, and what holds for it."""
        for at, _, _ in scenes_of(self._file):
            yield at, self.scene(at[-1], at[1] if len(at) > 2 else "")

    def _tenant(self, name: str) -> TenantSection:
        return self._file.tenants.get(name, _NOTHING)

    def _resolve(self, name: str, tenant: str) -> SceneRules:
        found = layers_of(self._file, name, tenant)
        policy = found.policy
        layers = [layer.section for layer in found.all]
        # A list that names the scene is as narrow a word as the scene's own.
        exempt_scenes = frozenset(first([*found.named, *found.defaults], "quiet_exempt_scenes", otherwise=()))
        exempt = name in exempt_scenes or first(found.categories, "quiet_exempt", otherwise=False)
        return SceneRules(
            name=name,
            category=found.category,
            declared=bool(found.scene) or name in built_in.SCENES,
            channels=first(found.scene, "channels", otherwise=None),
            policy=Policy(
                name=policy,
                quiet_hours=_windows(_setting(layers, "quiet_hours")),
                quiet_exempt_scenes=exempt_scenes,
                user_daily_cap=_setting(layers, "user_daily_cap"),
                user_channel_daily_cap=_channel_caps(layers),
                user_window_caps=tuple(_window_cap(cap) for cap in _setting(layers, "user_window_caps")),
                tenant_daily_quota=first(found.defaults, "tenant_daily_quota", otherwise=None),
                retry=_retry(layers),
                task_ttl=timedelta(seconds=_setting(layers, "task_ttl_seconds")),
            ),
            template=first(found.scene, "template", otherwise=None) or name,
            quiet_exempt=first(found.scene, "quiet_exempt", otherwise=exempt),
            unknown_send=_setting(layers, "unknown_send"),
            intent_key_window=_span(_setting(layers, "intent_key_window_seconds")),
            dedupe_window=_span(_setting(layers, "dedupe_window_seconds")),
            digest=_digest(first(found.scene, "digest", otherwise=None)),
            share=first(found.scene, "share", otherwise=1.0),
            opt_in=_setting(layers, "opt_in"),
        )


def load_policies(file: Path) -> Policies:
    """Reads and checks a `policies.yaml`, and the one in its shadow.

    Raises:
        CatalogError: every fault of both files with line and reason.
    """
    return parse_policies(read_text(file), file)


def parse_policies(text: str, file: Path, *, in_shadow: bool = False, alone: bool = False) -> Policies:
    """Checks what stands in a `policies.yaml`.

    Args:
        text: its content.
        file: its name, for the problems; a file in its shadow lies beside it.
        in_shadow: it is in the shadow of another file, and so may have none itself.
        alone: what is in its shadow is not looked at, nor any other file.

    Raises:
        CatalogError: every fault with line and reason.
    """
    model, lines = parse_yaml(text, file, PoliciesFile)
    problems = broken_references(model, lines)
    if model.shadow is not None and in_shadow:
        problems.append(lines.problem(("shadow",), "a file that is in the shadow of another has none itself"))
    if problems:
        raise CatalogError(problems)
    shadow: Policies | None = None
    if model.shadow is not None and not alone:
        other = file.parent / model.shadow.file
        if other.name == file.name:
            raise CatalogError([lines.problem(("shadow", "file"), "is this file itself")])
        try:
            its_text = read_text(other)
        except CatalogError as error:
            problems += [lines.problem(("shadow", "file"), f"{other.name} {each.reason}") for each in error.problems]
        else:
            try:
                shadow = parse_policies(its_text, other, in_shadow=True)
            except CatalogError as error:
                problems += error.problems
    policies = Policies(model, lines, shadow)
    problems += contradictions(model, policies.scene, lines)
    if problems:
        raise CatalogError(problems)
    return policies


def _setting(layers: Sequence[RulesSection], name: str) -> Any:
    return first_word(layers, name, otherwise=getattr(built_in.RULES, name))


def _retry(layers: Sequence[RulesSection]) -> RetryRules:
    said: list[RetrySection] = [layer.retry for layer in layers if "retry" in layer.model_fields_set]
    nothing = RetrySection()
    return RetryRules(
        **{name: first_word(said, name, otherwise=getattr(nothing, name)) for name in RetrySection.model_fields}
    )


def _channel_caps(layers: Sequence[RulesSection]) -> Mapping[Channel, int]:
    caps: dict[Channel, int | None] = {}
    for layer in reversed(layers):
        if "user_channel_daily_cap" in layer.model_fields_set:
            caps.update(layer.user_channel_daily_cap)
    return MappingProxyType({channel: cap for channel, cap in caps.items() if cap is not None})


def _windows(quiet_hours: tuple[str | WindowSection, ...] | None) -> tuple[QuietWindow, ...]:
    match quiet_hours:
        case None:
            return ()
        case (str(start), str(end)):
            return (QuietWindow(_time(start), _time(end)),)
        case _:
            return tuple(_window(section) for section in quiet_hours if isinstance(section, WindowSection))


def _window(section: WindowSection) -> QuietWindow:
    days = frozenset(DAYS.index(day) for day in section.days)
    return QuietWindow(_time(section.start), _time(section.end), days)


def _time(text: str) -> time:
    """Reads a time of the file; the midnight at the end of a day is written `24:00`."""
    return time(0) if text == "24:00" else time.fromisoformat(text)


def _window_cap(section: WindowCapSection) -> WindowCap:
    return WindowCap(section.messages, timedelta(days=section.days, seconds=section.seconds))


def _digest(section: DigestSection | None) -> Digest | None:
    return None if section is None else Digest(timedelta(seconds=section.window_seconds), section.max_items)


def _span(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
