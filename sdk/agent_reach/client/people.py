"""Builds the contract's requests about people from plain Python: profiles, preferences, suppressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agent_reach.v1 import message_pb2, preference_pb2, profile_pb2, suppression_pb2

from . import requests
from .requests import build

_CHOICES: Mapping[bool | None, preference_pb2.Choice.ValueType] = {
    None: preference_pb2.CHOICE_NONE,
    True: preference_pb2.CHOICE_OPT_IN,
    False: preference_pb2.CHOICE_OPT_OUT,
}


def profile(
    user_id: str, *, addresses: Sequence[str | message_pb2.Address] = (), locale: str = "", time_zone: str = ""
) -> profile_pb2.Profile:
    """Builds a profile.

    Args:
        user_id: the user, as the tenant knows them.
        addresses: at most one per channel, as text (see :func:`agent_reach.address`) or as the contract's message.
        locale: the language (BCP 47), for example ``de-CH``.
        time_zone: the IANA time zone, for example ``America/New_York``.

    Raises:
        InvalidArgumentError: a field has a value that no message can carry; the field is named.
    """
    result = build(profile_pb2.Profile, user_id=user_id, locale=locale, time_zone=time_zone)
    for to in addresses:
        result.addresses.append(_address(to, "addresses"))
    return result


def activity(user_id: str, time_zone: str, seen_at: datetime | None) -> profile_pb2.ReportActivityRequest:
    """Builds the request that notes where a user was seen."""
    result = build(profile_pb2.Activity, user_id=user_id, time_zone=time_zone)
    if seen_at is not None:
        result.seen_at.CopyFrom(requests.timestamp(seen_at, "seen_at"))
    return profile_pb2.ReportActivityRequest(activities=[result])


def suppression(
    *,
    user_id: str = "",
    address: str | message_pb2.Address = "",
    channel: str = "",
    category: str = "",
    source: str = "operator",
    note: str = "",
) -> suppression_pb2.Suppression:
    """Builds a suppression.

    Args:
        user_id: the user who is not written to; either this or `address`.
        address: the address that is not written to, as text (see :func:`agent_reach.address`) or as the contract's message.
        channel: the only channel it holds for, for example ``sms``; every one when left out.
        category: the only category it holds for; every one but verification when left out.
        source: where it comes from: unsubscribe, complaint, bounce, operator, import.
        note: why, in words.

    Raises:
        InvalidArgumentError: a field has a value that no message can carry; the field is named.
    """
    result = build(
        suppression_pb2.Suppression,
        user_id=user_id,
        category=_category(category),
        source=_source(source),
        note=note,
    )
    if address:
        result.address.CopyFrom(_address(address))
    if channel:
        result.channel = requests.channel(channel)
    return result


def suppression_query(
    *, user_id: str = "", address: str | message_pb2.Address = "", channel: str = "", category: str = ""
) -> suppression_pb2.SuppressionQuery:
    """Builds a question: would a message be withheld?

    Args:
        user_id: whom it would be for; this, `address`, or both.
        address: where it would go; wherever the user has an address when left out.
        channel: how it would leave; any way when left out.
        category: the category of its scene; notification when left out.
    """
    result = build(suppression_pb2.SuppressionQuery, user_id=user_id, category=_category(category))
    if address:
        result.address.CopyFrom(_address(address))
    if channel:
        result.channel = requests.channel(channel)
    return result


def preference(
    user_id: str, *, opt_in: bool | None, category: str = "", channel: str = ""
) -> preference_pb2.Preference:
    """Builds what a user chose to hear about.

    Args:
        user_id: the user.
        opt_in: whether the user wants to hear; None takes an earlier choice back.
        category: the only category it holds for; every one but verification when left out.
        channel: the only channel it holds for; every one when left out.
    """
    result = build(preference_pb2.Preference, user_id=user_id, category=_category(category), choice=_CHOICES[opt_in])
    if channel:
        result.channel = requests.channel(channel)
    return result


def list_suppressions(
    *, user_id: str, address: str, source: str, include_lifted: bool, page_size: int
) -> suppression_pb2.ListSuppressionsRequest:
    """Builds the request of the first page; the following ones add their token."""
    request = build(
        suppression_pb2.ListSuppressionsRequest,
        user_id=user_id,
        source=_source(source),
        include_lifted=include_lifted,
        page_size=page_size,
    )
    if address:
        request.address.CopyFrom(_address(address))
    return request


def _address(to: str | message_pb2.Address, field: str = "address") -> message_pb2.Address:
    return requests.address(to, field) if isinstance(to, str) else to


def _category(name: str) -> Any:
    return requests.named(message_pb2.Category, "CATEGORY_", name, "category")


def _source(name: str) -> Any:
    return requests.named(suppression_pb2.SuppressionSource, "SUPPRESSION_SOURCE_", name, "source")
