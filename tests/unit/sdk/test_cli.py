"""The command line: what is told when something is missing, and explanations that show everything."""

from __future__ import annotations

import io
import subprocess
import sys
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
from agent_reach.cli.naming import options_named
from agent_reach.client.errors import InvalidArgumentError, Violation
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
        'variables  {"order_id":"[bold]A"}',
        "Subject: Order [bold]A",
        "│ Line one\n    │\n    │ Line \\x1b[31mthree",
        "✓ quiet hours    passed    it is not night where the user is (outside_quiet_hours)\n",
        "zone=Asia/Tokyo\n",
        "smtp: accepted smtp_250",
        "delivered (at ): moved the state",
        "submitted by dev",
    ):
        assert shown in text
    assert "\x1b" not in text


def explained(task: timeline_pb2.Task, **spec: object) -> str:
    """Returns the explanation of an intent with one task, as it is printed."""
    intent = reach_pb2.Intent(intent_id="i-1", spec=reach_pb2.IntentSpec(scene="news", user_id="ada", **spec))  # type: ignore[arg-type]  # each test names real fields
    output = io.StringIO()
    print_explanation(Console(file=output, width=200), reach_pb2.ExplainIntentResponse(intent=intent, tasks=[task]))
    return output.getvalue()


def test_what_was_withheld_right_before_it_would_have_left_is_not_shown_as_sent() -> None:
    send_now = message_pb2.Decision(action=message_pb2.ACTION_SEND_NOW, channel=message_pb2.CHANNEL_EMAIL)
    withheld = timeline_pb2.Task(
        state=message_pb2.STATE_SUPPRESSED, reason="duplicate_content", idempotency_key="key-1", decisions=[send_now]
    )
    text = explained(withheld)
    assert "key-1" not in text
    assert text.index("Decision send now") < text.index(
        "Withheld after that: the same text left for the user on this channel not long before (duplicate_content)"
    )
    # What the policy itself withheld has its reason there, and waiting is not yet having been sent.
    withheld.decisions[0].action = message_pb2.ACTION_DROP
    assert "Withheld" not in explained(withheld)
    waiting = timeline_pb2.Task(state=message_pb2.STATE_SCHEDULED, idempotency_key="key-1", decisions=[send_now])
    assert "leaves as  key-1" in explained(waiting)
    waiting.attempts.add(number=1)
    assert "sent as    key-1" in explained(waiting)


def test_a_complaint_leads_to_the_suppression_that_it_made() -> None:
    task = timeline_pb2.Task(channel=message_pb2.CHANNEL_EMAIL, address="ada@example.com")
    task.receipts.add(kind=timeline_pb2.RECEIPT_KIND_COMPLAINED)
    text = explained(task)
    assert "complained (at ): kept, the state stays" in text
    told = "email:ada@example.com is suppressed by it: reach suppressions list --address email:ada@example.com"
    assert told in text
    task.receipts[0].kind = timeline_pb2.RECEIPT_KIND_OPENED
    assert "suppress" not in explained(task)


def test_facts_stand_apart_from_their_names() -> None:
    local = message_pb2.LocalTime(time="08:00")
    assert "not before 08:00 by the recipient's clock" in explained(timeline_pb2.Task(), send_at_local=local)


@pytest.mark.parametrize(
    ("arguments", "field", "named"),
    [
        (["--vars", "{}"], "intent.variables_json", "--vars"),
        ([], "intent.variables_json", "--var"),
        ([], "intent.send_at_local.time", "--send-at-local"),
        ([], "intent.channels[1]", "--channel"),
        ([], "policy_target", "policy_target"),
        ([], "policies_yaml", "here.yaml"),
    ],
)
def test_what_the_service_refuses_is_told_by_the_option_that_it_came_from(
    arguments: list[str], field: str, named: str
) -> None:
    @click.command()
    @click.argument("file", type=click.Path())
    @click.option("--var", "variables", multiple=True)
    @click.option("--vars", "variables_json")
    @click.option("--send-at-local")
    @click.option("--channel", "channels", multiple=True)
    def command(**_options: object) -> None:
        with options_named():
            raise InvalidArgumentError(f"{field}: is wrong", violations=[Violation(field, "is wrong")])

    result = CliRunner().invoke(command, ["here.yaml", *arguments])
    assert isinstance(result.exception, InvalidArgumentError)
    assert result.exception.message == f"{named}: is wrong"
    assert result.exception.violations == (Violation(named, "is wrong"),)


@pytest.mark.parametrize(
    "command",
    [
        ["profiles", "export", "{path}"],
        ["suppressions", "import", "{file}", "--rejects", "{path}"],
        ["policy", "simulate", "{file}", "--csv", "{path}"],
    ],
)
def test_a_file_that_cannot_be_written_is_told_without_a_traceback(command: list[str], tmp_path: Path) -> None:
    file, path = tmp_path / "file.csv", tmp_path / "nowhere" / "out.csv"
    file.write_text("user_id\nada\n")
    arguments = [part.format(file=file, path=path) for part in command]
    result = CliRunner().invoke(load_commands(), [*arguments, "--target", "127.0.0.1:1", "--api-key", "k"])
    assert result.exit_code == 1
    assert f"{path} cannot be written: No such file or directory" in result.stderr
    assert "What to do: " in result.stderr


def test_without_its_extra_the_command_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['click'] = None; from agent_reach.cli import main; main()"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "the command line is not installed (click is missing)" in failed.stderr
    assert "sdk[cli]" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_an_export_takes_nobodys_file_away_and_writes_no_format_that_it_does_not_know(tmp_path: Path) -> None:
    file = tmp_path / "users.csv"
    file.write_text("mine")
    for room in ("profiles", "suppressions"):
        arguments = [room, "export", "--target", "127.0.0.1:1", "--api-key", "k"]
        result = CliRunner().invoke(load_commands(), [*arguments, str(file)])
        assert result.exit_code == 1
        assert "is there already" in result.stderr
        assert "--force" in result.stderr
        forced = CliRunner().invoke(load_commands(), [*arguments, str(file), "--force"])
        assert "is there already" not in forced.stderr
        unknown = CliRunner().invoke(load_commands(), [*arguments, str(tmp_path / "users.xml")])
        assert unknown.exit_code == 1
        assert ".xml is no format of ours" in unknown.stderr
    assert file.read_text() == "mine", "nothing answered, so it stays"
