"""Nothing that gives a person or a secret away reaches a log."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import string
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.chassis.api_keys import new_api_key
from services.chassis.logs import REDACTED, configure_logs, redact_text

WORDS = st.text(string.ascii_letters + string.digits, min_size=8, max_size=20).map(lambda text: f"Zq{text}qZ")
EMAILS = st.tuples(WORDS, st.sampled_from(["", ".x", "+tag", "'s", "_%"]), st.emails()).map(
    lambda parts: (f"{parts[0]}{parts[1]}@{parts[2].rpartition('@')[2]}", parts[0])
)
PHONES = st.tuples(st.integers(1_000_000, 999_999_999_999_999), st.sampled_from(["", " ", "-", "."])).map(
    lambda parts: (f"+{parts[1].join(str(parts[0]))}", parts[1].join(str(parts[0])))
)
KEYS = st.builds(new_api_key).map(lambda key: (key, key))
DSNS = WORDS.flatmap(
    lambda word: st.sampled_from(
        [
            f"postgresql://reach:{word}@db:5432/reach",
            f"postgresql://reach:{quote(word + '/@:', safe='')}@db/reach",
            f"redis://:{word}@cache:6379/0",
            f"rediss://user:{word}@cache",
            f"postgresql://reach:a/{word}@db/reach",
            f"host=db password={word} user=reach",
            f"host=db password = '{word} x' user=reach",
            f"password='x {word}'",
            f"REACH_SERVICE_KEY={word}",
            f'{{"password": "x {word}", "token": "{word}"}}',
            f"Authorization: Bearer {word}",
            f"https://hooks.example.com/services/{word}",
            f"https://example.com?signature={word}",
            f"whsec_{word}",
        ]
    ).map(lambda text: (text, word))
)
SECRETS = st.one_of(EMAILS, PHONES, KEYS, DSNS)
AROUND = st.sampled_from(["{}", "no such recipient: {}", "<{}>", "({})=({})", "'{}'", "x={} y", '"{}", ', "{}\n{}"])


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    root, stderr = logging.getLogger(), io.StringIO()
    before, level = root.handlers, root.level
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logs("test", "debug", "json")
    yield stderr
    root.handlers, root.level = before, level
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(secret=SECRETS, around=AROUND)
def test_a_secret_is_not_in_any_line_wherever_it_stood(
    stream: io.StringIO, secret: tuple[str, str], around: str
) -> None:
    text, secret_part = secret
    text = around.replace("{}", text)
    stream.seek(0)
    stream.truncate()
    log, library = structlog.get_logger("ours"), logging.getLogger("theirs")
    log.info(text)
    log.info("event", note=text, parts=[text, {"deep": (text,), text: 1}], error=ValueError(text), members={text})
    library.info("about %s", text)
    error = ValueError("cannot")
    error.__cause__ = RuntimeError(text)
    log.error("failed", reason=text, exc_info=error)
    library.error("failed", exc_info=error)
    output = stream.getvalue()
    assert len(lines(stream)) == 5
    assert secret_part not in output
    assert json.dumps(secret_part)[1:-1] not in output


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "api_key",
        "address",
        "to_address",
        "email",
        "phone",
        "body",
        "variables",
        "code_text",
        "Authorization",
    ],
)
def test_values_with_a_telling_name_are_never_written(stream: io.StringIO, name: str) -> None:
    structlog.get_logger().info("event", **{name: "harmless", "nested": {name: ["harmless"]}})
    [line] = lines(stream)
    assert (line[name], line["nested"][name]) == (REDACTED, REDACTED)


@pytest.mark.parametrize(
    "text",
    [
        "serving",
        "agent_reach.v1.ReachService/Submit",
        "reach_engine",
        "intent 0198c1a2-7b1c-7d3e-8f00-0123456789ab is SENT",
        "2026-11-30T10:20:00.000000Z",
        "took 12.5 s (+3 retries)",
        "dns:///policy:7400",
        "3 + 4 = 7",
    ],
)
def test_what_tells_nothing_stays_readable(text: str) -> None:
    assert redact_text(text) == text


def test_a_line_says_when_who_and_how_bad(stream: io.StringIO) -> None:
    structlog.get_logger("services.x").warning("late", seconds=3, ok=False, nothing=None)
    [line] = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "late",
        "level": "warning",
        "logger": "services.x",
        "service": "test",
        "seconds": 3,
        "ok": False,
        "nothing": None,
    }


def test_lines_below_the_level_are_not_written(stream: io.StringIO) -> None:
    with contextlib.redirect_stderr(stream):
        configure_logs("test", "warning", "json")
    structlog.get_logger().info("quiet")
    logging.getLogger("library").info("quiet")
    structlog.get_logger().warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_a_terminal_gets_readable_lines_redacted_as_well(stream: io.StringIO) -> None:
    with contextlib.redirect_stderr(stream):
        configure_logs("test", "info", "console")
    structlog.get_logger().info("sent", note="to ada@example.com")
    assert "ada@" not in stream.getvalue()
    assert "sent" in stream.getvalue()
