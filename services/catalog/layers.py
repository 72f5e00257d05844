"""Who has a word about a scene: the narrower one counts, and at the same width the tenant's before the file's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import built_in
from .rules import Category
from .sections import DEFAULT_POLICY, Location, PoliciesFile, RulesSection, Section, TenantSection


class Layer(NamedTuple):
    """A section that may say something, and where it stands; nowhere for what is built in."""

    at: Location
    section: RulesSection


@dataclass(frozen=True, slots=True)
class Layers:
    """All sections that have a word about one scene of one tenant, the narrowest first.

    Attributes:
        category: the scene's category.
        policy: the policy that it names.
        scene: what stands about the scene itself.
        named: the policy that it names, unless that is `default`.
        categories: what stands about its category, and what is built in.
        defaults: the policies `default`.
    """

    category: Category
    policy: str
    scene: Sequence[Layer]
    named: Sequence[Layer]
    categories: Sequence[Layer]
    defaults: Sequence[Layer]

    @property
    def all(self) -> list[Layer]:
        """Returns all of them, and what is built in behind the last."""
        return [*self.scene, *self.named, *self.categories, *self.defaults, Layer((), built_in.RULES)]

    def place_of(self, setting: str) -> Location:
        """Returns where the word stands that counts about a setting; nowhere for what is built in."""
        return next(((*at, setting) for at, section in self.all if at and setting in section.model_fields_set), ())


def layers_of(file: PoliciesFile, name: str, tenant: str) -> Layers:
    """Returns who has a word about a scene of a tenant; of the file itself for a tenant that it does not name."""
    owners: list[tuple[Location, TenantSection | PoliciesFile]] = [((), file)]
    if tenant in file.tenants:
        owners.insert(0, (("tenants", tenant), file.tenants[tenant]))

    def of(group: str, key: str) -> Iterator[Layer]:
        for at, owner in owners:
            section: RulesSection | None = getattr(owner, group).get(key)
            if section is not None:
                yield Layer((*at, group, key), section)

    scene = tuple(of("scenes", name))
    category: Category = first(scene, "category", otherwise=built_in.SCENES.get(name, Category.NOTIFICATION))
    policy: str = first(scene, "policy", otherwise=DEFAULT_POLICY)
    return Layers(
        category,
        policy,
        scene,
        named=() if policy == DEFAULT_POLICY else tuple(of("policies", policy)),
        categories=(*of("categories", category), Layer((), built_in.CATEGORIES[category])),
        defaults=tuple(of("policies", DEFAULT_POLICY)),
    )


def first(layers: Sequence[Layer], name: str, *, otherwise: Any) -> Any:
    """Returns the first word that a layer says about a setting."""
    return first_word([layer.section for layer in layers], name, otherwise=otherwise)


def first_word(sections: Sequence[Section], name: str, *, otherwise: Any) -> Any:
    """Returns the first word that a section says about a setting."""
    return next((getattr(section, name) for section in sections if name in section.model_fields_set), otherwise)
