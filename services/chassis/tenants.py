"""What a tenant may be called: one rule for the file of API keys, the configuration and all that services exchange."""

from __future__ import annotations

import re

from .errors import Violation

TENANT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_NAME = re.compile(TENANT_PATTERN)


def check_tenant(field: str, value: str) -> list[Violation]:
    """Checks that a text is the name of a tenant."""
    if _NAME.fullmatch(value):
        return []
    return [
        Violation(field, "is no tenant's name: 1 to 64 letters, digits, dots, dashes and underscores, no sign first")
        if value
        else Violation(field, "is required")
    ]
