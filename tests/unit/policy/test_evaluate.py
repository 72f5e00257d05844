"""May this person be disturbed, now, here? The gates, their order, and that they are a function of their inputs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

import pytest

from services.catalog.rules import Category, Channel, Digest, QuietWindow, WindowCap
from services.policy import reasons
from services.policy.decision import (
    Action,
    Address,
    Decision,
    Facts,
    Gate,
    GateEntry,
    GateOutcome,
    LocalTime,
    Person,
    Preference,
    Suppression,
    SuppressionSource,
    Usage,
)
from services.policy.evaluate import Bench, evaluate

from .world import ANN, MORNING, NIGHT, NOON, POLICY, item, rules, scene

# The gates that every message meets; the others are asked where the intent or its scene uses them.
COMMON = [Gate.CHANNEL, Gate.SUPPRESSION, Gate.QUIET_HOURS, Gate.FREQUENCY, Gate.CHANNEL_QUOTA]


def entry(decision: Decision, gate: Gate) -> GateEntry:
    (found,) = [entry for entry in decision.trace if entry.gate is gate]
    return found


def outcomes(decision: Decision) -> list[tuple[Gate, GateOutcome]]:
    return [(entry.gate, entry.outcome) for entry in decision.trace]


def test_a_message_that_nothing_speaks_against_is_sent_and_every_gate_is_on_record() -> None:
    decision = evaluate(item(), Facts(ANN), rules(), NOON)
    assert decision.action is Action.SEND_NOW
    assert decision.reason == ""
    assert (decision.channel, decision.address, decision.locale) == (Channel.SMS, "+16502530000", "de-CH")
    assert decision.cap_date == "2026-06-01"
    assert outcomes(decision) == [(gate, GateOutcome.PASSED) for gate in COMMON]
    assert decision.policy_version == "hash"
    assert decision.decided_at == NOON


def test_the_trace_tells_what_each_gate_saw_but_no_address() -> None:
    facts = Facts(ANN, usage={Channel.SMS: Usage(user=2, channel=1)}, quota_used={Channel.SMS: 7})
    trace = {entry.gate: entry.inputs for entry in evaluate(item(), facts, rules(), NOON).trace}
    assert trace[Gate.CHANNEL] == {"order": "sms,email,webhook", "order_source": "channels", "channel": "sms"}
    assert trace[Gate.QUIET_HOURS]["zone_source"] == "default"
    assert trace[Gate.QUIET_HOURS]["window"] == "22:30-08:00"
    assert trace[Gate.FREQUENCY]["count"] == "2"
    assert trace[Gate.FREQUENCY]["limit"] == "3"
    assert trace[Gate.CHANNEL_QUOTA] == {"channel": "sms", "count": "7", "limit": "1000"}
    assert not any("@" in value or "+1650" in value for inputs in trace.values() for value in inputs.values())


@pytest.mark.parametrize(
    ("order", "wish", "chosen", "source"),
    [
        ((Channel.EMAIL, Channel.SMS), (Channel.SMS,), Channel.EMAIL, "scene"),
        (None, (Channel.WEBHOOK, Channel.EMAIL), Channel.EMAIL, "wish"),
        (None, (), Channel.SMS, "channels"),
    ],
)
def test_the_scenes_order_goes_before_the_wish_and_the_wish_before_the_configuration(
    order: tuple[Channel, ...] | None, wish: tuple[Channel, ...], chosen: Channel, source: str
) -> None:
    decision = evaluate(item(channels=wish), Facts(ANN), rules(scene(channels=order)), NOON)
    assert decision.channel is chosen
    assert decision.trace[0].inputs["order_source"] == source


def test_a_task_after_a_fallback_keeps_to_its_channel_whatever_the_scene_prefers() -> None:
    asked = item(hop=1, channels=(Channel.EMAIL,))
    assert evaluate(asked, Facts(ANN), rules(scene(channels=(Channel.SMS,))), NOON).channel is Channel.EMAIL


def test_a_user_without_an_address_gets_nothing_and_the_reason_says_so() -> None:
    decision = evaluate(item(), Facts(Person()), rules(), NOON)
    assert (decision.action, decision.reason) == (Action.DROP, "no_address")
    assert outcomes(decision) == [(Gate.CHANNEL, GateOutcome.DROPPED)]


def test_a_wish_for_a_channel_that_is_not_configured_or_not_served_is_told_apart() -> None:
    assert evaluate(item(channels=(Channel.CHAT,)), Facts(ANN), rules(), NOON).reason == "no_channel"
    served = replace(rules(), served=frozenset({Channel.WEBHOOK}))
    assert evaluate(item(), Facts(ANN), served, NOON).reason == "no_address"


def test_a_bare_address_is_used_on_its_own_channel_only() -> None:
    bare = item(address=Address(Channel.EMAIL, "bob@example.com"))
    decision = evaluate(bare, Facts(Person()), rules(), NOON)
    assert (decision.channel, decision.address) == (Channel.EMAIL, "bob@example.com")


def by_user(source: SuppressionSource = SuppressionSource.UNSUBSCRIBE, **limits: object) -> Suppression:
    return replace(Suppression("s-1", source, user_id="ann"), **limits)  # type: ignore[arg-type]


def by_address(value: str = "+16502530000", source: SuppressionSource = SuppressionSource.BOUNCE) -> Suppression:
    return Suppression("s-2", source, address=Address(Channel.SMS, value))


@pytest.mark.parametrize(
    ("suppression", "reason"),
    [
        (by_user(), "user_unsubscribed"),
        (by_user(SuppressionSource.COMPLAINT), "user_complained"),
        (by_user(SuppressionSource.OPERATOR), "user_suppressed"),
        (by_user(SuppressionSource.IMPORT, channel=Channel.SMS), "user_suppressed"),
        (by_user(category=Category.NOTIFICATION), "user_unsubscribed"),
        (by_address(), "address_bounced"),
        (by_address(source=SuppressionSource.OPERATOR), "address_suppressed"),
        (by_address(source=SuppressionSource.UNSUBSCRIBE), "address_unsubscribed"),
    ],
)
def test_who_asked_for_silence_gets_it(suppression: Suppression, reason: str) -> None:
    decision = evaluate(item(), Facts(ANN, (suppression,)), rules(scene(channels=(Channel.SMS,))), NOON)
    assert (decision.action, decision.reason) == (Action.DROP, reason)
    assert decision.cap_date == ""
    assert decision.trace[-1].inputs["suppression_id"] == suppression.suppression_id


@pytest.mark.parametrize(
    "suppression",
    [
        by_user(channel=Channel.EMAIL),
        by_user(category=Category.MARKETING),
        by_user(user_id="bob"),
        by_address("+16502530001"),
        Suppression("s-3", SuppressionSource.BOUNCE, address=Address(Channel.EMAIL, "ann@example.com")),
    ],
)
def test_a_suppression_of_something_else_holds_nothing_back(suppression: Suppression) -> None:
    assert evaluate(item(), Facts(ANN, (suppression,)), rules(), NOON).action is Action.SEND_NOW


def test_a_code_reaches_a_user_who_unsubscribed_unless_codes_themselves_are_suppressed() -> None:
    verification = rules(scene(Category.VERIFICATION))
    assert evaluate(item(), Facts(ANN, (by_user(),)), verification, NOON).action is Action.SEND_NOW
    of_codes = by_user(category=Category.VERIFICATION)
    assert evaluate(item(), Facts(ANN, (of_codes,)), verification, NOON).reason == "user_unsubscribed"


def test_of_several_suppressions_the_users_own_will_is_named() -> None:
    standing = (by_address(), by_user(SuppressionSource.OPERATOR), by_user())
    assert evaluate(item(), Facts(ANN, standing), rules(), NOON).reason == "user_unsubscribed"


@pytest.mark.parametrize(
    ("suppression", "reason"),
    [
        (by_user(channel=Channel.SMS), "user_unsubscribed"),
        (by_user(SuppressionSource.COMPLAINT, channel=Channel.SMS, category=Category.NOTIFICATION), "user_complained"),
        (by_address(), "address_bounced"),
    ],
)
def test_silence_on_one_channel_leaves_the_next_one_open_and_the_trace_tells_both(
    suppression: Suppression, reason: str
) -> None:
    decision = evaluate(item(), Facts(ANN, (suppression,)), rules(), NOON)
    assert (decision.action, decision.channel, decision.address) == (
        Action.SEND_NOW,
        Channel.EMAIL,
        "ann@example.com",
    )
    assert entry(decision, Gate.CHANNEL).inputs["channel"] == "sms"
    assert entry(decision, Gate.SUPPRESSION).inputs == {
        "category": "notification",
        "channel": "email",
        "refused_sms": reason,
        "refused_sms_suppression_id": suppression.suppression_id,
    }
    assert entry(decision, Gate.FREQUENCY).inputs["channel"] == "email"
    waiting = evaluate(item(), Facts(ANN, (suppression,)), rules(), NIGHT)
    assert (waiting.action, waiting.channel) == (Action.DEFER, Channel.EMAIL)


def test_where_every_channel_is_silent_the_first_ones_reason_is_named_and_each_is_told() -> None:
    mail = Suppression("s-3", SuppressionSource.COMPLAINT, address=Address(Channel.EMAIL, "ann@example.com"))
    decision = evaluate(item(), Facts(ANN, (by_address(), mail)), rules(), NOON)
    assert (decision.action, decision.reason, decision.channel) == (Action.DROP, "address_bounced", Channel.SMS)
    assert entry(decision, Gate.SUPPRESSION).inputs == {
        "category": "notification",
        "channel": "sms",
        "suppression_id": "s-2",
        "source": "bounce",
        "refused_email": "address_complained",
        "refused_email_suppression_id": "s-3",
    }


def test_a_user_who_wants_silence_on_every_channel_has_it_at_once() -> None:
    for everywhere in (by_user(), by_user(category=Category.NOTIFICATION)):
        inputs = entry(evaluate(item(), Facts(ANN, (everywhere,)), rules(), NOON), Gate.SUPPRESSION).inputs
        assert not any(name.startswith("refused_") for name in inputs), "no other channel was asked"


def test_a_message_goes_to_no_channel_that_it_was_not_wanted_on() -> None:
    texted = rules(scene(channels=(Channel.SMS, Channel.WEBHOOK)))
    assert evaluate(item(), Facts(ANN, (by_address(),)), texted, NOON).reason == "address_bounced"
    second_hop = item(hop=1, channels=(Channel.SMS,))
    assert evaluate(second_hop, Facts(ANN, (by_address(),)), rules(), NOON).reason == "address_bounced"
    bare = item(address=Address(Channel.SMS, "+16502530000"))
    assert evaluate(bare, Facts(ANN, (by_address(),)), rules(), NOON).reason == "address_bounced"


def test_at_night_a_message_waits_for_the_morning() -> None:
    decision = evaluate(item(), Facts(ANN), rules(), NIGHT)
    assert (decision.action, decision.reason) == (Action.DEFER, "quiet_hours")
    assert decision.until is not None
    assert MORNING <= decision.until < MORNING + timedelta(minutes=30)
    assert decision.cap_date == ""
    assert outcomes(decision)[-1] == (Gate.QUIET_HOURS, GateOutcome.DEFERRED)


def test_messages_of_one_night_leave_at_different_moments_and_each_always_at_the_same() -> None:
    waiting = [item(intent_id=f"i{number}", hop=hop) for number in range(20) for hop in (0, 1)]
    moments = [evaluate(one, Facts(ANN), rules(), NIGHT).until for one in waiting]
    assert len(set(moments)) == len(moments)
    assert moments == [evaluate(one, Facts(ANN), rules(), NIGHT + timedelta(hours=3)).until for one in waiting]


def test_a_message_is_judged_by_the_users_clock() -> None:
    tokyo = replace(ANN, time_zone="Asia/Tokyo")
    decision = evaluate(item(), Facts(tokyo), rules(), NIGHT)
    assert decision.action is Action.SEND_NOW
    assert decision.cap_date == "2026-06-02"


def test_a_zone_that_is_none_gives_the_default_and_a_warning() -> None:
    decision = evaluate(item(), Facts(replace(ANN, time_zone="Asia/Nowhere")), rules(), NOON)
    inputs = entry(decision, Gate.QUIET_HOURS).inputs
    assert (inputs["zone"], inputs["zone_source"], inputs["warning"]) == ("UTC", "default", "zone_unknown")


@pytest.mark.parametrize("category", [Category.VERIFICATION, Category.ALERT])
def test_codes_and_alerts_may_disturb_at_night(category: Category) -> None:
    decision = evaluate(item(), Facts(ANN), rules(scene(category)), NIGHT)
    assert decision.action is Action.SEND_NOW
    assert outcomes(decision)[2] == (Gate.QUIET_HOURS, GateOutcome.EXEMPT)


def test_what_expires_before_the_morning_is_dropped_at_once() -> None:
    decision = evaluate(item(expires_at=MORNING), Facts(ANN), rules(), NIGHT)
    assert (decision.action, decision.reason) == (Action.DROP, "expires_before_quiet_end")


def test_what_expires_soon_after_the_night_still_leaves_in_time() -> None:
    expires_at = MORNING + timedelta(minutes=2)
    decision = evaluate(item(expires_at=expires_at), Facts(ANN), rules(), NIGHT)
    assert decision.until is not None
    assert MORNING <= decision.until < expires_at


@pytest.mark.parametrize(
    ("late", "action"),
    [
        (timedelta(minutes=0), Action.SEND_NOW),
        (timedelta(minutes=15), Action.SEND_NOW),
        (timedelta(minutes=16), Action.DEFER),
        (timedelta(hours=14), Action.DEFER),
    ],
)
def test_a_message_is_deferred_once_unless_it_is_late_by_our_own_fault(late: timedelta, action: Action) -> None:
    # Its zone changed meanwhile, or an outage kept it until the next night: 23:00 is no time to wake anybody.
    again = item(deferrals=1, planned_at=NIGHT - late)
    decision = evaluate(again, Facts(ANN), rules(), NIGHT)
    assert decision.action is action
    if action is Action.SEND_NOW:
        assert entry(decision, Gate.QUIET_HOURS).reason == reasons.RELEASED_AFTER_DEFERRAL


def test_a_late_message_that_expires_in_this_night_is_dropped() -> None:
    late = item(deferrals=1, planned_at=NIGHT - timedelta(hours=14), expires_at=NIGHT + timedelta(hours=1))
    assert evaluate(late, Facts(ANN), rules(), NIGHT).reason == "expires_before_quiet_end"


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        (Usage(user=2, channel=1), ""),
        (Usage(user=3, channel=0), "user_daily_cap"),
        (Usage(user=2, channel=2), "user_channel_daily_cap"),
        (Usage(user=3, channel=2, own=True), ""),
    ],
)
def test_a_user_gets_no_more_in_a_day_than_the_caps_allow(usage: Usage, reason: str) -> None:
    decision = evaluate(item(), Facts(ANN, usage={Channel.SMS: usage}), rules(), NOON)
    assert decision.reason == reason
    assert decision.sends is (not reason)


def test_codes_count_on_no_cap() -> None:
    decision = evaluate(
        item(), Facts(ANN, usage={Channel.SMS: Usage(9, 9)}), rules(scene(Category.VERIFICATION)), NOON
    )
    assert decision.action is Action.SEND_NOW
    assert decision.cap_date == ""
    assert outcomes(decision)[3] == (Gate.FREQUENCY, GateOutcome.EXEMPT)


SPENT = {Channel.SMS: 1_000}


def test_a_spent_channel_hands_over_to_its_fallback() -> None:
    decision = evaluate(item(), Facts(ANN, quota_used=SPENT), rules(), NOON)
    assert (decision.action, decision.reason) == (Action.FALL_BACK, "channel_quota_spent")
    assert (decision.channel, decision.address) == (Channel.EMAIL, "ann@example.com")
    assert decision.cap_date == "2026-06-01"
    assert outcomes(decision)[-1] == (Gate.CHANNEL_QUOTA, GateOutcome.FELL_BACK)


def test_the_trace_tells_the_counts_of_the_channel_by_which_it_really_leaves() -> None:
    usage = {Channel.SMS: Usage(user=2, channel=1), Channel.EMAIL: Usage(user=2, channel=0)}
    facts = Facts(ANN, usage=usage, quota_used={**SPENT, Channel.EMAIL: 70})
    decision = evaluate(item(), facts, rules(quota={Channel.EMAIL: 500}), NOON)
    assert (decision.action, decision.channel) == (Action.FALL_BACK, Channel.EMAIL)
    assert entry(decision, Gate.CHANNEL_QUOTA).inputs == {
        "channel": "sms",
        "count": "1000",
        "limit": "1000",
        "fallback": "email",
        "fallback_count": "70",
        "fallback_limit": "500",
        "fallback_channel_count": "0",
        "fallback_channel_limit": "5",
    }
    full = replace(facts, usage={Channel.EMAIL: Usage(user=2, channel=5)})
    refused = entry(evaluate(item(), full, rules(), NOON), Gate.CHANNEL_QUOTA).inputs
    assert (refused["fallback_channel_count"], refused["fallback_channel_limit"]) == ("5", "5")


@pytest.mark.parametrize(
    ("facts", "refusal"),
    [
        (Facts(replace(ANN, addresses={Channel.SMS: "+16502530000"}), quota_used=SPENT), "no_address"),
        (Facts(ANN, (by_user(channel=Channel.EMAIL),), quota_used=SPENT), "user_unsubscribed"),
        (Facts(ANN, usage={Channel.EMAIL: Usage(user=2, channel=5)}, quota_used=SPENT), "user_channel_daily_cap"),
        (Facts(ANN, quota_used={**SPENT, Channel.EMAIL: 1_000}), "channel_quota_spent"),
    ],
)
def test_a_fallback_must_pass_the_gates_itself(facts: Facts, refusal: str) -> None:
    decision = evaluate(item(), facts, rules(), NOON)
    assert (decision.action, decision.reason) == (Action.DROP, "channel_quota_spent")
    assert decision.trace[-1].inputs["fallback_refused"] == refusal
    assert decision.cap_date == ""


def test_a_message_that_fell_back_does_not_fall_further() -> None:
    decision = evaluate(item(hop=1, channels=(Channel.SMS,)), Facts(ANN, quota_used=SPENT), rules(), NOON)
    assert decision.action is Action.DROP
    assert entry(decision, Gate.CHANNEL_QUOTA).inputs["fallback_refused"] == "none_left"


def test_a_spent_channel_without_a_fallback_says_so() -> None:
    facts = Facts(ANN, quota_used={Channel.EMAIL: 1_000})
    decision = evaluate(item(channels=(Channel.EMAIL,)), facts, rules(), NOON)
    assert entry(decision, Gate.CHANNEL_QUOTA).inputs["fallback_refused"] == "none_configured"


# --- scheduled --------------------------------------------------------------------------------------------------

MARCH = datetime(2026, 3, 7, 17, tzinfo=UTC)
NEW_YORKER = replace(ANN, time_zone="America/New_York")


def test_eight_the_next_morning_is_eight_by_the_recipients_clock_though_clocks_change_that_night() -> None:
    asked = item(send_at_local=LocalTime(time(8)), submitted_at=MARCH)
    decision = evaluate(asked, Facts(NEW_YORKER), rules(), MARCH)
    assert (decision.action, decision.reason, decision.held_by) == (Action.DEFER, "scheduled", Gate.SCHEDULE)
    assert decision.until == datetime(2026, 3, 8, 12, tzinfo=UTC)
    assert (decision.channel, decision.address, decision.cap_date) == (None, "", "")
    assert outcomes(decision) == [(Gate.SCHEDULE, GateOutcome.DEFERRED)]


def test_a_scheduled_message_is_judged_by_every_gate_when_its_moment_has_come() -> None:
    at_eight = datetime(2026, 3, 8, 12, tzinfo=UTC)
    due = item(send_at_local=LocalTime(time(8)), submitted_at=MARCH, scheduled=True, planned_at=at_eight)
    decision = evaluate(due, Facts(NEW_YORKER), rules(), at_eight)
    assert decision.action is Action.SEND_NOW
    assert [gate for gate, _ in outcomes(decision)] == [Gate.SCHEDULE, *COMMON]
    # It was held by the schedule, not by a night: quiet hours may still defer it.
    late = evaluate(replace(due, planned_at=NIGHT), Facts(ANN), rules(), NIGHT)
    assert (late.action, late.held_by) == (Action.DEFER, Gate.QUIET_HOURS)


def test_a_moment_counts_from_when_it_was_asked_for_however_late_it_is_judged() -> None:
    submitted, judged = NOON.replace(hour=7), NOON.replace(hour=9)  # an outage lay between
    asked = item(send_at_local=LocalTime(time(8)), submitted_at=submitted)
    decision = evaluate(asked, Facts(ANN), rules(), judged)
    assert decision.action is Action.SEND_NOW
    assert entry(decision, Gate.SCHEDULE).inputs["send_at"] == "2026-06-01T08:00:00+00:00"


@pytest.mark.parametrize(
    ("ahead", "action"),
    [(timedelta(seconds=1), Action.DEFER), (timedelta(0), Action.SEND_NOW), (timedelta(days=-1), Action.SEND_NOW)],
)
def test_a_message_waits_for_its_moment_and_not_for_one_that_is_over(ahead: timedelta, action: Action) -> None:
    decision = evaluate(item(send_at=NOON + ahead), Facts(ANN), rules(), NOON)
    assert decision.action is action
    assert decision.until == (NOON + ahead if action is Action.DEFER else None)


def test_what_expires_before_its_moment_is_dropped_at_once() -> None:
    asked = item(send_at=NOON + timedelta(hours=2), expires_at=NOON + timedelta(hours=2))
    decision = evaluate(asked, Facts(ANN), rules(), NOON)
    assert (decision.action, decision.reason) == (Action.DROP, "expires_before_send_at")


# --- gradual release --------------------------------------------------------------------------------------------


def test_a_scene_is_switched_on_for_a_share_of_users_and_always_the_same() -> None:
    half, more = rules(scene(share=0.5)), rules(scene(share=0.7))
    users = [item(user_id=f"u{number}") for number in range(400)]
    on = {one.user_id for one in users if evaluate(one, Facts(ANN), half, NOON).sends}
    assert 140 < len(on) < 260
    assert on == {one.user_id for one in users if evaluate(one, Facts(ANN), half, NIGHT).reason != "not_released"}
    assert on < {one.user_id for one in users if evaluate(one, Facts(ANN), more, NOON).sends}
    off = next(one for one in users if one.user_id not in on)
    decision = evaluate(off, Facts(ANN), half, NOON)
    assert (decision.action, decision.reason) == (Action.DROP, "not_released")
    assert outcomes(decision) == [(Gate.RELEASE, GateOutcome.DROPPED)]


def test_each_scene_is_switched_on_for_a_share_of_users_of_its_own() -> None:
    users = [item(user_id=f"u{number}") for number in range(400)]

    def on(name: str) -> set[str]:
        law = rules(scene(share=0.5, name=name))
        return {one.user_id for one in users if evaluate(one, Facts(ANN), law, NOON).sends}

    assert 60 < len(on("order_shipped") & on("spring_sale")) < 140, "a quarter: who is in one may be out of the other"


# --- preferences ------------------------------------------------------------------------------------------------

SALE = scene(Category.MARKETING)
TEXTED_SALE = scene(Category.MARKETING, channels=(Channel.SMS,))


def yes(category: Category | None, channel: Channel | None) -> Preference:
    return Preference(category, channel, opt_in=True)


def no(category: Category | None, channel: Channel | None) -> Preference:
    return Preference(category, channel, opt_in=False)


@pytest.mark.parametrize(
    ("preferences", "reason"),
    [
        ([], ""),
        ([no(None, None)], "preference_opted_out"),
        ([no(Category.MARKETING, None)], "preference_opted_out"),
        ([no(None, Channel.SMS)], "preference_opted_out"),
        ([no(None, Channel.EMAIL)], ""),
        ([no(Category.ALERT, None)], ""),
        # The narrowest choice that fits counts, whichever way round.
        ([no(None, None), yes(None, Channel.SMS)], ""),
        ([yes(None, Channel.SMS), no(Category.MARKETING, None)], "preference_opted_out"),
        ([no(Category.MARKETING, None), yes(Category.MARKETING, Channel.SMS)], ""),
        ([no(Category.MARKETING, Channel.SMS), yes(None, None)], "preference_opted_out"),
    ],
)
def test_a_users_narrowest_choice_counts(preferences: list[Preference], reason: str) -> None:
    for order in (preferences, preferences[::-1]):
        decision = evaluate(item(), Facts(ANN, preferences=tuple(order)), rules(TEXTED_SALE), NOON)
        assert decision.reason == reason


def test_who_opted_out_of_marketing_and_into_it_by_email_after_all_gets_it_by_email() -> None:
    by_email = (no(Category.MARKETING, None), yes(Category.MARKETING, Channel.EMAIL))
    decision = evaluate(item(), Facts(ANN, preferences=by_email), rules(SALE), NOON)
    assert (decision.action, decision.channel) == (Action.SEND_NOW, Channel.EMAIL)
    inputs = entry(decision, Gate.SUPPRESSION).inputs
    assert (inputs["channel"], inputs["preference"], inputs["refused_sms"]) == (
        "email",
        "opt_in",
        "preference_opted_out",
    )
    newsletter = rules(scene(Category.MARKETING, opt_in=True))
    opted_in = evaluate(item(), Facts(ANN, preferences=by_email[1:]), newsletter, NOON)
    assert opted_in.channel is Channel.EMAIL
    assert entry(opted_in, Gate.SUPPRESSION).inputs["refused_sms"] == "opt_in_missing"


def test_a_code_heeds_only_a_choice_about_codes() -> None:
    code = rules(scene(Category.VERIFICATION))
    assert evaluate(item(), Facts(ANN, preferences=(no(None, None),)), code, NOON).sends
    own = Preference(Category.VERIFICATION, None, opt_in=False)
    assert evaluate(item(), Facts(ANN, preferences=(own,)), code, NOON).reason == "preference_opted_out"


def test_a_scene_that_needs_opting_in_reaches_only_who_did() -> None:
    newsletter = rules(scene(Category.MARKETING, opt_in=True))
    wanted = Preference(Category.MARKETING, None, opt_in=True)
    assert evaluate(item(), Facts(ANN), newsletter, NOON).reason == "opt_in_missing"
    assert evaluate(item(), Facts(ANN, preferences=(wanted,)), newsletter, NOON).sends


def test_opting_in_never_lifts_a_suppression() -> None:
    wanted = Preference(Category.NOTIFICATION, Channel.SMS, opt_in=True)
    assert evaluate(item(), Facts(ANN, (by_user(),), (wanted,)), rules(), NOON).reason == "user_unsubscribed"


def test_nothing_falls_back_to_a_channel_that_the_user_opted_out_of() -> None:
    facts = Facts(ANN, preferences=(Preference(None, Channel.EMAIL, opt_in=False),), quota_used=SPENT)
    decision = evaluate(item(), facts, rules(), NOON)
    assert entry(decision, Gate.CHANNEL_QUOTA).inputs["fallback_refused"] == "preference_opted_out"


# --- digest -----------------------------------------------------------------------------------------------------

GATHERING = scene(digest=Digest(timedelta(hours=1), max_items=None))


def test_a_message_of_a_gathering_scene_waits_for_its_digest_and_counts_on_nothing() -> None:
    decision = evaluate(item(), Facts(ANN), rules(GATHERING), NOON)
    assert (decision.action, decision.reason, decision.held_by) == (Action.DEFER, "gathered", Gate.DIGEST)
    assert decision.until == NOON + timedelta(hours=1)
    assert decision.cap_date == ""
    # At night too: it is the digest that is judged by the hour.
    assert evaluate(item(), Facts(ANN), rules(GATHERING), NIGHT).held_by is Gate.DIGEST


def test_a_digest_itself_is_judged_like_any_message() -> None:
    decision = evaluate(item(gathered=True), Facts(ANN), rules(GATHERING), NOON)
    assert decision.action is Action.SEND_NOW
    assert entry(decision, Gate.DIGEST).reason == "already_gathered"


@pytest.mark.parametrize("life", [timedelta(minutes=5), timedelta(hours=1)])
def test_what_would_expire_before_the_digest_leaves_goes_by_itself(life: timedelta) -> None:
    decision = evaluate(item(expires_at=NOON + life), Facts(ANN), rules(GATHERING), NOON)
    assert decision.action is Action.SEND_NOW
    assert entry(decision, Gate.DIGEST).reason == "expires_before_digest"


# --- further limits ---------------------------------------------------------------------------------------------


def test_several_quiet_windows_are_one_deferral() -> None:
    windows = (QuietWindow(time(22), time(8)), QuietWindow(time(8), time(9)))
    law = rules(scene(policy=replace(POLICY, quiet_hours=windows)))
    decision = evaluate(item(), Facts(ANN), law, NIGHT)
    assert decision.until is not None
    assert MORNING + timedelta(hours=1) <= decision.until < MORNING + timedelta(hours=1, minutes=30)
    assert entry(decision, Gate.QUIET_HOURS).inputs["window"] == "22:00-08:00,08:00-09:00"


def test_the_zone_that_is_kept_is_the_one_that_counts() -> None:
    tokyo = replace(ANN, time_zone="Asia/Tokyo")
    decision = evaluate(item(), Facts(tokyo, kept_zone="UTC"), rules(), NIGHT)
    assert decision.action is Action.DEFER
    assert entry(decision, Gate.QUIET_HOURS).inputs["zone_source"] == "kept"


@pytest.mark.parametrize(
    ("counts", "reason"), [((), ""), ((1, 4), ""), ((2, 4), "user_window_cap"), ((0, 5), "user_window_cap")]
)
def test_a_user_gets_no_more_within_a_sliding_window_than_the_caps_allow(counts: tuple[int, ...], reason: str) -> None:
    caps = (WindowCap(2, timedelta(days=7)), WindowCap(5, timedelta(days=30)))
    law = rules(scene(Category.MARKETING, policy=replace(POLICY, user_window_caps=caps)))
    decision = evaluate(item(), Facts(ANN, usage={Channel.SMS: Usage(windows=counts)}), law, NOON)
    assert decision.reason == reason
    assert entry(decision, Gate.FREQUENCY).inputs["window_limit"] == "2,5"
    own = evaluate(item(), Facts(ANN, usage={Channel.SMS: Usage(own=True, windows=counts)}), law, NOON)
    assert own.sends


def test_a_cap_of_none_within_a_window_lets_nothing_through() -> None:
    law = rules(scene(policy=replace(POLICY, user_window_caps=(WindowCap(0, timedelta(days=1)),))))
    assert evaluate(item(), Facts(ANN), law, NOON).reason == "user_window_cap"


def test_a_spent_tenant_sends_nothing_but_codes_and_what_has_its_place() -> None:
    policy = replace(POLICY, tenant_daily_quota=10)
    facts = Facts(ANN, tenant_used=10)
    decision = evaluate(item(), facts, rules(scene(policy=policy)), NOON)
    assert (decision.action, decision.reason) == (Action.DROP, "tenant_daily_quota")
    assert entry(decision, Gate.FREQUENCY).inputs["tenant_limit"] == "10"
    assert evaluate(item(), replace(facts, tenant_used=9), rules(scene(policy=policy)), NOON).sends
    assert evaluate(item(), facts, rules(scene(Category.VERIFICATION, policy)), NOON).sends
    held = replace(facts, usage={Channel.SMS: Usage(own=True)})
    assert evaluate(item(), held, rules(scene(policy=policy)), NOON).sends


def test_messages_of_one_moment_share_their_entries_and_nothing_else() -> None:
    bench = Bench(rules(), NOON)
    facts = [Facts(ANN), Facts(replace(ANN, time_zone="Asia/Tokyo")), Facts(ANN, usage={Channel.SMS: Usage(1, 1)})]
    together = [bench.evaluate(item(user_id=f"u{n}"), fact) for n, fact in enumerate(facts * 3)]
    assert together == [evaluate(item(user_id=f"u{n}"), fact, rules(), NOON) for n, fact in enumerate(facts * 3)]
    assert all(ours is theirs for ours, theirs in zip(together[0].trace, together[3].trace, strict=True))
