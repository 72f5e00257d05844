"""How each provider writes its posts. A new provider is a new module here and a line in `format_of`."""

from __future__ import annotations

from typing import Protocol

from services.receipts.facts import Read

from . import generic


class PostFormat(Protocol):
    """Reads the posts of one provider."""

    def __call__(self, body: bytes) -> list[Read]:
        """Returns for every item of a post, in order, the fact or what is wrong with it.

        Raises:
            InvalidFieldsError: the body cannot be read at all.
        """
        ...


def format_of(provider: str) -> PostFormat:
    """Returns how a provider writes; one without a module of its own writes the generic format."""
    formats: dict[str, PostFormat] = {}
    return formats.get(provider, generic.read_post)
