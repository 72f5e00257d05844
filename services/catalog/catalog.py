"""One immutable snapshot of all that the operator wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import CatalogError, Problem
from .policies import Policies, Shadow, load_policies
from .rules import Channel, ChannelRules, SceneRules
from .templates import TemplateHead, load_templates

POLICIES_FILE = "policies.yaml"
TEMPLATES_FOLDER = "templates"


class Catalog:
    """Scenes, policies, channels and templates of one moment. Immutable; safe to share.

    Attributes:
        policies: the resolved `policies.yaml`.
        templates: the templates by name.
        version: SHA-256 (hex) over policies, their shadow and templates.
    """

    def __init__(self, policies: Policies, templates: Mapping[str, TemplateHead]) -> None:
        self.policies = policies
        self.templates = templates
        digest = hashlib.sha256(policies.version.encode())
        if (shadow := policies.shadow) is not None:
            scenes = sorted(shadow.scenes) if shadow.scenes is not None else None
            digest.update(f"\n{shadow.policies.version} {shadow.share} {scenes}".encode())
        for name, head in sorted(templates.items()):
            digest.update(f"\n{name} {head.version}".encode())
        self.version = digest.hexdigest()

    @property
    def policy_version(self) -> str:
        """SHA-256 (hex) of what `policies.yaml` says; decisions carry it."""
        return self.policies.version

    @property
    def channels(self) -> Mapping[Channel, ChannelRules]:
        """The channels, the most wanted first."""
        return self.policies.channels

    @property
    def shadow(self) -> Shadow | None:
        """The policy that is tried beside this one; None where there is none."""
        return self.policies.shadow

    def time_zone(self, tenant: str = "") -> str:
        """Returns the zone of a tenant's users of whom none is known."""
        return self.policies.time_zone(tenant)

    def scene(self, name: str, tenant: str = "") -> SceneRules:
        """Returns what holds for a tenant's scene; one that nobody declared is a notification."""
        return self.policies.scene(name, tenant)

    def accepts_scene(self, name: str, tenant: str = "") -> bool:
        """Says whether an intent may name this scene: with `strict_scenes` only those that are declared."""
        return self.policies.accepts_scene(name, tenant)

    def template(self, name: str) -> TemplateHead | None:
        """Returns a template, or None when there is none of that name."""
        return self.templates.get(name)


def load_catalog(config_dir: Path, policies_file: str = POLICIES_FILE) -> Catalog:
    """Reads and checks `policies.yaml`, the file in its shadow, and `templates/`, below a folder.

    Args:
        config_dir: the folder.
        policies_file: another name of `policies.yaml`, to check it before it takes that place.

    Raises:
        CatalogError: every fault of every file with line and reason.
    """
    problems: list[Problem] = []
    policies: Policies | None = None
    templates: Mapping[str, TemplateHead] = {}
    folder = config_dir / TEMPLATES_FOLDER
    try:
        policies = load_policies(config_dir / policies_file)
    except CatalogError as error:
        problems += error.problems
    try:
        templates = load_templates(folder)
    except CatalogError as error:
        problems += error.problems
    if policies is None or problems:
        raise CatalogError(problems)
    if folder.is_dir() and (problems := list(_unsendable(policies, templates))):
        raise CatalogError(problems)
    return Catalog(policies, templates)


def _unsendable(policies: Policies, templates: Mapping[str, TemplateHead]) -> Iterator[Problem]:
    """Finds scenes whose template is not there, or serves none of the scene's channels."""
    for at, scene in policies.declared():
        head = templates.get(scene.template)
        if head is None and scene.template != scene.name:
            yield policies.lines.problem((*at, "template"), f"there is no template named {scene.template}")
        elif head is not None and scene.channels is not None and head.channels.isdisjoint(scene.channels):
            served = ", ".join(sorted(head.channels))
            reason = f"template {head.name} serves none of them; it serves {served}"
            yield policies.lines.problem((*at, "channels"), reason)
    if policies.shadow is not None:
        yield from _unsendable(policies.shadow.policies, templates)
