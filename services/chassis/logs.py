"""Structured logs: JSON when nobody is watching, readable on a terminal, and redacted in both."""

from __future__ import annotations

import logging
import re
import sys
from typing import Literal

import structlog
from opentelemetry import trace
from structlog.typing import EventDict, Processor, WrappedLogger

REDACTED = "[redacted]"
# Names of values that are never written, whatever they hold.
_SECRET_KEYS = re.compile(
    r"(?i)(^|[_-])(password|passwd|secret|token|api_key|key|authorization|cookie|dsn|address|addresses|email|phone|body|"
    r"subject_line|variables|variables_json|code_text|stdin|payload)$"
)
# Texts that give a person or a secret away inside other texts, such as the messages of exceptions. In this order:
# a connection string holds an @, and a URL's path or query may hold anything (a webhook's is its secret).
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<=://)\S+(?=@)"), REDACTED),
    (re.compile(r"(?i)(\bhttps?://[^/?#\s\"'<>]+)[/?#][^\s\"'<>]+"), rf"\1/{REDACTED}"),
    (
        re.compile(
            r"(?i)((?:password|passwd|passfile|pwd|secret|token|(?:api|service)[_-]?key)[\"']?\s*[=:]\s*)"
            r"(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;]+)"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), REDACTED),
    (re.compile(r"(?<![A-Za-z0-9])(?:reach_[\w\-]{20,}|(?:whsec|sk|pk)_[\w\-/+=]{8,})"), REDACTED),
    (re.compile(r"[^\s@<>\"(),:;\[\]=]+@[^\s@<>\"'(),:;\[\]=]+"), REDACTED),
    (re.compile(r"\+\d(?:[ ()./-]*\d){5,}"), REDACTED),
)


def redact_text(text: str) -> str:
    """Replaces e-mail addresses, phone numbers and credentials inside a text."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Redacts one log event; a structlog processor that runs last, after exceptions became text."""
    for key, value in event.items():
        event[key] = _redact_value(key, value)
    return event


def _redact_value(key: str, value: object) -> object:
    if _SECRET_KEYS.search(key):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {redact_text(str(name)): _redact_value(str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact_value("", item) for item in value]
    if isinstance(value, bool | int | float) or value is None:
        return value
    return redact_text(str(value))


def configure_logs(service: str, level: str = "info", style: Literal["auto", "json", "console"] = "auto") -> None:
    """Sets up structlog, and passes the libraries' standard logging through the same processors."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())

    def add_origin(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Names the service, and the trace where there is one."""
        event["service"] = service
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            event["trace_id"] = trace.format_trace_id(span.trace_id)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        add_origin,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if console
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
