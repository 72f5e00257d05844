"""Requests from outside, checked field by field and turned into the domain's words.

Every function raises InvalidFieldsError, which names each wrong field by its path, for example
``profiles[3].time_zone``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

from agent_reach.v1 import message_pb2, policy_pb2, preference_pb2, profile_pb2, suppression_pb2
from services.catalog.rules import Category, Channel
from services.catalog.wire import category_from_wire, channel_from_wire

from .decision import Address, UserKey
from .faults import MAX_BATCH, MAX_USER, Faults, checking
from .records import Activity, Choice, Departure, Profile, Question, SuppressionPage, Wish
from .translate import source_from_wire

MAX_RECORDS = 1_000
MAX_PAGE = 1_000
DEFAULT_PAGE = 50
_MAX_LOCALE = 35
_MAX_NOTE = 512
_MAX_SCENE = 64
_CLOCK_SKEW = timedelta(minutes=5)
_CHOICES: Mapping[int, bool | None] = MappingProxyType(
    {
        preference_pb2.CHOICE_NONE: None,
        preference_pb2.CHOICE_OPT_IN: True,
        preference_pb2.CHOICE_OPT_OUT: False,
    }
)
_LOCALE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")


def read_departures(request: policy_pb2.CheckSuppressedRequest) -> list[Departure]:
    """Returns the messages that are about to leave."""
    departures: list[Departure] = []
    with checking() as faults:
        faults.count("items", len(request.items), MAX_BATCH)
        for index, item in enumerate(request.items[:MAX_BATCH]):
            at = f"items[{index}]"
            faults.tenant(f"{at}.tenant", item.tenant)
            faults.text(f"{at}.user_id", item.user_id, max_length=MAX_USER, required=False)
            category = category_from_wire(item.category)
            if category is None:
                faults.add(f"{at}.category", "is required")
                continue
            address = faults.address(f"{at}.address", item.address) if item.HasField("address") else None
            scene = faults.text(f"{at}.scene", item.scene, max_length=_MAX_SCENE, required=False)
            departures.append(Departure(UserKey(item.tenant, item.user_id), address, category, scene))
    return departures


def read_profiles(request: profile_pb2.UpsertProfilesRequest) -> list[Profile]:
    """Returns the profiles to store, addresses in normal form."""
    profiles: list[Profile] = []
    seen: set[str] = set()
    with checking() as faults:
        faults.count("profiles", len(request.profiles), MAX_RECORDS)
        for index, profile in enumerate(request.profiles[:MAX_RECORDS]):
            at = f"profiles[{index}]"
            faults.text(f"{at}.user_id", profile.user_id, max_length=MAX_USER)
            if profile.user_id in seen:
                faults.add(f"{at}.user_id", "comes a second time; each user once")
            seen.add(profile.user_id)
            if profile.locale and not (len(profile.locale) <= _MAX_LOCALE and _LOCALE.fullmatch(profile.locale)):
                faults.add(f"{at}.locale", "is no language tag, for example de-CH")
            faults.zone(f"{at}.time_zone", profile.time_zone, required=False)
            addresses = _read_addresses(faults, at, profile.addresses)
            profiles.append(Profile(profile.user_id, addresses, profile.locale, profile.time_zone))
    return profiles


def read_user_ids(request: profile_pb2.GetProfilesRequest | preference_pb2.GetPreferencesRequest) -> list[str]:
    """Returns the users whose profiles, or choices, are wanted."""
    with checking() as faults:
        faults.count("user_ids", len(request.user_ids), MAX_RECORDS)
        for index, user_id in enumerate(request.user_ids[:MAX_RECORDS]):
            faults.text(f"user_ids[{index}]", user_id, max_length=MAX_USER)
    return list(request.user_ids)


def read_profile_page(request: profile_pb2.ListProfilesRequest) -> tuple[str, int]:
    """Returns after which user a page of profiles begins, and how many it holds at most."""
    with checking() as faults:
        faults.text("page_token", request.page_token, max_length=MAX_USER, required=False)
        return request.page_token, _page_size(faults, request.page_size)


def read_choices(request: preference_pb2.SetPreferencesRequest) -> list[Choice]:
    """Returns the choices to store."""
    choices: list[Choice] = []
    seen: set[tuple[str, Category | None, Channel | None]] = set()
    with checking() as faults:
        faults.count("preferences", len(request.preferences), MAX_RECORDS)
        for index, given in enumerate(request.preferences[:MAX_RECORDS]):
            at = f"preferences[{index}]"
            faults.text(f"{at}.user_id", given.user_id, max_length=MAX_USER)
            if given.choice not in _CHOICES:
                faults.add(f"{at}.choice", "is no known choice" if given.choice else "is required")
                continue
            channel, category = _read_limits(faults, at, given)
            if (given.user_id, category, channel) in seen:
                faults.add(f"{at}.user_id", "comes a second time with this category and channel; each once")
            seen.add((given.user_id, category, channel))
            choices.append(Choice(given.user_id, category, channel, _CHOICES[given.choice]))
    return choices


def read_activities(request: profile_pb2.ReportActivityRequest, now: datetime) -> list[Activity]:
    """Returns the activities to note; one without a moment was now."""
    activities: list[Activity] = []
    with checking() as faults:
        faults.count("activities", len(request.activities), MAX_RECORDS)
        for index, activity in enumerate(request.activities[:MAX_RECORDS]):
            at = f"activities[{index}]"
            faults.text(f"{at}.user_id", activity.user_id, max_length=MAX_USER)
            faults.zone(f"{at}.time_zone", activity.time_zone, required=True)
            seen_at = faults.optional_moment(f"{at}.seen_at", activity, "seen_at") or now
            if seen_at > now + _CLOCK_SKEW:
                faults.add(f"{at}.seen_at", "lies in the future")
            activities.append(Activity(activity.user_id, activity.time_zone, min(seen_at, now)))
    return activities


def read_wishes(request: suppression_pb2.SuppressRequest) -> list[Wish]:
    """Returns the suppressions to store."""
    wishes: list[Wish] = []
    with checking() as faults:
        faults.count("suppressions", len(request.suppressions), MAX_RECORDS)
        for index, given in enumerate(request.suppressions[:MAX_RECORDS]):
            at = f"suppressions[{index}]"
            faults.text(f"{at}.user_id", given.user_id, max_length=MAX_USER, required=False)
            faults.text(f"{at}.note", given.note, max_length=_MAX_NOTE, required=False)
            has_address = given.HasField("address")
            if bool(given.user_id) == has_address:
                faults.add(f"{at}.user_id", "set either this or address")
            source = source_from_wire(given.source)
            if source is None:
                faults.add(f"{at}.source", "is required")
                continue
            channel, category = _read_limits(faults, at, given)
            wishes.append(
                Wish(
                    source=source,
                    user_id=given.user_id,
                    address=_read_address(faults, at, given, channel) if has_address else None,
                    channel=channel,
                    category=category,
                    note=given.note,
                )
            )
    return wishes


def read_questions(request: suppression_pb2.CheckSuppressionsRequest) -> list[Question]:
    """Returns the messages that somebody thinks of."""
    questions: list[Question] = []
    with checking() as faults:
        faults.count("queries", len(request.queries), MAX_RECORDS)
        for index, query in enumerate(request.queries[:MAX_RECORDS]):
            at = f"queries[{index}]"
            faults.text(f"{at}.user_id", query.user_id, max_length=MAX_USER, required=False)
            channel, category = _read_limits(faults, at, query)
            address = _read_address(faults, at, query, channel) if query.HasField("address") else None
            if not query.user_id and not query.HasField("address"):
                faults.add(f"{at}.user_id", "set this or address")
            questions.append(Question(query.user_id, address, channel, category or Category.NOTIFICATION))
    return questions


def read_tenant(tenant: str) -> str:
    """Returns the tenant for which a service acts."""
    with checking() as faults:
        faults.tenant("tenant", tenant)
    return tenant


def read_suppression_ids(request: suppression_pb2.LiftSuppressionsRequest) -> list[UUID]:
    """Returns the suppressions to lift."""
    ids: list[UUID] = []
    with checking() as faults:
        faults.count("suppression_ids", len(request.suppression_ids), MAX_RECORDS)
        for index, text in enumerate(request.suppression_ids[:MAX_RECORDS]):
            try:
                ids.append(UUID(text))
            except ValueError:
                faults.add(f"suppression_ids[{index}]", "is no UUID")
    return ids


def read_suppression_page(request: suppression_pb2.ListSuppressionsRequest) -> tuple[SuppressionPage, int]:
    """Returns which suppressions are to be listed, and how many at most."""
    before: UUID | None = None
    with checking() as faults:
        faults.text("user_id", request.user_id, max_length=MAX_USER, required=False)
        limit = _page_size(faults, request.page_size)
        if request.page_token:
            try:
                before = UUID(request.page_token)
            except ValueError:
                faults.add("page_token", "is none that an earlier page gave")
        source = source_from_wire(request.source)
        if request.source and source is None:
            faults.add("source", "is no known source")
        address = faults.address("address", request.address) if request.HasField("address") else None
    return SuppressionPage(request.user_id, address, source, request.include_lifted, before), limit


def _page_size(faults: Faults, asked: int) -> int:
    if not 0 <= asked <= MAX_PAGE:
        faults.add("page_size", f"is {asked}; 1 to {MAX_PAGE} are allowed")
    return asked or DEFAULT_PAGE


def _read_limits(
    faults: Faults,
    at: str,
    given: suppression_pb2.Suppression | suppression_pb2.SuppressionQuery | preference_pb2.Preference,
) -> tuple[Channel | None, Category | None]:
    """Returns the only channel and the only category that something is limited to; None for all."""
    channel, category = channel_from_wire(given.channel), category_from_wire(given.category)
    if given.channel and channel is None:
        faults.add(f"{at}.channel", "is no known channel")
    if given.category and category is None:
        faults.add(f"{at}.category", "is no known category")
    return channel, category


def _read_address(
    faults: Faults,
    at: str,
    given: suppression_pb2.Suppression | suppression_pb2.SuppressionQuery,
    channel: Channel | None,
) -> Address | None:
    """Returns the address that something is about. Limited to another channel, it could never match a message."""
    address = faults.address(f"{at}.address", given.address)
    if address is not None and channel not in {None, address.channel}:
        faults.add(f"{at}.channel", "is another one than that of the address")
    return address


def _read_addresses(faults: Faults, at: str, given: Sequence[message_pb2.Address]) -> dict[Channel, str]:
    addresses: dict[Channel, str] = {}
    for index, address in enumerate(given):
        read = faults.address(f"{at}.addresses[{index}]", address)
        if read is not None and read.channel in addresses:
            faults.add(f"{at}.addresses[{index}].channel", "has an address already; one per channel")
        elif read is not None:
            addresses[read.channel] = read.value
    return addresses
