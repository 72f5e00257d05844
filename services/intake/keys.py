"""Keys by which an intent is known again: the agent's own, or one derived from the content."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from services.chassis.hashing import hash_parts


@dataclass(frozen=True, slots=True)
class IntentKey:
    """A key's hash; of a derived one also that of the time bucket before."""

    hash: bytes
    earlier: bytes | None = None
    window_seconds: float = 0.0


def given_key(intent_key: str) -> IntentKey:
    """Returns the key that the agent chose: strict, for as long as intents are kept."""
    return IntentKey(hash_parts("given", intent_key))


def derived_key(
    now: datetime, window: timedelta, *, user_id: str, scene: str, template_version: str, content_hash: bytes
) -> IntentKey:
    """Returns the key of an intent without one: its content in a bucket of time.

    With the bucket before, the same content is known again for a whole window after it first came, wherever the
    buckets' border lies.
    """
    seconds = window.total_seconds()
    bucket = int(now.timestamp() // seconds)

    def of(number: int) -> bytes:
        return hash_parts("derived", user_id, scene, template_version, content_hash.hex(), str(seconds), str(number))

    return IntentKey(of(bucket), of(bucket - 1), seconds)


def content_hash(
    *,
    user_id: str,
    address: str,
    scene: str,
    template: str,
    canonical_variables: str,
    channels: tuple[str, ...],
    send_time: tuple[str, ...] = (),
) -> bytes:
    """Returns the hash of what a person would get, and when. Priority and expiry are no content: the first stand.

    Args:
        send_time: empty where the intent names none; no channel looks like its first text.
    """
    return hash_parts(user_id, address, scene, template, canonical_variables, *channels, *send_time)
