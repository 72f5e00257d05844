"""A replay against the truth: the same messages, lived through by the other policy from the beginning."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.catalog.rules import (
    Category,
    Channel,
    ChannelRules,
    Digest,
    Policy,
    QuietWindow,
    RetryRules,
    SceneRules,
    UnknownSend,
    WindowCap,
)
from services.policy.decision import (
    Action,
    Address,
    Decision,
    Facts,
    Gate,
    Item,
    Person,
    Preference,
    Rules,
    Suppression,
    SuppressionSource,
)
from services.policy.evaluate import before_counters, conclude
from services.policy.hindsight import Counts, DatedPreference, DatedSuppression, Dossier, parting_gate
from services.policy.places import Place, message_name, usage, ways
from services.policy.replay import Change, Course, Judgement, Replay, TooManyError

START = datetime(2026, 3, 2, 6, tzinfo=UTC)
END = START + timedelta(days=14)
USERS = ("ann", "bob", "eve")
DOSSIERS = {
    "ann": Dossier(
        Person(
            MappingProxyType({Channel.EMAIL: "ann@example.com", Channel.SMS: "+41446681800"}), time_zone="Asia/Tokyo"
        )
    ),
    "bob": Dossier(
        Person(MappingProxyType({Channel.SMS: "+41446681801", Channel.EMAIL: "bob@example.com"})),
        suppressions=(
            DatedSuppression(
                Suppression("s1", SuppressionSource.UNSUBSCRIBE, "bob"),
                START + timedelta(days=2),
                START + timedelta(days=3),
            ),
        ),
    ),
    "eve": Dossier(
        Person(MappingProxyType({Channel.EMAIL: "eve@example.com"}), time_zone="America/New_York"),
        preferences=(DatedPreference(Preference(Category.MARKETING, None, opt_in=False), START + timedelta(days=4)),),
    ),
}
POLICY = Policy(
    name="default",
    quiet_hours=(QuietWindow(time(22, 30), time(8)),),
    quiet_exempt_scenes=frozenset(),
    user_daily_cap=3,
    user_channel_daily_cap=MappingProxyType({Channel.SMS: 2}),
    user_window_caps=(),
    tenant_daily_quota=None,
    retry=RetryRules(4, 3.0, 300.0, 0.3),
    task_ttl=timedelta(days=1),
)


def rules(version: str, *, quota: int | None = None, scene: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Returns a policy with changes, as a replay asks for it."""
    policy = replace(POLICY, **changes)
    channels = {
        Channel.SMS: ChannelRules(Channel.SMS, 1, 1.0, quota, Channel.EMAIL),
        Channel.EMAIL: ChannelRules(Channel.EMAIL, 1, 1.0, None, None),
    }

    def rules_of(name: str, _template: str, _tenant: str) -> Rules:
        category = Category.MARKETING if name == "sale" else Category.NOTIFICATION
        values: dict[str, Any] = {
            "name": name,
            "category": category,
            "declared": True,
            "channels": None,
            "policy": policy,
            "template": name,
            "quiet_exempt": False,
            "unknown_send": UnknownSend.FAIL,
            "intent_key_window": None,
            "dedupe_window": None,
            "digest": None,
            "share": 1.0,
            "opt_in": False,
            **(scene or {}),
        }
        return Rules(SceneRules(**values), channels, "UTC", version)

    return rules_of


def gathering_orders(version: str, **changes: Any) -> Any:
    """Returns a policy by which orders are gathered for an hour."""
    digest = {"digest": Digest(timedelta(hours=1), None)}
    gathering, plain = rules(version, scene=digest, **changes), rules(version, **changes)
    return lambda name, *rest: (gathering if name == "order" else plain)(name, *rest)


@dataclass
class World:
    """Messages as a policy decides about them, one after the other, with counters that see what it let through."""

    rules_of: Any
    told: bool = True

    def live(self, items: Sequence[tuple[datetime, Item]]) -> list[tuple[Judgement, ...]]:
        """Judges messages, those that were deferred again when they are due."""
        numbers = itertools.count()
        queue = [(at, next(numbers), index, item) for index, (at, item) in enumerate(items)]
        heapq.heapify(queue)
        places: dict[str, dict[str, Place]] = {user: {} for user in USERS}
        courses: list[list[Judgement]] = [[] for _ in items]
        spent: dict[tuple[str, Channel], int] = {}
        tenant: dict[str, int] = {}
        while queue:
            at, _, index, item = heapq.heappop(queue)
            if at > END:
                break
            decision = self._decide(item, at, places[item.user_id], spent, tenant)
            courses[index].append(Judgement(item, decision))
            if decision.sends and decision.channel is not None:
                category = self.rules_of(item.scene, "", "acme").scene.category
                places[item.user_id][message_name(item)] = Place(at, decision.cap_date, decision.channel, category)
                day = at.date().isoformat()
                spent[day, decision.channel] = spent.get((day, decision.channel), 0) + 1
                tenant[day] = tenant.get(day, 0) + 1
            elif decision.until is not None:
                again = replace(
                    item,
                    planned_at=decision.until,
                    deferrals=item.deferrals + (decision.held_by is Gate.QUIET_HOURS),
                    scheduled=item.scheduled or decision.held_by is Gate.SCHEDULE,
                    gathered=item.gathered or decision.held_by is Gate.DIGEST,
                )
                heapq.heappush(queue, (decision.until, next(numbers), index, again))
        self.places = places
        return [tuple(course) for course in courses if course]

    def _decide(
        self,
        item: Item,
        at: datetime,
        places: dict[str, Place],
        spent: dict[tuple[str, Channel], int],
        tenant: dict[str, int],
    ) -> Decision:
        day = at.date().isoformat()
        facts = DOSSIERS[item.user_id].at(at)
        judged = before_counters(item, facts, self.rules_of(item.scene, "", "acme"), at)
        if isinstance(judged, Decision):
            return judged
        records = list(places.values())
        counted = replace(
            facts,
            usage={channel: usage(judged, channel, Counts(), records) for channel in ways(judged)},
            quota_used={channel: spent.get((day, channel), 0) for channel in ways(judged)},
            tenant_used=tenant.get(day, 0),
        )
        return conclude(judged, counted)


def replayed(
    history: list[tuple[Judgement, ...]], places: dict[str, dict[str, Place]], rules_of: Any, most: int = 10_000
) -> list[Change]:
    replay = Replay(rules_of, most)
    changes: list[Change] = []
    for judgements in sorted(history, key=lambda course: course[0].decision.decided_at):
        user = judgements[0].item.user_id
        changes += replay.run(Course(judgements, DOSSIERS[user], places[user]))
    changes += replay.finish(END)
    return changes


def outcome(judgements: tuple[Judgement, ...]) -> tuple[Any, ...]:
    """Returns what became of a message in a world."""
    last = judgements[-1].decision
    return last.action, last.reason, last.channel if last.sends else None


moments = st.integers(0, 9 * 24 * 60).map(lambda minutes: START + timedelta(minutes=minutes))
messages = st.lists(
    st.tuples(moments, st.sampled_from(USERS), st.sampled_from(("order", "sale")), st.booleans()),
    min_size=1,
    max_size=40,
    unique_by=lambda entry: entry[0],
)
policies = st.fixed_dictionaries(
    {
        "user_daily_cap": st.sampled_from([None, 1, 2, 3, 5]),
        "user_channel_daily_cap": st.sampled_from([{}, {Channel.SMS: 1}, {Channel.EMAIL: 2}]).map(MappingProxyType),
        "user_window_caps": st.sampled_from(
            [
                (),
                (WindowCap(2, timedelta(days=7)),),
                (WindowCap(3, timedelta(days=2)), WindowCap(4, timedelta(days=5))),
            ]
        ),
        "quiet_hours": st.sampled_from(
            [
                (),
                (QuietWindow(time(22, 30), time(8)),),
                (QuietWindow(time(12), time(14)), QuietWindow(time(20), time(6))),
            ]
        ),
        "tenant_daily_quota": st.sampled_from([None, 4]),
        "quota": st.sampled_from([None, 2]),
    }
)


def items_of(drawn: Sequence[tuple[datetime, str, str, bool]]) -> list[tuple[datetime, Item]]:
    return [
        (
            at,
            Item(
                intent_id=f"i{number}",
                hop=0,
                tenant="acme",
                user_id=user,
                scene=scene,
                expires_at=at + timedelta(hours=20),
                send_at=at + timedelta(hours=3) if later else None,
                submitted_at=at,
            ),
        )
        for number, (at, user, scene, later) in enumerate(sorted(drawn))
    ]


@given(drawn=messages, policy=policies)
@settings(deadline=None, max_examples=60)
def test_the_same_policy_changes_nothing(drawn: Any, policy: dict[str, Any]) -> None:
    world = World(rules("a", **policy))
    history = world.live(items_of(drawn))
    assert replayed(history, world.places, rules("b", **policy)) == []


@given(drawn=messages, policy=policies)
@settings(deadline=None, max_examples=60)
def test_nor_does_it_when_the_records_are_lost_and_the_history_comes_in_another_order(
    drawn: Any, policy: dict[str, Any]
) -> None:
    history = World(rules("a", **policy)).live(items_of(drawn))
    nothing: dict[str, dict[str, Place]] = {user: {} for user in USERS}
    replay = Replay(rules("b", **policy), 10_000)
    changes = [
        change
        for judgements in reversed(history)
        for change in replay.run(Course(judgements, DOSSIERS[judgements[0].item.user_id], nothing["ann"]))
    ]
    assert [*changes, *replay.finish(END)] == []


@given(drawn=messages, actual=policies, other=policies)
@settings(deadline=None, max_examples=150)
def test_another_policy_decides_as_if_it_had_been_in_force_from_the_beginning(
    drawn: Any, actual: dict[str, Any], other: dict[str, Any]
) -> None:
    # Quotas are known as far as decisions were told them: see the test of their own.
    actual, other = ({**policy, "quota": None, "tenant_daily_quota": None} for policy in (actual, other))
    items = items_of(drawn)
    lived = World(rules("a", **actual))
    history = lived.live(items)
    truth = {course[0].item.intent_id: course for course in World(rules("b", **other)).live(items)}
    changes = replayed(history, lived.places, rules("b", **other))
    assert len({change.item.intent_id for change in changes}) == len(changes), "a message is told once"
    changed = {change.item.intent_id for change in changes}
    for course in history:
        intent_id = course[0].item.intent_id
        if intent_id not in changed:
            assert outcome(course) == outcome(truth[intent_id])
    for change in changes:
        wanted = [judgement.decision for judgement in truth[change.item.intent_id]]
        decision = next(found for found in wanted if found.decided_at == change.other.decided_at)
        assert parting_gate(decision, change.other) is None


def test_quotas_are_counted_in_the_world_of_the_other_policy() -> None:
    at = START + timedelta(hours=4)
    items = [
        (
            at + timedelta(minutes=number),
            Item(f"i{number}", 0, "acme", "bob", "order", expires_at=END, channels=(Channel.SMS,)),
        )
        for number in range(5)
    ]
    free: dict[str, Any] = {"user_daily_cap": None, "user_channel_daily_cap": MappingProxyType({})}
    lived = World(rules("a", quota=2, **free))
    history = lived.live(items)
    assert [outcome(course)[0] for course in history] == [Action.SEND_NOW] * 2 + [Action.FALL_BACK] * 3
    changes = replayed(history, lived.places, rules("b", quota=3, **free))
    assert [(change.item.intent_id, change.other.action, change.gate) for change in changes] == [
        ("i2", Action.SEND_NOW, Gate.CHANNEL_QUOTA)
    ]
    none = replayed(history, lived.places, rules("b", quota=None, tenant_daily_quota=4, **free))
    assert [change.other.reason for change in none] == ["", "", "tenant_daily_quota"]


def test_a_place_gained_counts_though_it_was_judged_a_moment_after_what_is_told_later() -> None:
    """Tasks are told in the order in which they were made; replicas may have judged them in another one."""
    at = START + timedelta(hours=4)
    items = [(at + timedelta(minutes=n), Item(f"i{n}", 0, "acme", "ann", "order", expires_at=END)) for n in range(5)]
    free: dict[str, Any] = {"quiet_hours": (), "user_channel_daily_cap": MappingProxyType({})}
    lived = World(rules("a", user_daily_cap=3, **free))
    *sent, fourth, fifth = lived.live(items)
    replay = Replay(rules("b", user_daily_cap=4, **free), 10)
    changes = [
        change
        for judgements in (*sent, fifth, fourth)
        for change in replay.run(Course(judgements, DOSSIERS["ann"], lived.places["ann"]))
    ]
    assert [(change.item.intent_id, change.other.action) for change in changes] == [("i4", Action.SEND_NOW)]


def test_a_scene_that_is_gathered_leaves_once_in_the_world_of_the_other_policy() -> None:
    at = START + timedelta(hours=4)
    items = [
        (at + timedelta(minutes=number), Item(f"i{number}", 0, "acme", "bob", "order", expires_at=END))
        for number in range(3)
    ]
    later = (at + timedelta(hours=3), Item("i9", 0, "acme", "bob", "sale", expires_at=END))
    lived = World(rules("a"))
    history = lived.live([*items, later])

    changes = replayed(history, lived.places, gathering_orders("b", user_daily_cap=2))
    # The three are one message: by a cap of 2 the sale is the second, which it was not by a cap of 3.
    assert [(change.item.intent_id, change.other.reason) for change in changes] == [
        ("i0", "gathered"), ("i1", "gathered"), ("i2", "gathered"), ("i9", "")
    ]  # fmt: skip


def test_a_digest_that_was_sent_is_one_message_or_its_parts() -> None:
    at = START + timedelta(hours=4)
    parts = [(at + timedelta(minutes=n), Item(f"i{n}", 0, "acme", "bob", "order", expires_at=END)) for n in range(2)]
    history = [course[:1] for course in World(gathering_orders("a")).live(parts)]
    assert {course[0].decision.held_by for course in history} == {Gate.DIGEST}
    whole = (at + timedelta(hours=1), Item("d0", 0, "acme", "bob", "order", expires_at=END, gathered=True))
    later = (at + timedelta(hours=2), Item("i9", 0, "acme", "bob", "sale", expires_at=END))
    history += World(gathering_orders("a")).live([whole, later])
    nothing: dict[str, dict[str, Place]] = {user: {} for user in USERS}
    assert replayed(history, nothing, gathering_orders("b")) == []
    # Without the digest its two parts left, and with a cap of 2 nothing after them; the digest itself did not.
    changes = replayed(history, nothing, rules("b", user_daily_cap=2))
    assert [(change.item.intent_id, change.other.reason) for change in changes] == [
        ("i0", ""), ("i1", ""), ("i9", "user_daily_cap")
    ]  # fmt: skip


def test_what_raced_with_a_judgement_is_taken_as_it_was_seen() -> None:
    at = START + timedelta(hours=4)
    item = Item("i0", 0, "acme", "bob", "order", expires_at=END)
    # Both were stored in the instant of the judgement; the first was seen, and the second was not.
    suppression = Suppression("s9", SuppressionSource.OPERATOR, "bob")
    for seen in (True, False):
        known = Facts(DOSSIERS["bob"].person, (suppression,) if seen else ())
        judged = before_counters(item, known, rules("a")("order", "", "acme"), at)
        decision = judged if isinstance(judged, Decision) else conclude(judged, known)
        moment = at + timedelta(milliseconds=5 if seen else -5)
        dossier = Dossier(DOSSIERS["bob"].person, (DatedSuppression(suppression, moment, None),))
        replay = Replay(rules("b"), 10)
        assert list(replay.run(Course((Judgement(item, decision),), dossier, {}))) == []


@pytest.mark.parametrize("field", ["time_zone", "addresses"])
def test_a_profile_that_changed_since_is_no_change_of_the_policy(field: str) -> None:
    item = Item("i0", 0, "acme", "ann", "order", expires_at=END)
    at = START + timedelta(hours=12)  # 03:00 in Tokyo
    lived = World(rules("a"))
    history = lived.live([(at, item)])
    assert history[0][0].decision.action is Action.DEFER
    changed: Any = {"time_zone": "UTC", "addresses": MappingProxyType({Channel.EMAIL: "new@example.com"})}[field]
    person = dataclasses.replace(DOSSIERS["ann"].person, **{field: changed})
    replay = Replay(rules("b"), 10)
    assert list(replay.run(Course(history[0], Dossier(person), {}))) == []
    assert Address(Channel.EMAIL, "new@example.com").value not in str(history)


def test_more_changes_than_may_be_kept_end_the_replay() -> None:
    items = [(START + timedelta(hours=4, minutes=n), Item(f"i{n}", 0, "acme", "bob", "order")) for n in range(3)]
    lived = World(rules("a"))
    history = lived.live(items)
    with pytest.raises(TooManyError):
        replayed(history, lived.places, rules("b", user_daily_cap=0), most=2)
