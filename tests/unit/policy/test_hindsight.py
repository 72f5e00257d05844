"""What a trace tells about its judgement, and where two decisions about one message part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.catalog.rules import Category, Channel, SceneRules
from services.policy.decision import (
    Action,
    Address,
    Decision,
    Facts,
    Gate,
    GateEntry,
    GateOutcome,
    Preference,
    Suppression,
    SuppressionSource,
)
from services.policy.evaluate import evaluate
from services.policy.hindsight import (
    Counts,
    DatedPreference,
    DatedSuppression,
    Dossier,
    counts_seen,
    parting_gate,
)

from .world import ANN, NOON, item, rules, scene

NOW = datetime(2026, 3, 9, 12, tzinfo=UTC)
PASSED, DROPPED, DEFERRED = GateOutcome.PASSED, GateOutcome.DROPPED, GateOutcome.DEFERRED


def decision(
    action: Action, *entries: tuple[Gate, GateOutcome], channel: Channel = Channel.EMAIL, **fields: Any
) -> Any:
    trace = [GateEntry(Gate.CHANNEL, PASSED, "address_found", {"channel": channel.value})]
    trace += [GateEntry(gate, outcome, outcome.value, {}) for gate, outcome in entries]
    return Decision(action, tuple(trace), "v", NOW, channel=channel, **fields)


SENT = decision(Action.SEND_NOW, (Gate.QUIET_HOURS, PASSED), (Gate.FREQUENCY, PASSED))
WAITS = decision(Action.DEFER, (Gate.QUIET_HOURS, DEFERRED), until=NOW + timedelta(hours=8), reason="quiet_hours")
CAPPED = decision(Action.DROP, (Gate.QUIET_HOURS, PASSED), (Gate.FREQUENCY, DROPPED), reason="user_daily_cap")


@pytest.mark.parametrize(
    ("one", "other", "gate"),
    [
        (SENT, decision(Action.SEND_NOW, channel=Channel.SMS), Gate.CHANNEL),
        (SENT, WAITS, Gate.QUIET_HOURS),
        (SENT, CAPPED, Gate.FREQUENCY),
        # The one never came as far as the gate at which the other stopped.
        (WAITS, CAPPED, Gate.QUIET_HOURS),
        (
            WAITS,
            decision(Action.DEFER, (Gate.QUIET_HOURS, DEFERRED), until=NOW, reason="quiet_hours"),
            Gate.QUIET_HOURS,
        ),
        (CAPPED, decision(Action.DROP, (Gate.FREQUENCY, DROPPED), reason="user_window_cap"), Gate.FREQUENCY),
        (CAPPED, decision(Action.DROP, (Gate.RELEASE, DROPPED), reason="not_released"), Gate.RELEASE),
        (SENT, decision(Action.FALL_BACK, (Gate.CHANNEL_QUOTA, GateOutcome.FELL_BACK)), Gate.CHANNEL_QUOTA),
    ],
)
def test_two_decisions_part_at_the_first_gate_that_stops_one_of_them(one: Any, other: Any, gate: Gate) -> None:
    assert parting_gate(one, other) is gate
    assert parting_gate(other, one) is gate


def test_the_same_decision_by_another_way_is_no_parting() -> None:
    assert parting_gate(SENT, decision(Action.SEND_NOW, (Gate.RELEASE, PASSED))) is None
    assert parting_gate(WAITS, decision(Action.DEFER, until=WAITS.until, reason="quiet_hours")) is None
    # A message that is dropped for the same reason goes nowhere, on whichever channel.
    elsewhere = decision(Action.DROP, channel=Channel.SMS, reason="user_daily_cap")
    assert parting_gate(CAPPED, elsewhere) is None


def test_a_trace_tells_what_the_counters_said() -> None:
    frequency = {
        "cap_date": "2026-03-09",
        "channel": "sms",
        "count": "2",
        "channel_count": "1",
        "window_seconds": "604800,86400",
        "window_count": "4,1",
        "tenant_count": "17",
    }
    trace = (
        GateEntry(Gate.SUPPRESSION, PASSED, "not_suppressed", {"category": "marketing", "channel": "sms"}),
        GateEntry(Gate.FREQUENCY, PASSED, "within_caps", frequency),
        GateEntry(Gate.CHANNEL_QUOTA, PASSED, "within_quota", {"channel": "sms", "count": "9", "limit": "10"}),
    )
    assert counts_seen(Decision(Action.SEND_NOW, trace, "v", NOW)) == Counts(
        channel=Channel.SMS,
        cap_date="2026-03-09",
        user=2,
        on_channel={Channel.SMS: 1},
        category=Category.MARKETING,
        windows={timedelta(days=7): 4, timedelta(days=1): 1},
        tenant=17,
        quota={Channel.SMS: 9},
    )


def test_a_trace_tells_what_the_counters_said_of_the_channel_that_took_over() -> None:
    frequency = {"cap_date": "2026-03-09", "channel": "sms", "count": "2", "channel_count": "1"}
    quota = {
        "channel": "sms",
        "count": "10",
        "limit": "10",
        "fallback": "email",
        "fallback_count": "4",
        "fallback_channel_count": "0",
    }
    trace = (
        GateEntry(Gate.FREQUENCY, PASSED, "within_caps", frequency),
        GateEntry(Gate.CHANNEL_QUOTA, GateOutcome.FELL_BACK, "channel_quota_spent", quota),
    )
    seen = counts_seen(Decision(Action.FALL_BACK, trace, "v", NOW))
    assert seen.on_channel == {Channel.SMS: 1, Channel.EMAIL: 0}
    assert seen.quota == {Channel.SMS: 10, Channel.EMAIL: 4}


BOUNCE = Suppression("s-1", SuppressionSource.BOUNCE, address=Address(Channel.SMS, "+16502530000"))
MARKETING = Category.MARKETING


def standing(*choices: tuple[Category | None, Channel | None, bool]) -> tuple[Preference, ...]:
    return tuple(Preference(*choice) for choice in choices)


@pytest.mark.parametrize(
    "then",
    [
        Facts(ANN),
        Facts(ANN, (BOUNCE,)),
        Facts(ANN, preferences=standing((None, Channel.SMS, False))),
        Facts(ANN, preferences=standing((MARKETING, None, False), (MARKETING, Channel.EMAIL, True))),
        Facts(ANN, (BOUNCE,), standing((MARKETING, None, False))),
        Facts(ANN, preferences=standing((None, None, True))),
    ],
)
@pytest.mark.parametrize(
    "since",
    [
        (),
        standing((MARKETING, Channel.SMS, True), (MARKETING, Channel.EMAIL, False)),
        standing((MARKETING, None, True)),
        standing((None, None, False)),
    ],
)
@pytest.mark.parametrize("scene_rules", [scene(MARKETING), scene(MARKETING, opt_in=True)])
@pytest.mark.parametrize("quota", [1_000, 0])
def test_each_channel_answers_as_it_did_then_whatever_was_chosen_or_lifted_within_that_instant(
    then: Facts, since: tuple[Preference, ...], scene_rules: SceneRules, quota: int
) -> None:
    law = rules(scene_rules, quota={Channel.SMS: quota})
    decision = evaluate(item(), then, law, NOON)
    dossier = Dossier(
        ANN,
        (DatedSuppression(BOUNCE, NOON + timedelta(seconds=bool(then.suppressions)), None),),
        tuple(DatedPreference(choice, NOON) for choice in since),
    )
    assert parting_gate(decision, evaluate(item(), dossier.as_seen("ann", decision), law, NOON)) is None


def test_a_judgement_that_asked_no_counter_tells_none() -> None:
    assert counts_seen(WAITS) == Counts()
    exempt = GateEntry(Gate.FREQUENCY, GateOutcome.EXEMPT, "category_exempt", {"category": "verification"})
    assert counts_seen(Decision(Action.SEND_NOW, (exempt,), "v", NOW)) == Counts()
