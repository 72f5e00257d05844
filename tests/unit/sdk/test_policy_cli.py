"""`reach policy`: what is printed, and that every reason of the policy has words."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from agent_reach.cli import words
from agent_reach.cli.changes import Changes
from agent_reach.cli.decisions import SENTENCES, print_decision
from agent_reach.cli.group import load_commands
from agent_reach.v1 import message_pb2, policy_admin_pb2
from services.policy import reasons
from services.policy.gates import SUPPRESSED

NO_ENVIRONMENT = {"REACH_TARGET": None, "REACH_POLICY_TARGET": None, "REACH_API_KEY": None}


def decision(action: message_pb2.Action.ValueType, reason: str = "", **fields: Any) -> message_pb2.Decision:
    return message_pb2.Decision(action=action, reason=reason, channel=message_pb2.CHANNEL_EMAIL, **fields)


def changed(number: int, actual: message_pb2.Decision, other: message_pb2.Decision, **fields: Any) -> Any:
    values: dict[str, Any] = {"user_id": "ada", "scene": "sale", "gate": message_pb2.GATE_FREQUENCY, **fields}
    return policy_admin_pb2.ChangedDecision(intent_id=f"i{number}", actual=actual, other=other, **values)


def test_all_commands_stand_in_one_group_that_of_the_services_too() -> None:
    group: Any = load_commands().commands["policy"]
    assert set(group.commands) >= {"show", "ask", "simulate", "shadow", "counters", "check"}


def test_every_reason_of_the_policy_has_words_that_a_support_person_understands() -> None:
    names = {value for name, value in vars(reasons).items() if name.isupper()} | set(SUPPRESSED.values())
    assert len(names) > 30
    assert names <= set(SENTENCES)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ask", "--scene", "s"], "either --user or --address"),
        (["ask", "--scene", "s", "--user", "u", "--at", "tonight"], "no moment"),
        (["ask", "--scene", "s", "--user", "u", "--send-at", "2026-03-08", "--send-at-local", "08:00"], "either"),
        (["counters", "ada", "--clear"], "--clear and --reason go together"),
        (["counters", "ada", "--reason", "because"], "--clear and --reason go together"),
        (["simulate", "nowhere.yaml"], "does not exist"),
    ],
)
def test_a_mistake_in_the_arguments_is_explained(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(load_commands(), ["policy", *arguments, "--target", "127.0.0.1:1", "--api-key", "k"])
    assert result.exit_code == 2
    assert told in result.stderr


@pytest.mark.parametrize(
    "command", [["show"], ["counters", "ada"], ["shadow"], ["ask", "--user", "u", "--scene", "s"]]
)
def test_where_nothing_runs_it_says_what_to_do(command: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(load_commands(), ["policy", *command, "--data", str(tmp_path)], env=NO_ENVIRONMENT)
    assert result.exit_code == 1
    assert "start `reach up`" in result.stderr.replace("\n", " ")


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b"#" * (1024 * 1024 + 1))
    arguments = ["policy", "simulate", str(file), "--target", "127.0.0.1:1", "--api-key", "k"]
    result = CliRunner().invoke(load_commands(), arguments)
    assert result.exit_code == 1
    assert "at most 1 MiB" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-08T23:30", datetime(2026, 3, 8, 23, 30, tzinfo=UTC)),
        ("2026-03-08", datetime(2026, 3, 8, tzinfo=UTC)),
        ("2026-03-08T23:30+01:00", datetime(2026, 3, 8, 22, 30, tzinfo=UTC)),
        ("2026-03-08T23:30Z", datetime(2026, 3, 8, 23, 30, tzinfo=UTC)),
    ],
)
def test_moments(text: str, moment: datetime) -> None:
    assert words.Moment().convert(text, None, None) == moment


@pytest.mark.parametrize(
    ("seconds", "span"), [("604800", "7d"), ("5400", "90m"), ("7200", "2h"), ("1", "1s"), ("0.5", "0.5s"), ("0", "0s")]
)
def test_spans(seconds: str, span: str) -> None:
    assert words.span(seconds) == span


def test_a_decision_shows_every_gate_in_words_with_what_it_saw() -> None:
    entries = [
        (message_pb2.GATE_SCHEDULE, message_pb2.GATE_OUTCOME_PASSED, "send_at_reached", {"weekday": "1"}),
        (message_pb2.GATE_RELEASE, message_pb2.GATE_OUTCOME_PASSED, "released_to_user", {"share": "0.5"}),
        (message_pb2.GATE_QUIET_HOURS, message_pb2.GATE_OUTCOME_EXEMPT, "scene_exempt", {}),
        (
            message_pb2.GATE_FREQUENCY,
            message_pb2.GATE_OUTCOME_DROPPED,
            "user_window_cap",
            {"window_seconds": "604800,86400", "window_count": "2,0", "window_limit": "2,1"},
        ),
        (message_pb2.GATE_CHANNEL_QUOTA, message_pb2.GATE_OUTCOME_PASSED, "a_reason_of_tomorrow", {"x": "\x1b[31m"}),
    ]
    trace = [
        message_pb2.GateTrace(gate=gate, outcome=outcome, reason=reason, inputs=inputs)
        for gate, outcome, reason, inputs in entries
    ]
    output = io.StringIO()
    shown = decision(message_pb2.ACTION_DROP, "user_window_cap", trace=trace, policy_version="f" * 64)
    print_decision(Console(file=output, width=60), shown)
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("  Decision drop on email, because the user has got as many messages of this kind")
    assert lines[0].endswith("policy ffffffffffff")
    assert [line.strip() for line in lines[1:]] == [
        "✓ schedule       passed    its moment has come (send_at_reached)",
        "weekday=monday",
        "✓ release        passed    the scene is switched on for this user (released_to_user)",
        "share=0.5",
        "- quiet hours    exempt    such messages may come at night (scene_exempt)",
        f"✗ frequency      dropped   {SENTENCES['user_window_cap']} (user_window_cap)",
        "window_count=2,0  window_limit=2,1  window=7d,1d",
        "✓ channel quota  passed    a_reason_of_tomorrow",
        "x=\\x1b[31m",
    ]


def test_changes_are_summed_by_gate_the_most_first_and_the_first_ones_told_in_full() -> None:
    sent, capped = decision(message_pb2.ACTION_SEND_NOW), decision(message_pb2.ACTION_DROP, "user_daily_cap")
    deferred = decision(message_pb2.ACTION_DEFER, "quiet_hours")
    deferred.until.FromDatetime(datetime(2026, 3, 9, 7, 5, tzinfo=UTC))
    changes = Changes(kept=2)
    changes.add([changed(1, deferred, sent, gate=message_pb2.GATE_QUIET_HOURS, hop=1)])
    changes.add([changed(number, sent, capped) for number in range(2, 5)])
    changes.replayed, changes.changed = 2_000, 4
    output = io.StringIO()
    changes.print(Console(file=output, width=200))
    lines = [" ".join(line.split()) for line in output.getvalue().splitlines() if line.strip()]
    assert lines[0] == "2,000 messages replayed, 4 would be decided otherwise (0.2%)."
    assert lines[1:4] == [
        "gate was would be messages",
        "frequency sent → dropped: user_daily_cap 3",
        "quiet hours deferred: quiet_hours → sent 1",
    ]
    assert lines[5:] == [
        "i1 (hop 1) ada sale quiet hours deferred: quiet_hours until 2026-03-09 07:05:00 UTC → sent on email",
        "i2 ada sale frequency sent on email → dropped: user_daily_cap",
    ]


def test_a_change_as_a_row_has_every_column() -> None:
    deferred = decision(message_pb2.ACTION_DEFER, "quiet_hours", policy_version="aa")
    deferred.until.FromDatetime(datetime(2026, 3, 9, 7, 5, tzinfo=UTC))
    change = changed(1, deferred, decision(message_pb2.ACTION_SEND_NOW, policy_version="bb"))
    change.decided_at.FromDatetime(datetime(2026, 3, 8, 23, 30, tzinfo=UTC))
    row = Changes(kept=0).row(change)
    assert tuple(row) == Changes.COLUMNS
    assert (row["decided_at"], row["gate"]) == ("2026-03-08T23:30:00+00:00", "frequency")
    assert (row["actual_action"], row["actual_until"], row["actual_policy"]) == (
        "defer",
        "2026-03-09T07:05:00+00:00",
        "aa",
    )
    assert (row["other_action"], row["other_channel"], row["other_until"]) == ("send_now", "email", "")


def test_no_change_is_said_in_one_line() -> None:
    output = io.StringIO()
    changes = Changes(kept=20)
    changes.replayed = 7
    changes.print(Console(file=output, width=200))
    assert output.getvalue() == "7 messages replayed, 0 would be decided otherwise.\n"
