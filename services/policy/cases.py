"""One message in work: what is known of it so far, and how far its judgement is."""

from __future__ import annotations

from dataclasses import replace

from services.catalog.rules import Channel

from .counters import Answer, Place
from .decision import Decision, Facts, Gate, Item, Known, Usage, UserKey
from .evaluate import Bench, Candidate, fallback_address
from .quotas import Seat


class Case:
    """One message in work. It is judged as far as no counter is needed, then told what the counters saw.

    Args:
        item: the message.
        user: whom it is for.
        bench: who judges it.
        known: what is known of the user.

    Attributes:
        facts: all that is known; the counters add to it.
        judged: a decision, or a candidate that waits for what the counters see.
        channel: the channel on which the candidate tries to leave; not there for what is decided.
        cap_date: the date on which the candidate counts; empty where it counts on no caps, and for what is decided.
        capped: whether it is a candidate that counts on caps.
        reserved: whether it has a place in the caps.
        refused: whether the caps refused it: it takes no place in the quotas.
        tenant_spent: whether the tenant's quota was spent.
        spent: whether the quota of the channel was spent, on which it was asked for last.
    """

    __slots__ = (
        "_quota_used",
        "_usage",
        "bench",
        "cap_date",
        "capped",
        "channel",
        "facts",
        "item",
        "judged",
        "refused",
        "reserved",
        "spent",
        "tenant_spent",
        "user",
    )

    def __init__(self, item: Item, user: UserKey, bench: Bench, known: Known) -> None:
        self.item = item
        self.user = user
        self.bench = bench
        self._usage: dict[Channel, Usage] = {}
        self._quota_used: dict[Channel, int] = {}
        self.facts = Facts(known.person, known.suppressions, known.preferences, self._usage, self._quota_used)
        self.reserved = self.refused = self.tenant_spent = self.spent = False
        self._judge()

    @property
    def message(self) -> str:
        """Its name in the counters."""
        return f"{self.item.intent_id}:{self.item.hop}"

    @property
    def wants_quota(self) -> bool:
        """Whether it needs places in quotas."""
        return not self.refused and isinstance(self.judged, Candidate)

    @property
    def heeds_zone(self) -> bool:
        """Whether the judgement depends on the user's zone, though it takes no place."""
        if self.item.send_at_local is not None:
            return True
        return isinstance(self.judged, Decision) and self.judged.trace[-1].gate is Gate.QUIET_HOURS

    @property
    def zone_to_keep(self) -> str:
        """The zone in which it was judged; empty for the default one, which is not kept."""
        choice = self.bench.local(self.facts).choice
        return "" if choice.source == "default" else choice.name

    @property
    def zone_unknown(self) -> bool:
        """Whether the user's zone on record is none."""
        return self.bench.met_unknown_zone and bool(self.bench.local(self.facts).choice.warning)

    @property
    def tenant_quota(self) -> int | None:
        """The quota of its tenant."""
        return self.bench.rules.scene.policy.tenant_daily_quota

    @property
    def channel_quota(self) -> int | None:
        """The quota of the channel on which it tries to leave."""
        return self.bench.rules.channels[self.channel].daily_quota

    def place(self, zone: str | None = None) -> Place:
        """Returns the place that it wants; with its zone, where that is not settled yet."""
        scene = self.bench.rules.scene
        policy = scene.policy
        return Place(
            self.user,
            self.message,
            self.channel,
            self.cap_date,
            policy.user_daily_cap,
            policy.user_channel_daily_cap.get(self.channel),
            scene.category,
            policy.user_window_caps,
            zone,
        )

    def move(self, kept_zone: str) -> None:
        """Judges anew by the zone that is kept for the user."""
        self.facts = replace(self.facts, kept_zone=kept_zone)
        self._judge()

    def turn(self) -> bool:
        """Turns to the fallback of its channel; says whether there is one that may be used."""
        if not isinstance(self.judged, Candidate):
            return False
        way, _ = fallback_address(self.judged, self.facts)
        if way is not None:
            self.channel = way.channel
        return way is not None

    def note_place(self, answer: Answer) -> None:
        """Takes what the caps saw."""
        self._usage[self.channel] = answer.usage
        self.reserved = answer.reserved
        self.refused = not answer.reserved

    def note_tenant_quota(self, seat: Seat) -> None:
        """Takes what the quota of the tenant saw."""
        self.tenant_spent = not seat.held
        self.facts = replace(self.facts, tenant_used=seat.used)
        self._note_seat(seat)

    def note_quota(self, seat: Seat) -> None:
        """Takes what the quota of the channel saw."""
        self.spent = not seat.held
        self._quota_used[self.channel] = seat.used
        self._note_seat(seat)

    def _note_seat(self, seat: Seat) -> None:
        """A place in the caps helps a message no further than the quotas have one for it too."""
        usage = self._usage.get(self.channel)
        if not seat.held and usage is not None and usage.own:
            self._usage[self.channel] = usage._replace(own=False)

    def conclude(self) -> Decision:
        """Returns the decision."""
        judged = self.judged
        return judged if isinstance(judged, Decision) else self.bench.conclude(judged, self.facts)

    def _judge(self) -> None:
        judged = self.judged = self.bench.before_counters(self.item, self.facts)
        self.cap_date = ""
        if isinstance(judged, Candidate):
            self.channel, self.cap_date = judged.address.channel, judged.cap_date
        self.capped = bool(self.cap_date)
