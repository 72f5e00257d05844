"""Renders a message from a template's parts, in Jinja2's sandbox; the output is capped while it grows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

import jinja2

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


def render(
    head: TemplateHead,
    channel: Channel,
    variables: Mapping[str, object],
    max_bytes: int,
    parts: Sequence[Mapping[str, object]] = (),
) -> Content:
    """Renders what a channel needs.

    Args:
        head: the template.
        channel: where it goes.
        variables: what its parts print.
        max_bytes: size of all parts together, at most.
        parts: of a digest, the variables of each of its parts; their noise makes no other message either.

    Raises:
        RenderError: `no_template_part`, `variable_missing`, `render_failed` or `too_large`.
    """
    if channel not in head.channels:
        raise RenderError("no_template_part", f"template {head.name} has no part for {channel.value}")
    # Asked ahead: a filter may fail on what is not there in its own words.
    if missing := head.missing(variables):
        raise RenderError("variable_missing", f"template {head.name} needs {', '.join(missing)}")
    context = head.context(variables)
    left = max_bytes

    def part(name: str) -> str:
        nonlocal left
        source = head.parts.get((channel, name))
        if source is None:
            return ""
        text = _render(source, name, context, left, max_bytes)
        left -= len(text.encode())
        return text

    subject = " ".join(part("subject").split())
    body = part("json") or part("text")
    if channel is Channel.WEBHOOK and (channel, "json") in head.parts:
        body = _compact_json(body)
    elif channel is Channel.WEBHOOK:
        body = json.dumps({"text": body}, ensure_ascii=False)
    html = part("html")
    declared = {name: variables[name] for name in head.required | head.optional if name in variables}
    noise = {name: value for name, value in declared.items() if name in head.noise}
    distinct = {name: value for name, value in declared.items() if name not in head.noise}
    if parts:
        noise |= {
            f"{number}.{name}": part[name] for number, part in enumerate(parts) for name in head.noise & part.keys()
        }
        distinct["items"] = [{name: part[name] for name in part.keys() - head.noise} for part in parts]
    return Content(subject, body, html, head.version, fingerprint((subject, body, html), noise, distinct))


@lru_cache(maxsize=1_024)
def _compiled(source: str, part: str) -> jinja2.Template:
    return part_environment(part).from_string(source)


def _render(source: str, part: str, context: Mapping[str, object], left: int, max_bytes: int) -> str:
    pieces: list[str] = []
    try:
        for piece in _compiled(source, part).generate(context):
            left -= len(piece.encode())
            if left < 0:
                break
            pieces.append(piece)
    except jinja2.UndefinedError as error:
        raise RenderError("variable_missing", str(error)) from error
    except Exception as error:
        # A template may raise anything, and must not take the batch along in which it came.
        raise RenderError("render_failed", type(error).__name__) from error
    if left < 0:
        raise RenderError("too_large", f"the message is larger than {max_bytes} bytes")
    text = "".join(pieces)
    if "\x00" in text:
        raise RenderError("render_failed", "the message holds a NUL character, which nothing can store")
    return text


def _compact_json(text: str) -> str:
    """Checks that a webhook's body is JSON, and takes out what the template's layout put between."""
    try:
        return json.dumps(json.loads(text, parse_constant=_no_json), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise RenderError("render_failed", "the template does not give valid JSON") from error


def _no_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
