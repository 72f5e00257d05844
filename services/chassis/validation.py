"""Checks of text that comes from outside; each returns what is wrong, for a `Violation`."""

from __future__ import annotations

from .errors import Violation


def check_text(field: str, value: str, *, max_length: int, required: bool = False) -> list[Violation]:
    """Checks that a text is storable (no NUL, no lone surrogate), not too long, and there if it must be."""
    if not value:
        return [Violation(field, "is required")] if required else []
    if len(value) > max_length:
        return [Violation(field, f"has {len(value)} characters, at most {max_length} are allowed")]
    return check_storable(field, value)


def check_storable(field: str, value: str) -> list[Violation]:
    """Checks that PostgreSQL can store a text: a NUL character or half a surrogate pair would spoil its batch."""
    if "\x00" in value:
        return [Violation(field, "contains a NUL character; remove it")]
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return [Violation(field, f"contains a lone surrogate at character {error.start}; it is not valid Unicode")]
    return []
