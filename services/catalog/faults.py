"""What is wrong between parts of `policies.yaml` that are right by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from . import built_in
from .errors import Problem
from .rules import Category, SceneRules
from .sections import (
    DEFAULT_POLICY,
    CategorySection,
    Location,
    MessageSection,
    PoliciesFile,
    PolicySection,
    owners,
    scenes_of,
)
from .yaml_file import Lines

_NO_KEY = "a verification must give its intent_key; none is derived"


def broken_references(file: PoliciesFile, lines: Lines) -> list[Problem]:
    """Finds names of what is not there, and settings that stand where they mean nothing."""
    problems: list[Problem] = []

    def fault(at: Sequence[str], reason: str) -> None:
        problems.append(lines.problem(at, reason))

    if DEFAULT_POLICY not in file.policies:
        fault(("policies",), "has no policy named default")
    for channel, rules in file.channels.items():
        if rules.fallback is channel:
            fault(("channels", channel.value, "fallback"), "is the channel itself")
        elif rules.fallback is not None and rules.fallback not in file.channels:
            fault(("channels", channel.value, "fallback"), f"{rules.fallback.value} is not among the channels")
    for at, policy in _policies(file):
        if at[-1] != DEFAULT_POLICY and "tenant_daily_quota" in policy.model_fields_set:
            fault((*at, "tenant_daily_quota"), "is a limit of the whole tenant; it belongs to policy default")
    for at, tenant, scene in scenes_of(file):
        if scene.policy not in file.policies and scene.policy not in tenant.policies:
            fault((*at, "policy"), f"there is no policy named {scene.policy}")
        for channel in scene.channels or ():
            if channel not in file.channels:
                fault((*at, "channels"), f"{channel.value} is not among the channels")
    return problems


def contradictions(file: PoliciesFile, scenes: Iterable[tuple[Location, SceneRules]], lines: Lines) -> list[Problem]:
    """Finds settings that contradict what is inherited.

    Args:
        file: whose names all exist.
        scenes: what holds for each scene that it declares, in its order.
        lines: of the file.
    """
    problems: list[Problem] = []
    for at, category, section in _categories(file):
        layers = (section, file.categories.get(category, section), built_in.CATEGORIES[category])
        exempt = next((layer.quiet_exempt for layer in layers if "quiet_exempt" in layer.model_fields_set), False)
        problems += _of_messages(section, lines, at, category=category, exempt=exempt)
    for (at, _, scene), (_, rules) in zip(scenes_of(file), scenes, strict=True):
        problems += _of_messages(scene, lines, at, category=rules.category, exempt=rules.quiet_exempt)
        if rules.digest is None or scene.digest is None:
            continue
        if rules.category is Category.VERIFICATION:
            problems.append(lines.problem((*at, "digest"), "a verification is not gathered"))
        elif rules.digest.window >= rules.policy.task_ttl:
            life = rules.policy.task_ttl // timedelta(seconds=1)
            reason = f"is not shorter than the life of what is gathered, {life} s (task_ttl_seconds)"
            problems.append(lines.problem((*at, "digest", "window_seconds"), reason))
    return problems


def _of_messages(
    section: MessageSection, lines: Lines, at: Location, *, category: Category, exempt: bool
) -> Iterator[Problem]:
    said = section.model_fields_set
    if category is Category.VERIFICATION and section.intent_key_window_seconds is not None:
        yield lines.problem((*at, "intent_key_window_seconds"), _NO_KEY)
    if exempt and "quiet_hours" in said and section.quiet_hours is not None:
        yield lines.problem((*at, "quiet_hours"), "has no effect on what is exempt; add quiet_exempt: false")


def _policies(file: PoliciesFile) -> Iterator[tuple[Location, PolicySection]]:
    for at, owner in owners(file):
        yield from (((*at, "policies", name), section) for name, section in owner.policies.items())


def _categories(file: PoliciesFile) -> Iterator[tuple[Location, Category, CategorySection]]:
    for at, owner in owners(file):
        yield from (((*at, "categories", name.value), name, section) for name, section in owner.categories.items())
