"""Keys by which a message is known again: towards providers, and by its content."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from services.chassis.hashing import hash_parts

_WHITE_SPACE = re.compile(r"\s+")


def idempotency_key(intent_id: str, user_id: str, channel: str, template_version: str) -> str:
    """Returns the key that a provider gets with every send of one task (SHA-256, 64 hex digits)."""
    return hash_parts(intent_id, user_id, channel, template_version).hex()


def fingerprint(texts: Iterable[str], noise: Mapping[str, object]) -> bytes:
    """Returns the SHA-256 of a rendered message, white space folded and the values of noise variables masked."""
    values = sorted({str(value) for value in noise.values() if str(value)}, key=len, reverse=True)
    folded = []
    for text in texts:
        for value in values:
            text = text.replace(value, "\N{SYMBOL FOR SUBSTITUTE}")  # noqa: PLW2901 - each value masks what is left
        folded.append(_WHITE_SPACE.sub(" ", text).strip())
    return hash_parts(*folded)
