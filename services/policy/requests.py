"""Requests from outside, checked field by field and turned into the domain's words.

Every function raises InvalidFieldsError, which names each wrong field by its path, for example
``profiles[3].time_zone``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import message_pb2, policy_pb2, profile_pb2, suppression_pb2
from services.catalog.addresses import AddressError, normalise
from services.catalog.rules import Channel
from services.catalog.wire import category_from_wire, channel_from_wire
from services.chassis.errors import InvalidFieldsError, Violation
from services.chassis.validation import check_text

from .counters import Settlement
from .decision import Address, Item, UserKey
from .quiet_hours import find_zone
from .records import Activity, Departure, Profile, Wish
from .translate import source_from_wire

MAX_BATCH = 500
MAX_RECORDS = 1_000
MAX_PAGE = 500
DEFAULT_PAGE = 50
_MAX_ID = 64
_MAX_TENANT = 128
_MAX_USER = 256
_MAX_ZONE = 64
_MAX_LOCALE = 35
_MAX_NOTE = 512
_CLOCK_SKEW = timedelta(minutes=5)
_LOCALE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_CAP_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_INTENT_ID = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Page:
    """Which suppressions are to be listed."""

    user_id: str
    address: Address | None
    before: UUID | None
    limit: int


class _Faults:
    """Gathers what is wrong, so that the caller learns all of it at once."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def add(self, field: str, description: str) -> None:
        self.violations.append(Violation(field, description))

    def text(self, field: str, value: str, *, max_length: int, required: bool = True) -> str:
        self.violations += check_text(field, value, max_length=max_length, required=required)
        return value

    def count(self, field: str, number: int, most: int) -> None:
        if not 1 <= number <= most:
            self.add(field, f"holds {number} entries; 1 to {most} are allowed")

    def moment(self, field: str, value: Timestamp) -> datetime | None:
        try:
            return value.ToDatetime(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.add(field, "is no moment between the years 1 and 9999")
            return None

    def zone(self, field: str, name: str, *, required: bool) -> str:
        before = len(self.violations)
        self.text(field, name, max_length=_MAX_ZONE, required=required)
        if name and len(self.violations) == before and find_zone(name) is None:
            self.add(field, "is no known IANA time zone, for example Europe/Zurich")
        return name

    def address(self, field: str, given: message_pb2.Address) -> Address | None:
        channel = channel_from_wire(given.channel)
        if channel is None:
            self.add(f"{field}.channel", "is required")
            return None
        try:
            return Address(channel, normalise(channel, given.value))
        except AddressError as error:
            self.add(f"{field}.value", str(error))
            return None


@contextmanager
def _checking() -> Iterator[_Faults]:
    faults = _Faults()
    yield faults
    if faults.violations:
        raise InvalidFieldsError(faults.violations)


def read_items(request: policy_pb2.EvaluateRequest) -> list[Item]:
    """Returns the messages to judge. Texts are checked once more: one bad text must not reach Redis or SQL."""
    items: list[Item] = []
    with _checking() as faults:
        faults.count("items", len(request.items), MAX_BATCH)
        for index, item in enumerate(request.items[:MAX_BATCH]):
            at = f"items[{index}]"
            _check_ids(faults, at, item)
            faults.text(f"{at}.scene", item.scene, max_length=_MAX_ID)
            faults.text(f"{at}.template", item.template, max_length=_MAX_ID, required=False)
            address = None
            if item.HasField("address"):
                channel = channel_from_wire(item.address.channel)
                faults.text(f"{at}.address.value", item.address.value, max_length=2_048)
                if channel is None:
                    faults.add(f"{at}.address.channel", "is required")
                else:
                    address = Address(channel, item.address.value)
            wishes = (channel_from_wire(number) for number in item.channels)
            items.append(
                Item(
                    intent_id=item.intent_id,
                    hop=item.hop,
                    tenant=item.tenant,
                    user_id=item.user_id,
                    scene=item.scene,
                    address=address,
                    channels=tuple(channel for channel in wishes if channel is not None),
                    expires_at=_optional_moment(faults, f"{at}.expires_at", item, "expires_at"),
                    deferrals=item.deferrals,
                    planned_at=_optional_moment(faults, f"{at}.planned_at", item, "planned_at"),
                    template=item.template,
                )
            )
    return items


def read_settlements(request: policy_pb2.SettleRequest) -> list[Settlement]:
    """Returns the reservations to settle."""
    settlements: list[Settlement] = []
    with _checking() as faults:
        faults.count("items", len(request.items), MAX_BATCH)
        for index, item in enumerate(request.items[:MAX_BATCH]):
            at = f"items[{index}]"
            _check_ids(faults, at, item)
            channel = channel_from_wire(item.channel)
            if channel is None:
                faults.add(f"{at}.channel", "is required")
                continue
            if item.cap_date and not _CAP_DATE.fullmatch(item.cap_date):
                faults.add(f"{at}.cap_date", "is no date like 2026-03-08")
            if item.reservation == policy_pb2.RESERVATION_UNSPECIFIED:
                faults.add(f"{at}.reservation", "is required")
            settlements.append(
                Settlement(
                    user=UserKey(item.tenant, item.user_id),
                    message=f"{item.intent_id}:{item.hop}",
                    channel=channel,
                    cap_date=item.cap_date,
                    confirmed=item.reservation == policy_pb2.RESERVATION_CONFIRMED,
                )
            )
    return settlements


def read_departures(request: policy_pb2.CheckSuppressedRequest) -> list[Departure]:
    """Returns the messages that are about to leave."""
    departures: list[Departure] = []
    with _checking() as faults:
        faults.count("items", len(request.items), MAX_BATCH)
        for index, item in enumerate(request.items[:MAX_BATCH]):
            at = f"items[{index}]"
            faults.text(f"{at}.tenant", item.tenant, max_length=_MAX_TENANT)
            faults.text(f"{at}.user_id", item.user_id, max_length=_MAX_USER, required=False)
            category = category_from_wire(item.category)
            if category is None:
                faults.add(f"{at}.category", "is required")
                continue
            address = faults.address(f"{at}.address", item.address) if item.HasField("address") else None
            departures.append(Departure(UserKey(item.tenant, item.user_id), address, category))
    return departures


def read_profiles(request: profile_pb2.UpsertProfilesRequest) -> list[Profile]:
    """Returns the profiles to store, addresses in normal form."""
    profiles: list[Profile] = []
    seen: set[str] = set()
    with _checking() as faults:
        faults.count("profiles", len(request.profiles), MAX_RECORDS)
        for index, profile in enumerate(request.profiles[:MAX_RECORDS]):
            at = f"profiles[{index}]"
            faults.text(f"{at}.user_id", profile.user_id, max_length=_MAX_USER)
            if profile.user_id in seen:
                faults.add(f"{at}.user_id", "comes a second time; each user once")
            seen.add(profile.user_id)
            if profile.locale and not (len(profile.locale) <= _MAX_LOCALE and _LOCALE.fullmatch(profile.locale)):
                faults.add(f"{at}.locale", "is no language tag, for example de-CH")
            faults.zone(f"{at}.time_zone", profile.time_zone, required=False)
            addresses = _read_addresses(faults, at, profile.addresses)
            profiles.append(Profile(profile.user_id, addresses, profile.locale, profile.time_zone))
    return profiles


def read_user_ids(request: profile_pb2.GetProfilesRequest) -> list[str]:
    """Returns the users whose profiles are wanted."""
    with _checking() as faults:
        faults.count("user_ids", len(request.user_ids), MAX_RECORDS)
        for index, user_id in enumerate(request.user_ids[:MAX_RECORDS]):
            faults.text(f"user_ids[{index}]", user_id, max_length=_MAX_USER)
    return list(request.user_ids)


def read_activities(request: profile_pb2.ReportActivityRequest, now: datetime) -> list[Activity]:
    """Returns the activities to note; one without a moment was now."""
    activities: list[Activity] = []
    with _checking() as faults:
        faults.count("activities", len(request.activities), MAX_RECORDS)
        for index, activity in enumerate(request.activities[:MAX_RECORDS]):
            at = f"activities[{index}]"
            faults.text(f"{at}.user_id", activity.user_id, max_length=_MAX_USER)
            faults.zone(f"{at}.time_zone", activity.time_zone, required=True)
            seen_at = _optional_moment(faults, f"{at}.seen_at", activity, "seen_at") or now
            if seen_at > now + _CLOCK_SKEW:
                faults.add(f"{at}.seen_at", "lies in the future")
            activities.append(Activity(activity.user_id, activity.time_zone, min(seen_at, now)))
    return activities


def read_wishes(request: suppression_pb2.SuppressRequest) -> list[Wish]:
    """Returns the suppressions to store."""
    wishes: list[Wish] = []
    with _checking() as faults:
        faults.count("suppressions", len(request.suppressions), MAX_RECORDS)
        for index, given in enumerate(request.suppressions[:MAX_RECORDS]):
            at = f"suppressions[{index}]"
            faults.text(f"{at}.user_id", given.user_id, max_length=_MAX_USER, required=False)
            faults.text(f"{at}.note", given.note, max_length=_MAX_NOTE, required=False)
            has_address = given.HasField("address")
            if bool(given.user_id) == has_address:
                faults.add(f"{at}.user_id", "set either this or address")
            source = source_from_wire(given.source)
            if source is None:
                faults.add(f"{at}.source", "is required")
                continue
            wishes.append(
                Wish(
                    source=source,
                    user_id=given.user_id,
                    address=faults.address(f"{at}.address", given.address) if has_address else None,
                    channel=channel_from_wire(given.channel),
                    category=category_from_wire(given.category),
                    note=given.note,
                )
            )
            if given.channel and channel_from_wire(given.channel) is None:
                faults.add(f"{at}.channel", "is no known channel")
            if given.category and category_from_wire(given.category) is None:
                faults.add(f"{at}.category", "is no known category")
    return wishes


def read_tenant(tenant: str) -> str:
    """Returns the tenant for which a service acts."""
    with _checking() as faults:
        faults.text("tenant", tenant, max_length=_MAX_TENANT)
    return tenant


def read_suppression_ids(request: suppression_pb2.LiftSuppressionsRequest) -> list[UUID]:
    """Returns the suppressions to lift."""
    ids: list[UUID] = []
    with _checking() as faults:
        faults.count("suppression_ids", len(request.suppression_ids), MAX_RECORDS)
        for index, text in enumerate(request.suppression_ids[:MAX_RECORDS]):
            try:
                ids.append(UUID(text))
            except ValueError:
                faults.add(f"suppression_ids[{index}]", "is no UUID")
    return ids


def read_page(request: suppression_pb2.ListSuppressionsRequest) -> Page:
    """Returns which suppressions are to be listed."""
    before: UUID | None = None
    with _checking() as faults:
        faults.text("user_id", request.user_id, max_length=_MAX_USER, required=False)
        if not 0 <= request.page_size <= MAX_PAGE:
            faults.add("page_size", f"is {request.page_size}; 1 to {MAX_PAGE} are allowed")
        if request.page_token:
            try:
                before = UUID(request.page_token)
            except ValueError:
                faults.add("page_token", "is none that an earlier page gave")
        address = faults.address("address", request.address) if request.HasField("address") else None
    return Page(request.user_id, address, before, request.page_size or DEFAULT_PAGE)


def _check_ids(faults: _Faults, at: str, item: policy_pb2.EvaluateItem | policy_pb2.SettleItem) -> None:
    faults.text(f"{at}.tenant", item.tenant, max_length=_MAX_TENANT)
    faults.text(f"{at}.user_id", item.user_id, max_length=_MAX_USER)
    if not (len(item.intent_id) <= _MAX_ID and _INTENT_ID.fullmatch(item.intent_id)):
        faults.add(f"{at}.intent_id", "is no id of an intent")
    if item.hop not in {0, 1}:
        faults.add(f"{at}.hop", "is neither 0 nor 1")


def _read_addresses(faults: _Faults, at: str, given: Sequence[message_pb2.Address]) -> dict[Channel, str]:
    addresses: dict[Channel, str] = {}
    for index, address in enumerate(given):
        read = faults.address(f"{at}.addresses[{index}]", address)
        if read is not None and read.channel in addresses:
            faults.add(f"{at}.addresses[{index}].channel", "has an address already; one per channel")
        elif read is not None:
            addresses[read.channel] = read.value
    return addresses


def _optional_moment(
    faults: _Faults, at: str, message: policy_pb2.EvaluateItem | profile_pb2.Activity, field: str
) -> datetime | None:
    if not message.HasField(field):  # type: ignore[arg-type]  # the stub lists the literal names
        return None
    return faults.moment(at, getattr(message, field))
