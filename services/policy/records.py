"""What the tenants store (profiles, activities, preferences, suppressions), and messages that are looked at; all checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from services.catalog.rules import Category, Channel

from .decision import Address, SuppressionSource, UserKey


@dataclass(frozen=True, slots=True)
class Profile:
    """A user as their tenant describes them; locale and time zone are empty where unknown."""

    user_id: str
    addresses: Mapping[Channel, str]
    locale: str
    time_zone: str


@dataclass(frozen=True, slots=True)
class Activity:
    """Where and when a user was seen."""

    user_id: str
    time_zone: str
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Choice:
    """A user's choice that is to be stored.

    Attributes:
        user_id: the user.
        category: the only category it holds for; None for all.
        channel: the only channel it holds for; None for all.
        opt_in: whether the user wants to hear; None takes the choice back.
    """

    user_id: str
    category: Category | None
    channel: Channel | None
    opt_in: bool | None


@dataclass(frozen=True, slots=True)
class StoredChoice:
    """A choice as it stands, with who stored it when."""

    choice: Choice
    updated_by: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish for silence that is to be stored; see `decision.Suppression` for what it covers."""

    source: SuppressionSource
    user_id: str = ""
    address: Address | None = None
    channel: Channel | None = None
    category: Category | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class StoredSuppression:
    """A wish with its id, who stored it when, and who lifted it when; nobody did while it stands."""

    suppression_id: str
    wish: Wish
    created_by: str
    created_at: datetime
    lifted_by: str = ""
    lifted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SuppressionPage:
    """Which suppressions are to be listed; every filter that is set must hold.

    Attributes:
        user_id: keeps those of this user; empty keeps all.
        address: keeps those of this address; None keeps all.
        source: keeps those from there; None keeps all.
        include_lifted: whether lifted ones are listed too.
        before: keeps those stored before this one; None begins with the newest.
    """

    user_id: str = ""
    address: Address | None = None
    source: SuppressionSource | None = None
    include_lifted: bool = False
    before: UUID | None = None


@dataclass(frozen=True, slots=True)
class Departure:
    """One message that is about to leave.

    Attributes:
        user: whom it is for; the user may be empty.
        address: where it goes; None where that is not told.
        category: the category of its scene.
        scene: the scene; empty where that is not told.
    """

    user: UserKey
    address: Address | None
    category: Category
    scene: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One message that somebody thinks of.

    Attributes:
        user_id: whom it would be for; may be empty.
        address: where it would go; None for wherever the user has an address.
        channel: how it would leave; None for any way.
        category: the category of its scene.
    """

    user_id: str
    address: Address | None
    channel: Channel | None
    category: Category
