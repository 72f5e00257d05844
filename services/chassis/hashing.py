"""Hashing of several texts at once, without one running into the next."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def length_prefixed(parts: Iterable[str]) -> bytes:
    """Joins texts so that no two different lists give the same bytes: ("ab", "c") is not ("a", "bc")."""
    joined = bytearray()
    for part in parts:
        encoded = part.encode()
        joined += len(encoded).to_bytes(8, "big") + encoded
    return bytes(joined)


def hash_parts(*parts: str) -> bytes:
    """Returns the SHA-256 (32 bytes) of a list of texts."""
    return hashlib.sha256(length_prefixed(parts)).digest()
