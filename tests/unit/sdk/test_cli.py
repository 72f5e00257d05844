"""The command line: what is told when something is missing, and explanations that show everything."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from agent_reach.cli import words
from agent_reach.cli.endpoints import Endpoints
from agent_reach.cli.explanation import print_explanation
from agent_reach.cli.group import load_commands
from agent_reach.v1 import message_pb2, reach_pb2, timeline_pb2

_NO_ENVIRONMENT = {"REACH_TARGET": None, "REACH_API_KEY": None}


def test_every_command_is_there_the_plugged_in_ones_too() -> None:
    assert set(load_commands().commands) >= {
        *("submit", "explain", "status", "get", "list", "cancel", "watch"),
        *("up", "demo", "serve", "migrate", "policy"),
    }


@pytest.mark.parametrize("command", [["list"], ["status"], ["explain", "x"]])
def test_where_nothing_runs_it_says_what_to_do(command: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(load_commands(), [*command, "--data", str(tmp_path)], env=_NO_ENVIRONMENT)
    assert result.exit_code == 1
    assert "start `reach up`" in result.stderr.replace("\n", " ")
    assert result.stdout == ""


def test_a_service_that_does_not_answer_is_told_without_a_traceback() -> None:
    result = CliRunner().invoke(load_commands(), ["get", "x", "--target", "127.0.0.1:1", "--api-key", "k"])
    assert result.exit_code == 1
    assert result.stderr.startswith("unavailable: ")
    assert "What to do: " in result.stderr


def test_where_a_system_listens_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    endpoints = Endpoints(1, {"intake": "127.0.0.1:1"}, {}, "http://127.0.0.1:2", "reach_key", "reach_operator_key")
    endpoints.save(tmp_path)
    assert Endpoints.load(tmp_path) == endpoints
    assert (tmp_path / "endpoints.json").stat().st_mode & 0o077 == 0
    Endpoints.remove(tmp_path)
    assert Endpoints.load(tmp_path) is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--scene", "s"], "either --user or --address"),
        (["--scene", "s", "--user", "u", "--var", "novalue"], "NAME=TEXT"),
        (["--scene", "s", "--user", "u", "--vars", "[1]"], "not a JSON object"),
        (["--scene", "s", "--user", "u", "--var", "n:=five"], "not JSON"),
        (["--scene", "s", "--user", "u", "--expires-in", "soon"], "no duration"),
        (["--scene", "s", "--user", "u", "--send-at", "soon"], "no moment"),
        (
            ["--scene", "s", "--user", "u", "--send-at", "2026-03-08", "--send-at-local", "08:00"],
            "either --send-at or",
        ),
    ],
)
def test_a_mistake_in_the_arguments_is_explained(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(load_commands(), ["submit", "--target", "x", "--api-key", "k", *arguments])
    assert result.exit_code == 2
    assert told in result.stderr


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5_400), ("2d", 172_800)])
def test_durations(text: str, seconds: int) -> None:
    assert words.Duration().convert(text, None, None) == timedelta(seconds=seconds)


def test_a_word_that_is_no_duration_is_refused() -> None:
    with pytest.raises(click.BadParameter):
        words.Duration().convert("1 fortnight", None, None)


def test_an_explanation_shows_gates_text_attempts_and_receipts_as_they_are() -> None:
    explanation = reach_pb2.ExplainIntentResponse(
        intent=reach_pb2.Intent(
            intent_id="i-1",
            spec=reach_pb2.IntentSpec(scene="order_shipped", user_id="ada", variables_json='{"order_id":"[bold]A"}'),
            state=message_pb2.STATE_SENT,
        ),
        tasks=[
            timeline_pb2.Task(
                channel=message_pb2.CHANNEL_EMAIL,
                address="ada@example.com",
                state=message_pb2.STATE_SENT,
                subject="Order [bold]A",
                body="Line one\n\nLine \x1b[31mthree",
                decisions=[
                    message_pb2.Decision(
                        action=message_pb2.ACTION_SEND_NOW,
                        trace=[
                            message_pb2.GateTrace(
                                gate=message_pb2.GATE_QUIET_HOURS,
                                outcome=message_pb2.GATE_OUTCOME_PASSED,
                                reason="outside_quiet_hours",
                                inputs={"zone": "Asia/Tokyo"},
                            )
                        ],
                    )
                ],
                attempts=[
                    timeline_pb2.Attempt(
                        number=1, provider="smtp", result=timeline_pb2.ATTEMPT_RESULT_ACCEPTED, code="smtp_250"
                    )
                ],
                receipts=[timeline_pb2.AppliedReceipt(kind=timeline_pb2.RECEIPT_KIND_DELIVERED, changed_state=True)],
            )
        ],
        timeline=[timeline_pb2.TimelineEntry(kind="submitted", summary="by dev")],
    )
    output = io.StringIO()
    print_explanation(Console(file=output, width=40), explanation)
    text = output.getvalue()
    for shown in (
        'variables {"order_id":"[bold]A"}',
        "Subject: Order [bold]A",
        "│ Line one\n    │ \n    │ Line \\x1b[31mthree",
        "✓ quiet hours    passed    it is not night where the user is (outside_quiet_hours)\n",
        "zone=Asia/Tokyo\n",
        "smtp: accepted smtp_250",
        "delivered (at ): moved the state",
        "submitted by dev",
    ):
        assert shown in text
    assert "\x1b" not in text
