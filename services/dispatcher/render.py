"""Renders a message from a template's parts, in Jinja2's sandbox; the output is capped while it grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import jinja2
from jinja2.exceptions import SecurityError

from services.catalog.rules import Channel
from services.catalog.templates import TemplateHead, part_environment

from .keys import fingerprint
from .model import Content


class RenderError(Exception):
    """A template cannot be rendered with these variables.

    Attributes:
        reason: the stable reason for the task.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def render(head: TemplateHead, channel: Channel, variables: Mapping[str, object], max_bytes: int) -> Content:
    """Renders what a channel needs.

    Raises:
        RenderError: `no_template_part`, `variable_missing`, `render_failed` or `too_large`.
    """
    if channel not in head.channels:
        raise RenderError("no_template_part", f"template {head.name} has no part for {channel.value}")
    context = head.context(variables)

    def part(name: str) -> str:
        source = head.parts.get((channel, name))
        return "" if source is None else _render(source, name, context, max_bytes)

    subject = " ".join(part("subject").split())
    body = part("json") or part("text")
    if channel is Channel.WEBHOOK and (channel, "json") in head.parts:
        body = _compact_json(body)
    elif channel is Channel.WEBHOOK:
        body = json.dumps({"text": body})
    html = part("html")
    noise = {name: variables[name] for name in head.noise if name in variables}
    return Content(subject, body, html, head.version, fingerprint((subject, body, html), noise))


@lru_cache(maxsize=1_024)
def _compiled(source: str, part: str) -> jinja2.Template:
    return part_environment(part).from_string(source)


def _render(source: str, part: str, context: Mapping[str, object], max_bytes: int) -> str:
    pieces: list[str] = []
    size = 0
    try:
        for piece in _compiled(source, part).generate(context):
            size += len(piece.encode())
            if size > max_bytes:
                raise RenderError("too_large", f"the message is larger than {max_bytes} bytes")
            pieces.append(piece)
    except jinja2.UndefinedError as error:
        raise RenderError("variable_missing", str(error)) from error
    except (jinja2.TemplateError, SecurityError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RenderError("render_failed", f"{type(error).__name__}") from error
    return "".join(pieces)


def _compact_json(text: str) -> str:
    """Checks that a webhook's body is JSON, and takes out what the template's layout put between."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except ValueError as error:
        raise RenderError("render_failed", "the template does not give valid JSON") from error
