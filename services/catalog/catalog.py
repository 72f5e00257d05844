"""One immutable snapshot of all that the operator wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from .errors import CatalogError, Problem
from .policies import Policies, load_policies
from .rules import Channel, ChannelRules, SceneRules
from .templates import TemplateHead, load_templates

POLICIES_FILE = "policies.yaml"
TEMPLATES_FOLDER = "templates"


class Catalog:
    """Scenes, policies, channels and templates of one moment. Immutable; safe to share.

    Attributes:
        policies: the resolved `policies.yaml`.
        templates: the templates by name.
        version: SHA-256 (hex) over policies and templates.
    """

    def __init__(self, policies: Policies, templates: Mapping[str, TemplateHead]) -> None:
        self.policies = policies
        self.templates = templates
        digest = hashlib.sha256(policies.version.encode())
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
    def default_time_zone(self) -> str:
        """Zone of users of whom none is known."""
        return self.policies.default_time_zone

    def scene(self, name: str) -> SceneRules:
        """Returns what holds for a scene; one that nobody declared is a notification."""
        return self.policies.scene(name)

    def accepts_scene(self, name: str) -> bool:
        """Says whether an intent may name this scene: with `strict_scenes` only those that are declared."""
        return not self.policies.strict_scenes or self.scene(name).declared

    def template(self, name: str) -> TemplateHead | None:
        """Returns a template, or None when there is none of that name."""
        return self.templates.get(name)


def load_catalog(config_dir: Path) -> Catalog:
    """Reads and checks `policies.yaml` and `templates/` below a folder.

    Raises:
        CatalogError: every fault of every file with line and reason.
    """
    problems: list[Problem] = []
    policies: Policies | None = None
    templates: Mapping[str, TemplateHead] = {}
    try:
        policies = load_policies(config_dir / POLICIES_FILE)
    except CatalogError as error:
        problems += error.problems
    try:
        templates = load_templates(config_dir / TEMPLATES_FOLDER)
    except CatalogError as error:
        problems += error.problems
    if policies is None or problems:
        raise CatalogError(problems)
    return Catalog(policies, templates)
