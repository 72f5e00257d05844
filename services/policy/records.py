"""What the tenants store (profiles, activities, suppressions) and what is about to leave; in normal form, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

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
    """A wish as it stands, with its id, and who stored it when."""

    suppression_id: str
    wish: Wish
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Departure:
    """One message that is about to leave.

    Attributes:
        user: whom it is for; the user may be empty.
        address: where it goes; None where that is not told.
        category: the category of its scene.
    """

    user: UserKey
    address: Address | None
    category: Category
