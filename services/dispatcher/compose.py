"""Composes what is sent: the template in force, rendered for a channel, and the key under which it goes out."""

from __future__ import annotations

from collections.abc import Mapping
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
    intent_id: str,
    user_id: str,
    max_bytes: int,
) -> Composed:
    """Renders a template for a channel.

    Raises:
        RenderError: it cannot be rendered; the error says for which stable reason.
    """
    head = catalog.template(template)
    if head is None:
        raise RenderError("template_unknown", f"template {template} is not loaded")
    if channel is None:
        raise RenderError("channel_unknown", "the decision names no channel")
    content = render(head, channel, variables, max_bytes)
    return Composed(content, idempotency_key(intent_id, user_id, channel, content.template_version))
