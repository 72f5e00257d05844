"""What was known of a recipient at an earlier moment, and what the decision of that moment saw. Pure.

A message that is judged once more, by another policy, must be judged by the same facts: else a profile that has
changed since, or two messages whose order nobody remembers, would look like a consequence of the other policy. What
the first judgement saw stands in its trace; what it did not look at is taken from the records, as of that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from services.catalog.rules import Category, Channel

from .decision import Address, Decision, Facts, Gate, GateEntry, GateOutcome, Person, Preference, Suppression
from .gates import find_preference, find_suppression

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
        """Corrects what raced with the judgement: it was stored, or lifted, within the same instant."""
        channel, category = Channel(entry.inputs["channel"]), Category(entry.inputs["category"])
        seen = entry.inputs.get("suppression_id")
        if seen is not None:
            standing = {dated.suppression.suppression_id: dated.suppression for dated in self.suppressions}
            missing = seen in standing and standing[seen] not in facts.suppressions
            return replace(facts, suppressions=(*facts.suppressions, standing[seen])) if missing else facts
        address = Address(channel, decision.address or facts.person.addresses.get(channel, ""))
        suppressions = tuple(
            suppression
            for suppression in facts.suppressions
            if find_suppression([suppression], user_id=user_id, address=address, category=category) is None
        )
        preferences: tuple[Preference, ...] = tuple(
            preference
            for preference in facts.preferences
            if find_preference([preference], channel=channel, category=category) is None
        )
        if "preference" in entry.inputs:
            # The narrowest there is: it counts, whatever else was chosen.
            chosen = Preference(category, channel, entry.inputs["preference"] == "opt_in")
            preferences = (*facts.preferences, chosen)
        return replace(facts, suppressions=suppressions, preferences=preferences)


@dataclass(frozen=True, slots=True)
class Counts:
    """What the counters told a decision, as far as its trace says.

    Attributes:
        channel: the channel that the counts are about; None where the counters were not asked.
        cap_date: the local date.
        user: messages on all channels on that date.
        on_channel: messages on the channel on that date.
        category: the category of the message.
        windows: messages of the category, by the length of the sliding window.
        own: the message had its own place already.
        tenant: the tenant's messages on the UTC day; None where they were not asked for.
        quota: by channel, its messages on the UTC day.
    """

    channel: Channel | None = None
    cap_date: str = ""
    user: int = 0
    on_channel: int = 0
    category: Category | None = None
    windows: Mapping[timedelta, int] = field(default_factory=lambda: MappingProxyType({}))
    own: bool = False
    tenant: int | None = None
    quota: Mapping[Channel, int] = field(default_factory=lambda: MappingProxyType({}))


def counts_seen(decision: Decision) -> Counts:
    """Reads what the counters told a decision from its trace."""
    frequency, quota = _entry(decision, Gate.FREQUENCY), _entry(decision, Gate.CHANNEL_QUOTA)
    used: dict[Channel, int] = {}
    if quota is not None and "count" in quota.inputs:
        used[Channel(quota.inputs["channel"])] = int(quota.inputs["count"])
    if frequency is None or frequency.outcome is GateOutcome.EXEMPT:
        return Counts(quota=used)
    inputs, silence = frequency.inputs, _entry(decision, Gate.SUPPRESSION)
    lengths, counted = _numbers(inputs.get("window_seconds", "")), _numbers(inputs.get("window_count", ""))
    return Counts(
        channel=Channel(inputs["channel"]),
        cap_date=inputs["cap_date"],
        user=int(inputs["count"]),
        on_channel=int(inputs["channel_count"]),
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
    entry = _entry(decision, Gate.CHANNEL)
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
