"""What holds for every message, every user and every policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.catalog.rules import Category, Channel, Digest, QuietWindow, SceneRules, WindowCap
from services.policy.decision import (
    Action,
    Address,
    Decision,
    Facts,
    Gate,
    GateOutcome,
    Item,
    LocalTime,
    Person,
    Preference,
    Rules,
    Suppression,
    SuppressionSource,
    Usage,
)
from services.policy.evaluate import Bench, evaluate
from services.policy.gates import find_preference, find_suppression

from .world import POLICY, item, rules, scene

CHANNELS = st.sampled_from([Channel.SMS, Channel.EMAIL, Channel.WEBHOOK])
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(  # noqa: DTZ001 - the zone follows
    lambda moment: moment.replace(tzinfo=UTC)
)
ZONES = st.sampled_from(["", "America/New_York", "Asia/Kolkata", "Asia/Nowhere"])
PEOPLE = st.builds(Person, addresses=st.dictionaries(CHANNELS, st.sampled_from(["a", "b"])), time_zone=ZONES)
SUPPRESSIONS = st.builds(
    Suppression,
    suppression_id=st.uuids().map(str),
    source=st.sampled_from(SuppressionSource),
    user_id=st.sampled_from(["ann", "bob"]),
    address=st.none() | st.builds(Address, CHANNELS, st.sampled_from(["a", "b"])),
    channel=st.none() | CHANNELS,
    category=st.none() | st.sampled_from(Category),
)
PREFERENCES = st.builds(
    Preference, category=st.none() | st.sampled_from(Category), channel=st.none() | CHANNELS, opt_in=st.booleans()
)
COUNTS = st.integers(0, 4)
# Every policy below has two windows, so that the counts fit whichever is asked.
USAGES = st.builds(
    Usage, user=COUNTS, channel=COUNTS, own=st.booleans(), windows=st.just(()) | st.tuples(COUNTS, COUNTS)
)
FACTS = st.builds(
    Facts,
    person=PEOPLE,
    suppressions=st.lists(SUPPRESSIONS, max_size=2).map(tuple),
    preferences=st.lists(PREFERENCES, max_size=2).map(tuple),
    usage=st.dictionaries(CHANNELS, USAGES),
    quota_used=st.dictionaries(CHANNELS, st.integers(0, 3)),
    tenant_used=COUNTS,
    kept_zone=ZONES,
)
TIMES = st.integers(0, 23).map(time)
ITEMS = st.builds(
    item,
    hop=st.integers(0, 1),
    channels=st.lists(CHANNELS, max_size=2, unique=True).map(tuple),
    expires_at=st.none() | MOMENTS,
    deferrals=st.integers(0, 2),
    planned_at=st.none() | MOMENTS,
    send_at=st.none() | MOMENTS,
    send_at_local=st.none() | st.builds(LocalTime, TIMES, st.none() | st.integers(0, 6)),
    submitted_at=st.none() | MOMENTS,
    scheduled=st.booleans(),
    gathered=st.booleans(),
)
WINDOWS = st.builds(QuietWindow, TIMES, TIMES, st.frozensets(st.integers(0, 6), min_size=1)).filter(
    lambda window: window.start != window.end
)
CAPS = st.none() | COUNTS
POLICIES = st.builds(
    replace,
    st.just(POLICY),
    quiet_hours=st.lists(WINDOWS, max_size=2).map(tuple),
    user_daily_cap=CAPS,
    user_channel_daily_cap=st.dictionaries(CHANNELS, COUNTS),
    user_window_caps=st.tuples(COUNTS, COUNTS).map(
        lambda messages: (WindowCap(messages[0], timedelta(days=7)), WindowCap(messages[1], timedelta(days=30)))
    ),
    tenant_daily_quota=CAPS,
)
SCENES = st.builds(
    scene,
    category=st.sampled_from(Category),
    policy=POLICIES,
    channels=st.none() | st.lists(CHANNELS, min_size=1, unique=True).map(tuple),
    digest=st.none() | st.builds(Digest, st.timedeltas(timedelta(minutes=1), timedelta(days=1)), st.none()),
    share=st.sampled_from([0.0, 0.5, 1.0, 1.0]),
    opt_in=st.booleans(),
)
RULES = st.builds(
    lambda rules_scene, quota: rules(rules_scene, quota=quota), SCENES, st.dictionaries(CHANNELS, st.integers(0, 3))
)
Knob = Callable[[Rules, Callable[[Any], Any]], Rules]
HOLDING = {GateOutcome.DROPPED, GateOutcome.DEFERRED}


@given(ITEMS, FACTS, RULES, MOMENTS)
def test_the_same_input_gives_the_same_decision(asked: Item, facts: Facts, law: Rules, now: datetime) -> None:
    assert evaluate(asked, facts, law, now) == evaluate(asked, facts, law, now)


@given(st.lists(st.tuples(ITEMS, FACTS), min_size=2, max_size=6), RULES, MOMENTS)
def test_a_message_is_judged_the_same_whoever_was_judged_before_it(
    messages: list[tuple[Item, Facts]], law: Rules, now: datetime
) -> None:
    bench = Bench(law, now)
    for asked, facts in messages:
        assert bench.evaluate(asked, facts) == evaluate(asked, facts, law, now)


@given(ITEMS, FACTS, RULES, MOMENTS)
def test_gates_are_asked_in_the_documented_order_until_one_holds_the_message(
    asked: Item, facts: Facts, law: Rules, now: datetime
) -> None:
    decision = evaluate(asked, facts, law, now)
    documented = [
        Gate.SCHEDULE,
        Gate.RELEASE,
        Gate.CHANNEL,
        Gate.SUPPRESSION,
        Gate.DIGEST,
        Gate.QUIET_HOURS,
        Gate.FREQUENCY,
        Gate.CHANNEL_QUOTA,
    ]
    unused = set()
    if asked.send_at is None and asked.send_at_local is None:
        unused.add(Gate.SCHEDULE)
    if law.scene.share == 1:
        unused.add(Gate.RELEASE)
    if law.scene.digest is None:
        unused.add(Gate.DIGEST)
    expected = [gate for gate in documented if gate not in unused]
    asked_gates = [entry.gate for entry in decision.trace]
    assert asked_gates == expected[: len(asked_gates)]
    assert all(entry.outcome not in HOLDING for entry in decision.trace[:-1])
    assert decision.sends is (decision.trace[-1].outcome not in HOLDING)
    assert not decision.sends or asked_gates == expected


@given(ITEMS, FACTS, RULES, MOMENTS)
def test_a_decision_carries_what_its_action_needs(asked: Item, facts: Facts, law: Rules, now: datetime) -> None:
    decision = evaluate(asked, facts, law, now)
    assert (decision.until is not None) is (decision.action is Action.DEFER)
    assert decision.until is None or decision.until > now
    assert decision.held_by is (decision.trace[-1].gate if decision.action is Action.DEFER else None)
    assert bool(decision.reason) is (decision.action is not Action.SEND_NOW)
    assert bool(decision.cap_date) is (decision.sends and law.scene.category is not Category.VERIFICATION)
    if decision.until is not None and asked.expires_at is not None:
        assert decision.until < asked.expires_at
    if decision.sends:
        assert decision.channel is not None
        assert facts.person.addresses[decision.channel] == decision.address


def tighter_caps(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    policy = law.scene.policy
    channel_caps = {**policy.user_channel_daily_cap}
    for channel, limit in draw(st.dictionaries(CHANNELS, COUNTS)).items():
        channel_caps[channel] = min(limit, channel_caps.get(channel, limit))
    return with_policy(law, user_daily_cap=tighter(policy.user_daily_cap, draw), user_channel_daily_cap=channel_caps)


def tighter_windows(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    caps = (replace(cap, messages=min(cap.messages, draw(COUNTS))) for cap in law.scene.policy.user_window_caps)
    return with_policy(law, user_window_caps=tuple(caps))


def tighter_tenant_quota(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    return with_policy(law, tenant_daily_quota=tighter(law.scene.policy.tenant_daily_quota, draw))


def more_quiet(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    return with_policy(law, quiet_hours=(*law.scene.policy.quiet_hours, draw(WINDOWS)))


def no_exemption(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    return replace(law, scene=replace(law.scene, quiet_exempt=False))


def smaller_share(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    return replace(law, scene=replace(law.scene, share=law.scene.share * draw(st.floats(0, 1))))


def gathering(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    digest = law.scene.digest or Digest(timedelta(hours=1), None)
    return replace(law, scene=replace(law.scene, digest=digest))


def smaller_quotas(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    channels = {
        name: replace(entry, daily_quota=tighter(entry.daily_quota, draw)) for name, entry in law.channels.items()
    }
    return replace(law, channels=channels)


def no_fallback(law: Rules, draw: Callable[[Any], Any]) -> Rules:
    return replace(law, channels={name: replace(entry, fallback=None) for name, entry in law.channels.items()})


def with_policy(law: Rules, **changes: Any) -> Rules:
    return replace(law, scene=replace(law.scene, policy=replace(law.scene.policy, **changes)))


def tighter(limit: int | None, draw: Callable[[Any], Any]) -> int:
    drawn: int = draw(COUNTS)
    return drawn if limit is None else min(limit, drawn)


# All that a policy can say but what changes the channel, as a scene that needs opting in does: see below.
KNOBS = [
    tighter_caps,
    tighter_windows,
    tighter_tenant_quota,
    more_quiet,
    no_exemption,
    smaller_share,
    gathering,
    smaller_quotas,
    no_fallback,
]


def never_lets_more_through(
    tighten: Knob, asked: Item, facts: Facts, law: Rules, now: datetime, data: st.DataObject
) -> None:
    if evaluate(asked, facts, tighten(law, data.draw), now).sends:
        assert evaluate(asked, facts, law, now).sends


@given(st.sampled_from(KNOBS), ITEMS, FACTS, RULES, MOMENTS, st.data())
def test_a_more_restrictive_policy_never_lets_more_through(
    tighten: Knob, asked: Item, facts: Facts, law: Rules, now: datetime, data: st.DataObject
) -> None:
    never_lets_more_through(tighten, asked, facts, law, now, data)


@pytest.mark.slow
@pytest.mark.parametrize("knob", KNOBS)
@settings(max_examples=200)
@given(asked=ITEMS, facts=FACTS, law=RULES, now=MOMENTS, data=st.data())
def test_no_single_knob_lets_more_through_when_it_is_tightened(
    knob: Knob, asked: Item, facts: Facts, law: Rules, now: datetime, data: st.DataObject
) -> None:
    never_lets_more_through(knob, asked, facts, law, now, data)


def lets_no_more_through_on_any_channel(stricter: Decision, asked: Item, facts: Facts, law: Rules) -> None:
    """A channel that is closed sends a message to the next one: there it would have been let through before, too."""
    if not stricter.sends:
        return
    (chosen,) = [Channel(entry.inputs["channel"]) for entry in stricter.trace if entry.gate is Gate.SUPPRESSION]
    alone = replace(law, scene=replace(law.scene, channels=(chosen,)))
    assert evaluate(replace(asked, channels=(chosen,)), facts, alone, stricter.decided_at).sends


@given(ITEMS, FACTS, RULES, MOMENTS)
def test_a_scene_that_needs_opting_in_lets_no_more_through_on_any_channel(
    asked: Item, facts: Facts, law: Rules, now: datetime
) -> None:
    stricter = evaluate(asked, facts, replace(law, scene=replace(law.scene, opt_in=True)), now)
    lets_no_more_through_on_any_channel(stricter, asked, facts, law)


@given(ITEMS, FACTS, RULES, MOMENTS, st.lists(SUPPRESSIONS, max_size=2))
def test_a_further_suppression_lets_no_more_through_on_any_channel(
    asked: Item, facts: Facts, law: Rules, now: datetime, more: list[Suppression]
) -> None:
    stricter = evaluate(asked, replace(facts, suppressions=(*facts.suppressions, *more)), law, now)
    lets_no_more_through_on_any_channel(stricter, asked, facts, law)


@given(ITEMS, FACTS, RULES, MOMENTS, st.lists(SUPPRESSIONS, max_size=2))
def test_a_further_suppression_of_the_user_on_every_channel_never_lets_more_through(
    asked: Item, facts: Facts, law: Rules, now: datetime, more: list[Suppression]
) -> None:
    everywhere = [replace(one, user_id="ann", address=None, channel=None) for one in more]
    if evaluate(asked, replace(facts, suppressions=(*facts.suppressions, *everywhere)), law, now).sends:
        assert evaluate(asked, facts, law, now).sends


@given(ITEMS, FACTS, RULES, MOMENTS)
def test_of_the_channels_in_question_the_first_is_chosen_that_nobody_wants_silent(
    asked: Item, facts: Facts, law: Rules, now: datetime
) -> None:
    entries = {entry.gate: entry for entry in evaluate(asked, facts, law, now).trace}
    silence = entries.get(Gate.SUPPRESSION)
    if silence is None:
        return
    order = [Channel(name) for name in entries[Gate.CHANNEL].inputs["order"].split(",")]
    reachable = [channel for channel in order if channel in facts.person.addresses]
    open_ways = [
        channel
        for channel in reachable
        if find_suppression(
            facts.suppressions,
            user_id="ann",
            address=Address(channel, facts.person.addresses[channel]),
            category=law.scene.category,
        )
        is None
        and wanted(facts, channel, law.scene)
    ]
    assert silence.inputs["channel"] == [*open_ways, reachable[0]][0]
    assert (silence.outcome is GateOutcome.PASSED) is bool(open_ways)
    refused = {name.removeprefix("refused_") for name in silence.inputs if name.startswith("refused_")}
    if open_ways:
        assert refused - {f"{name}_suppression_id" for name in refused} == set(
            reachable[: reachable.index(open_ways[0])]
        )


def wanted(facts: Facts, channel: Channel, scene_rules: SceneRules) -> bool:
    choice = find_preference(facts.preferences, channel=channel, category=scene_rules.category)
    return not scene_rules.opt_in if choice is None else choice.opt_in


@given(ITEMS, FACTS, RULES, MOMENTS, st.builds(Preference, st.sampled_from(Category), CHANNELS, st.just(value=False)))
def test_opting_out_of_a_category_and_channel_lets_no_more_through_on_any_channel(
    asked: Item, facts: Facts, law: Rules, now: datetime, choice: Preference
) -> None:
    others = (one for one in facts.preferences if (one.category, one.channel) != (choice.category, choice.channel))
    stricter = evaluate(asked, replace(facts, preferences=(*others, choice)), law, now)
    lets_no_more_through_on_any_channel(stricter, asked, facts, law)
