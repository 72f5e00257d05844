"""What holds before anybody has written anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .rules import Category, UnknownSend
from .sections import CategorySection, RetrySection, SceneSection

# Scenes that exist without being declared: each category under its own name, and the best known one.
SCENES: Mapping[str, Category] = MappingProxyType(
    {**{category.value: category for category in Category}, "verify_code": Category.VERIFICATION}
)

# What a category has otherwise than the default policy, unless the file or the tenant says something about it.
CATEGORIES: Mapping[Category, CategorySection] = MappingProxyType(
    {
        Category.VERIFICATION: CategorySection(
            quiet_exempt=True, unknown_send=UnknownSend.AGAIN, dedupe_window_seconds=None
        ),
        Category.ALERT: CategorySection(
            quiet_exempt=True, unknown_send=UnknownSend.AGAIN, intent_key_window_seconds=3_600
        ),
        Category.NOTIFICATION: CategorySection(intent_key_window_seconds=3_600),
        Category.MARKETING: CategorySection(retry=RetrySection(max_attempts=8), intent_key_window_seconds=86_400),
    }
)

# The last word about every setting, where nobody said any.
RULES = SceneSection()
