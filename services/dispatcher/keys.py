"""Keys by which a message is known again: towards providers, and by its content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from markupsafe import escape

from services.chassis.hashing import hash_parts

_WHITE_SPACE = re.compile(r"\s+")
_MASK = "\N{SYMBOL FOR SUBSTITUTE}"


def idempotency_key(intent_id: str, user_id: str, channel: str, template_version: str) -> str:
    """Returns the key that a provider gets with every send of one task (SHA-256, 64 hex digits)."""
    return hash_parts(intent_id, user_id, channel, template_version).hex()


def fingerprint(texts: Iterable[str], noise: Mapping[str, object], distinct: Mapping[str, object]) -> bytes:
    """Returns the SHA-256 of a rendered message, white space folded and the values of noise variables masked.

    Args:
        texts: the rendered parts.
        noise: variables whose values do not make a message another one.
        distinct: the other variables. Where something is masked they are hashed beside the texts: order 7 at 7 o'clock
            and order 8 at 8 o'clock look alike once the hours are masked.
    """
    folded = [_fold(_masked(text, noise)) for text in texts]
    if noise:
        folded += [f"{name}={_fold(json.dumps(value, sort_keys=True))}" for name, value in sorted(distinct.items())]
    return hash_parts(*folded)


def _masked(text: str, noise: Mapping[str, object]) -> str:
    """Masks values as a part may have printed them: plain, escaped for HTML, escaped for JSON."""
    forms = {form for value in noise.values() for form in (str(value), str(escape(value)), _json(value)) if form}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, _MASK)
    return text


def _json(value: object) -> str:
    text = json.dumps(value)
    return text[1:-1] if isinstance(value, str) else text


def _fold(text: str) -> str:
    return _WHITE_SPACE.sub(" ", text).strip()
