"""What is wrong between parts of `policies.yaml` that are right by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from . import built_in
from .errors import Problem
from .layers import layers_of
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

# What holds for a scene of a tenant.
RulesOf = Callable[[str, str], SceneRules]

_NO_KEY = "a verification must give its intent_key; none is derived"


def broken_references(file: PoliciesFile, lines: Lines) -> list[Problem]:
    """Finds names of what is not there, and settings that stand where they mean nothing."""
    problems: list[Problem] = []

    def fault(at: Sequence[int | str], reason: str) -> None:
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
        for index, name in enumerate(policy.quiet_exempt_scenes):
            if not _is_declared(file, name, _tenant_of(at)):
                fault((*at, "quiet_exempt_scenes", index), f"there is no scene named {name}; declare it in scenes")
    for at, tenant, scene in scenes_of(file):
        if scene.policy not in file.policies and scene.policy not in tenant.policies:
            fault((*at, "policy"), f"there is no policy named {scene.policy}")
        for channel in scene.channels or ():
            if channel not in file.channels:
                fault((*at, "channels"), f"{channel.value} is not among the channels")
    return problems


def contradictions(file: PoliciesFile, rules_of: RulesOf, lines: Lines) -> list[Problem]:
    """Finds settings that contradict what is inherited, or what a tenant has otherwise.

    Args:
        file: whose names all exist.
        rules_of: what holds for a scene of a tenant.
        lines: of the file.
    """
    problems: list[Problem] = []
    for at, category, section in _categories(file):
        layers = (section, file.categories.get(category, section), built_in.CATEGORIES[category])
        exempt = next((layer.quiet_exempt for layer in layers if "quiet_exempt" in layer.model_fields_set), False)
        problems += _without_effect(section, lines, at, exempt=exempt)
        if category is Category.VERIFICATION and section.intent_key_window_seconds is not None:
            problems.append(lines.problem((*at, "intent_key_window_seconds"), _NO_KEY))
    for at, _, scene in scenes_of(file):
        problems += _without_effect(scene, lines, at, exempt=rules_of(at[-1], _tenant_of(at)).quiet_exempt)
    general: set[tuple[str, str]] = set()
    for name, tenant in _delicate(file):
        for at, reason in _of_scene(file, rules_of(name, tenant), tenant):
            if not tenant:
                general.add((name, reason))
            elif (name, reason) in general:
                continue  # told already, and not for each tenant again
            problems.append(lines.problem(at, reason))
    return problems


def _delicate(file: PoliciesFile) -> Iterator[tuple[str, str]]:
    """Yields the scenes that may come to contradict themselves, and whose: the file's own first, under no tenant."""
    for tenant in ("", *file.tenants):
        own = file.tenants[tenant].scenes if tenant else {}
        for name in {**file.scenes, **own}:
            said = [scenes[name] for scenes in (own, file.scenes) if name in scenes]
            if any(section.digest or section.intent_key_window_seconds is not None for section in said):
                yield name, tenant


def _of_scene(file: PoliciesFile, rules: SceneRules, tenant: str) -> Iterator[tuple[Location, str]]:
    """Yields what is wrong with a scene as it is for a tenant: where somebody said so, and why."""

    def place(*settings: str) -> Location:
        """Returns where the word about one of these settings stands: the tenant's, which made it wrong, before others."""
        layers = layers_of(file, rules.name, tenant)
        places = [found for found in map(layers.place_of, settings) if found]
        return next((found for found in places if _tenant_of(found)), places[0])

    whose = f"scene {rules.name}"
    if rules.category is Category.VERIFICATION:
        if rules.intent_key_window is not None:
            yield place("intent_key_window_seconds", "category"), _NO_KEY
        if rules.digest is not None:
            yield place("digest", "category"), f"a verification is not gathered ({whose})"
    elif rules.digest is not None and rules.digest.window >= rules.policy.task_ttl:
        window, life = (span // timedelta(seconds=1) for span in (rules.digest.window, rules.policy.task_ttl))
        reason = f"{whose} gathers for {window} s, which is not shorter than the life of what is gathered, {life} s"
        yield place("digest", "task_ttl_seconds", "policy", "category"), f"{reason} (task_ttl_seconds)"


def _without_effect(section: MessageSection, lines: Lines, at: Location, *, exempt: bool) -> Iterator[Problem]:
    if exempt and "quiet_hours" in section.model_fields_set and section.quiet_hours is not None:
        yield lines.problem((*at, "quiet_hours"), "has no effect on what is exempt; add quiet_exempt: false")


def _is_declared(file: PoliciesFile, scene: str, tenant: str) -> bool:
    """Says whether a scene is known to a tenant; of the file itself, to any."""
    tenants = [file.tenants[tenant]] if tenant else file.tenants.values()
    return scene in built_in.SCENES or any(scene in owner.scenes for owner in (file, *tenants))


def _tenant_of(at: Location) -> str:
    return at[1] if at[:1] == ("tenants",) else ""


def _policies(file: PoliciesFile) -> Iterator[tuple[Location, PolicySection]]:
    for at, owner in owners(file):
        yield from (((*at, "policies", name), section) for name, section in owner.policies.items())


def _categories(file: PoliciesFile) -> Iterator[tuple[Location, Category, CategorySection]]:
    for at, owner in owners(file):
        yield from (((*at, "categories", name.value), name, section) for name, section in owner.categories.items())
