"""May this person be disturbed, now, here? The gates, their order, and that they are a function of their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from types import MappingProxyType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.catalog.rules import (
    Category,
    Channel,
    ChannelRules,
    Policy,
    QuietWindow,
    RetryRules,
    SceneRules,
    UnknownSend,
)
from services.policy import reasons
from services.policy.decision import (
    Action,
    Address,
    Decision,
    Facts,
    Gate,
    GateOutcome,
    Item,
    Person,
    Rules,
    Suppression,
    SuppressionSource,
    Usage,
)
from services.policy.evaluate import evaluate

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NIGHT = datetime(2026, 6, 1, 23, tzinfo=UTC)
MORNING = datetime(2026, 6, 2, 8, tzinfo=UTC)
ANN = Person({Channel.EMAIL: "ann@example.com", Channel.SMS: "+16502530000"}, locale="de-CH")
POLICY = Policy(
    name="default",
    quiet_hours=QuietWindow(time(22, 30), time(8)),
    quiet_exempt_scenes=frozenset(),
    user_daily_cap=3,
    user_channel_daily_cap=MappingProxyType({Channel.SMS: 2, Channel.EMAIL: 5}),
    retry=RetryRules(4, 3, 300, 0.3),
    task_ttl=timedelta(days=1),
)


def scene(category: Category = Category.NOTIFICATION, policy: Policy = POLICY, **changes: object) -> SceneRules:
    rules = SceneRules(
        name="order_shipped",
        category=category,
        declared=True,
        channels=None,
        policy=policy,
        template="order_shipped",
        quiet_exempt=category in {Category.VERIFICATION, Category.ALERT},
        unknown_send=UnknownSend.FAIL,
        intent_key_window=None,
    )
    return replace(rules, **changes)  # type: ignore[arg-type]  # each test names real fields


def rules(scene_rules: SceneRules | None = None, *, quota: Mapping[Channel, int] | None = None) -> Rules:
    fallbacks = {Channel.SMS: Channel.EMAIL}
    quotas = quota or {}
    channels = {
        channel: ChannelRules(channel, 1, 1, quotas.get(channel, 1_000), fallbacks.get(channel))
        for channel in (Channel.SMS, Channel.EMAIL, Channel.WEBHOOK)
    }
    return Rules(scene_rules or scene(), channels, "UTC", "hash")


def item(**changes: object) -> Item:
    plain = Item(intent_id="intent-1", hop=0, tenant="acme", user_id="ann", scene="order_shipped")
    return replace(plain, **changes)  # type: ignore[arg-type]  # each test names real fields


def outcomes(decision: Decision) -> list[tuple[Gate, GateOutcome]]:
    return [(entry.gate, entry.outcome) for entry in decision.trace]


def test_a_message_that_nothing_speaks_against_is_sent_and_every_gate_is_on_record() -> None:
    decision = evaluate(item(), Facts(ANN), rules(), NOON)
    assert decision.action is Action.SEND_NOW
    assert decision.reason == ""
    assert (decision.channel, decision.address, decision.locale) == (Channel.SMS, "+16502530000", "de-CH")
    assert decision.cap_date == "2026-06-01"
    assert outcomes(decision) == [(gate, GateOutcome.PASSED) for gate in Gate]
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
    decision = evaluate(item(), Facts(ANN, (suppression,)), rules(), NOON)
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


def test_at_night_a_message_waits_for_the_morning() -> None:
    decision = evaluate(item(), Facts(ANN), rules(), NIGHT)
    assert (decision.action, decision.reason) == (Action.DEFER, "quiet_hours")
    assert decision.until is not None
    assert MORNING <= decision.until < MORNING + timedelta(minutes=30)
    assert decision.cap_date == ""
    assert outcomes(decision)[-1] == (Gate.QUIET_HOURS, GateOutcome.DEFERRED)


def test_a_message_is_judged_by_the_users_clock() -> None:
    tokyo = replace(ANN, time_zone="Asia/Tokyo")
    decision = evaluate(item(), Facts(tokyo), rules(), NIGHT)
    assert decision.action is Action.SEND_NOW
    assert decision.cap_date == "2026-06-02"


def test_a_zone_that_is_none_gives_the_default_and_a_warning() -> None:
    decision = evaluate(item(), Facts(replace(ANN, time_zone="Asia/Nowhere")), rules(), NOON)
    inputs = decision.trace[2].inputs
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
        assert decision.trace[2].reason == reasons.RELEASED_AFTER_DEFERRAL


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


# --- what holds for every input ---------------------------------------------------------------------------------

CHANNELS = st.sampled_from([Channel.SMS, Channel.EMAIL, Channel.WEBHOOK])
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(  # noqa: DTZ001 - the zone follows
    lambda moment: moment.replace(tzinfo=UTC)
)
PEOPLE = st.builds(
    Person,
    addresses=st.dictionaries(CHANNELS, st.sampled_from(["a", "b"])),
    time_zone=st.sampled_from(["", "America/New_York", "Asia/Kolkata", "Asia/Nowhere"]),
)
SUPPRESSIONS = st.builds(
    Suppression,
    suppression_id=st.uuids().map(str),
    source=st.sampled_from(SuppressionSource),
    user_id=st.sampled_from(["ann", "bob"]),
    address=st.none() | st.builds(Address, CHANNELS, st.sampled_from(["a", "b"])),
    channel=st.none() | CHANNELS,
    category=st.none() | st.sampled_from(Category),
)
USAGES = st.builds(Usage, user=st.integers(0, 4), channel=st.integers(0, 4), own=st.booleans())
FACTS = st.builds(
    Facts,
    person=PEOPLE,
    suppressions=st.lists(SUPPRESSIONS, max_size=2).map(tuple),
    usage=st.dictionaries(CHANNELS, USAGES),
    quota_used=st.dictionaries(CHANNELS, st.integers(0, 3)),
)
ITEMS = st.builds(
    item,
    hop=st.integers(0, 1),
    channels=st.lists(CHANNELS, max_size=2, unique=True).map(tuple),
    expires_at=st.none() | MOMENTS,
    deferrals=st.integers(0, 2),
    planned_at=st.none() | MOMENTS,
)
HOURS = st.integers(0, 23).map(time)
WINDOWS = st.tuples(HOURS, HOURS).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: QuietWindow(*pair))
POLICIES = st.builds(
    replace,
    st.just(POLICY),
    quiet_hours=st.none() | WINDOWS,
    user_daily_cap=st.none() | st.integers(0, 4),
    user_channel_daily_cap=st.dictionaries(CHANNELS, st.integers(0, 4)),
)
SCENES = st.builds(
    scene,
    category=st.sampled_from(Category),
    policy=POLICIES,
    channels=st.none() | st.lists(CHANNELS, min_size=1, unique=True).map(tuple),
)
RULES = st.builds(
    lambda rules_scene, quota: rules(rules_scene, quota=quota), SCENES, st.dictionaries(CHANNELS, st.integers(0, 3))
)


@given(ITEMS, FACTS, RULES, MOMENTS)
def test_the_same_input_gives_the_same_decision(asked: Item, facts: Facts, law: Rules, now: datetime) -> None:
    assert evaluate(asked, facts, law, now) == evaluate(asked, facts, law, now)


@given(ITEMS, FACTS, RULES, MOMENTS)
def test_gates_are_asked_in_the_documented_order_until_one_holds_the_message(
    asked: Item, facts: Facts, law: Rules, now: datetime
) -> None:
    decision = evaluate(asked, facts, law, now)
    gates = [entry.gate for entry in decision.trace]
    assert gates == list(Gate)[: len(gates)]
    holding = {GateOutcome.DROPPED, GateOutcome.DEFERRED}
    assert all(entry.outcome not in holding for entry in decision.trace[:-1])
    assert decision.sends is (decision.trace[-1].outcome not in holding)
    assert decision.sends is (len(gates) == len(Gate) and decision.action is not Action.DROP)


@given(ITEMS, FACTS, RULES, MOMENTS)
def test_a_decision_carries_what_its_action_needs(asked: Item, facts: Facts, law: Rules, now: datetime) -> None:
    decision = evaluate(asked, facts, law, now)
    assert (decision.until is not None) is (decision.action is Action.DEFER)
    assert decision.until is None or decision.until > now
    assert bool(decision.reason) is (decision.action is not Action.SEND_NOW)
    if decision.sends:
        assert decision.channel is not None
        assert facts.person.addresses[decision.channel] == decision.address


@given(ITEMS, FACTS, RULES, MOMENTS, st.data())
def test_a_more_restrictive_policy_never_lets_more_through(
    asked: Item, facts: Facts, law: Rules, now: datetime, data: st.DataObject
) -> None:
    policy = law.scene.policy
    stricter = data.draw(st.integers(0, 4), "user cap")
    cap = stricter if policy.user_daily_cap is None else min(stricter, policy.user_daily_cap)
    channel_caps = {**policy.user_channel_daily_cap}
    for channel, limit in data.draw(st.dictionaries(CHANNELS, st.integers(0, 4)), "channel caps").items():
        channel_caps[channel] = min(limit, channel_caps.get(channel, limit))
    window = data.draw(WINDOWS, "window") if policy.quiet_hours is None else policy.quiet_hours
    strict_policy = replace(policy, user_daily_cap=cap, user_channel_daily_cap=channel_caps, quiet_hours=window)
    channels = {
        channel: replace(entry, daily_quota=min(entry.daily_quota or 0, data.draw(st.integers(0, 3))))
        for channel, entry in law.channels.items()
    }
    more = data.draw(st.lists(SUPPRESSIONS, max_size=2), "suppressions")
    strict_law = replace(law, scene=replace(law.scene, policy=strict_policy), channels=channels)
    strict_facts = replace(facts, suppressions=(*facts.suppressions, *more))
    assume(not any(usage.own for usage in facts.usage.values()))
    if evaluate(asked, strict_facts, strict_law, now).sends:
        assert evaluate(asked, facts, law, now).sends
