"""Composes what is sent: the template in force, rendered for a channel, and the key under which it goes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.catalog.catalog import Catalog
from services.catalog.rules import Channel

from .keys import idempotency_key
from .model import Content
from .render import RenderError, render


@dataclass(frozen=True, slots=True)
class Composed:
    """A rendered message and its idempotency key."""

    content: Content
    key: str


def compose(
    catalog: Catalog,
    template: str,
    channel: Channel | None,
    variables: Mapping[str, object],
    *,
    parts: Sequence[Mapping[str, object]] | None = None,
    intent_id: str,
    user_id: str,
    max_bytes: int,
) -> Composed:
    """Renders a template for a channel.

    Args:
        catalog: what is in force.
        template: its name.
        channel: as the policy decided.
        variables: the message's own.
        parts: of a digest, the variables of each of its parts, at least one. The template gets them as ``items``, their
            number as ``count``, and those of the first by their own names.
        intent_id: goes into the key.
        user_id: likewise.
        max_bytes: size of the message, at most.

    Raises:
        RenderError: it cannot be rendered; the error says for which stable reason.
    """
    head = catalog.template(template)
    if head is None:
        raise RenderError("template_unknown", f"template {template} is not loaded")
    if channel is None:
        raise RenderError("channel_unknown", "the decision names no channel")
    if parts:
        variables = {**parts[0], "items": list(parts), "count": len(parts)}
    content = render(head, channel, variables, max_bytes, parts or ())
    return Composed(content, idempotency_key(intent_id, user_id, channel, content.template_version))
