"""What was known of a recipient at an earlier moment, and what the decision of that moment saw. Pure.

A message that is judged once more, by another policy, must be judged by the same facts: else a profile that has
changed since, or two messages whose order nobody remembers, would look like a consequence of the other policy. What
the first judgement saw stands in its trace; what it did not look at is taken from the records, as of that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from services.catalog.rules import Category, Channel

from . import reasons
from .decision import Action, Address, Decision, Facts, Gate, GateEntry, GateOutcome, Person, Preference, Suppression
from .gates import REFUSED, REFUSED_BY, find_preference, find_suppression

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DatedSuppression:
    """A suppression, lifted or not, with the time in which it stood."""

    suppression: Suppression
    created_at: datetime
    lifted_at: datetime | None


@dataclass(frozen=True, slots=True)
class DatedPreference:
    """A choice as it is now, and since when."""

    preference: Preference
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Dossier:
    """What is known of a recipient, over time.

    Attributes:
        person: the profile and the last activity, as they are now.
        suppressions: of the user and the user's addresses, those that were lifted too.
        preferences: what the user chose; what was chosen before is not kept.
    """

    person: Person
    suppressions: tuple[DatedSuppression, ...] = ()
    preferences: tuple[DatedPreference, ...] = ()

    def at(self, moment: datetime) -> Facts:
        """Returns what stood at a moment, without any counts."""
        return Facts(
            person=self.person,
            suppressions=tuple(
                dated.suppression
                for dated in self.suppressions
                if dated.created_at <= moment and (dated.lifted_at is None or moment < dated.lifted_at)
            ),
            preferences=tuple(dated.preference for dated in self.preferences if dated.updated_at <= moment),
        )

    def as_seen(self, user_id: str, decision: Decision) -> Facts:
        """Returns what stood when a decision was made; where its trace tells what it saw, exactly that."""
        facts = self.at(decision.decided_at)
        person = self.person
        if decision.channel is not None and decision.address:
            addresses = {**person.addresses, decision.channel: decision.address}
            person = replace(person, addresses=MappingProxyType(addresses))
        facts = _with_zone(replace(facts, person=person), decision)
        entry = _entry(decision, Gate.SUPPRESSION)
        return facts if entry is None else self._with_silence(facts, user_id, decision, entry)

    def _with_silence(self, facts: Facts, user_id: str, decision: Decision, entry: GateEntry) -> Facts:
        """Corrects what raced with the judgement, or was chosen since: each channel answers as it did then."""
        category = Category(entry.inputs["category"])
        preferences = _with_choice_seen(facts.preferences, entry)
        suppressions = {suppression.suppression_id: suppression for suppression in facts.suppressions}
        standing = {dated.suppression.suppression_id: dated.suppression for dated in self.suppressions}
        for answer in (*_answers(entry), *_fallback_answer(decision, preferences, category)):
            if answer.suppression_id:
                if answer.suppression_id in standing:
                    suppressions[answer.suppression_id] = standing[answer.suppression_id]
                continue
            address = Address(answer.channel, _address_on(answer.channel, decision, facts.person))
            while found := find_suppression(
                suppressions.values(), user_id=user_id, address=address, category=category
            ):
                del suppressions[found[0].suppression_id]
            preferences = _choosing(preferences, answer, category)
        return replace(facts, suppressions=tuple(suppressions.values()), preferences=preferences)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the suppression gate said of one channel.

    Attributes:
        channel: the channel.
        suppression_id: the suppression that refused it; empty where none did.
        opt_in: what the user chose for it; None where no choice fitted.
    """

    channel: Channel
    suppression_id: str
    opt_in: bool | None


def _answers(entry: GateEntry) -> Iterator[_Answer]:
    """Yields what the suppression gate said of each channel that it was asked about."""
    inputs = entry.inputs
    chosen = {"opt_in": True, "opt_out": False}.get(inputs.get("preference", ""))
    yield _Answer(Channel(inputs["channel"]), inputs.get("suppression_id", ""), chosen)
    for channel in Channel:
        reason = inputs.get(REFUSED + channel)
        if reason is not None:
            opted_out = False if reason == reasons.PREFERENCE_OPTED_OUT else None
            yield _Answer(channel, inputs.get(REFUSED + channel + REFUSED_BY, ""), opted_out)


def _fallback_answer(decision: Decision, preferences: tuple[Preference, ...], category: Category) -> Iterator[_Answer]:
    """Yields what must have been said of the channel that took over: its own trace tells nothing of that."""
    channel = decision.channel
    if decision.action is Action.FALL_BACK and channel is not None:
        chosen = find_preference(preferences, channel=channel, category=category)
        yield _Answer(channel, "", None if chosen is None else True)


def _with_choice_seen(preferences: tuple[Preference, ...], entry: GateEntry) -> tuple[Preference, ...]:
    """Returns preferences with the one that the gate saw, as wide as it was: it may fit other channels too."""
    inputs = entry.inputs
    if "preference" not in inputs:
        return preferences
    category, channel = inputs["preference_category"], inputs["preference_channel"]
    seen = Preference(
        None if category == "all" else Category(category),
        None if channel == "all" else Channel(channel),
        inputs["preference"] == "opt_in",
    )
    return (*_without(preferences, seen.category, seen.channel), seen)


def _choosing(preferences: tuple[Preference, ...], answer: _Answer, category: Category) -> tuple[Preference, ...]:
    """Returns preferences by which a channel answers as it did."""
    channel = answer.channel
    found = find_preference(preferences, channel=channel, category=category)
    if (None if found is None else found.opt_in) is answer.opt_in:
        return preferences
    if answer.opt_in is None:
        return tuple(
            each for each in preferences if find_preference([each], channel=channel, category=category) is None
        )
    # The narrowest there is: it counts, whatever else was chosen.
    return (*_without(preferences, category, channel), Preference(category, channel, answer.opt_in))


def _without(
    preferences: tuple[Preference, ...], category: Category | None, channel: Channel | None
) -> tuple[Preference, ...]:
    return tuple(each for each in preferences if (each.category, each.channel) != (category, channel))


def _address_on(channel: Channel, decision: Decision, person: Person) -> str:
    if channel is decision.channel and decision.address:
        return decision.address
    return person.addresses.get(channel, "")


@dataclass(frozen=True, slots=True)
class Counts:
    """What the counters told a decision, as far as its trace says.

    Attributes:
        channel: the channel on which the counters were asked first; None where they were not.
        cap_date: the local date.
        user: messages on all channels on that date.
        on_channel: messages on that date, by channel: the first, and the one it fell back to.
        category: the category of the message.
        windows: messages of the category, by the length of the sliding window.
        own: the message had its own place already.
        tenant: the tenant's messages on the UTC day; None where they were not asked for.
        quota: by channel, its messages on the UTC day.
    """

    channel: Channel | None = None
    cap_date: str = ""
    user: int = 0
    on_channel: Mapping[Channel, int] = field(default_factory=lambda: MappingProxyType({}))
    category: Category | None = None
    windows: Mapping[timedelta, int] = field(default_factory=lambda: MappingProxyType({}))
    own: bool = False
    tenant: int | None = None
    quota: Mapping[Channel, int] = field(default_factory=lambda: MappingProxyType({}))


def counts_seen(decision: Decision) -> Counts:
    """Reads what the counters told a decision from its trace."""
    frequency, quota = _entry(decision, Gate.FREQUENCY), _entry(decision, Gate.CHANNEL_QUOTA)
    used: dict[Channel, int] = {}
    on_fallback: dict[Channel, int] = {}
    if quota is not None:
        told = quota.inputs
        if "count" in told:
            used[Channel(told["channel"])] = int(told["count"])
        if "fallback_count" in told:
            used[Channel(told["fallback"])] = int(told["fallback_count"])
        if "fallback_channel_count" in told:
            on_fallback[Channel(told["fallback"])] = int(told["fallback_channel_count"])
    if frequency is None or frequency.outcome is GateOutcome.EXEMPT:
        return Counts(quota=used)
    inputs, silence = frequency.inputs, _entry(decision, Gate.SUPPRESSION)
    lengths, counted = _numbers(inputs.get("window_seconds", "")), _numbers(inputs.get("window_count", ""))
    return Counts(
        channel=Channel(inputs["channel"]),
        cap_date=inputs["cap_date"],
        user=int(inputs["count"]),
        on_channel={Channel(inputs["channel"]): int(inputs["channel_count"]), **on_fallback},
        category=None if silence is None else Category(silence.inputs["category"]),
        windows={timedelta(seconds=length): int(count) for length, count in zip(lengths, counted, strict=False)},
        own="own_reservation" in inputs,
        tenant=int(inputs["tenant_count"]) if "tenant_count" in inputs else None,
        quota=used,
    )


def parting_gate(actual: Decision, other: Decision) -> Gate | None:
    """Returns the gate at which two decisions about one message part; None where they are the same."""
    if _same(actual, other):
        return None
    stops = [gate for gate in (_stop(actual), _stop(other)) if gate is not None]
    both_chose = actual.channel is not None and other.channel is not None
    if both_chose and _chosen(actual) != _chosen(other):
        stops.append(Gate.CHANNEL)
    order = list(Gate)
    return min(stops, key=order.index, default=Gate.CHANNEL)


def _same(actual: Decision, other: Decision) -> bool:
    if (actual.action, actual.reason) != (other.action, other.reason):
        return False
    if actual.sends or actual.until is not None:
        return actual.channel == other.channel and actual.until == other.until
    return True


def _stop(decision: Decision) -> Gate | None:
    """Returns the gate that did not let a message pass."""
    passes = {GateOutcome.PASSED, GateOutcome.EXEMPT}
    return next((entry.gate for entry in decision.trace if entry.outcome not in passes), None)


def _chosen(decision: Decision) -> str:
    """Returns the channel that was chosen first, before any fallback."""
    entry = _entry(decision, Gate.SUPPRESSION) or _entry(decision, Gate.CHANNEL)
    return "" if entry is None else entry.inputs.get("channel", "")


def _with_zone(facts: Facts, decision: Decision) -> Facts:
    inputs = next((entry.inputs for entry in decision.trace if "zone_source" in entry.inputs), _NOTHING)
    zone, source = inputs.get("zone", ""), inputs.get("zone_source")
    match source:
        case "profile":
            return replace(facts, person=replace(facts.person, time_zone=zone))
        case "activity":
            person = replace(facts.person, time_zone="", active_zone=zone, active_at=decision.decided_at)
            return replace(facts, person=person)
        case "kept":
            return replace(facts, kept_zone=zone)
        case "default":
            return replace(facts, person=replace(facts.person, time_zone="", active_zone="", active_at=None))
        case _:
            return facts


def _entry(decision: Decision, gate: Gate) -> GateEntry | None:
    return next((entry for entry in decision.trace if entry.gate is gate), None)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",") if number]
