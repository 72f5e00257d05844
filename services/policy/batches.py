"""Batches of the other services, checked and turned into the domain's words.

Every function raises InvalidFieldsError, which names each wrong field by its path, for example ``items[3].user_id``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import message_pb2, policy_pb2
from services.catalog.rules import Channel
from services.catalog.wire import channel_from_wire

from .counters import Settlement
from .decision import Address, Item, UserKey
from .faults import MAX_BATCH, MAX_USER, Faults, checking

_MAX_ID = 64
_MAX_ADDRESS = 2_048
_CAP_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_INTENT_ID = re.compile(r"[A-Za-z0-9_-]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What a timestamp can hold, less the days that a zone or a week may add.
_FIRST_SECOND = int(datetime(2, 1, 1, tzinfo=UTC).timestamp())
_LAST_SECOND = int(datetime(9998, 12, 1, tzinfo=UTC).timestamp())


def read_items(request: policy_pb2.EvaluateRequest) -> list[Item]:
    """Returns the messages to judge. Texts are checked once more: one bad text must not reach Redis or SQL."""
    items: list[Item] = []
    with checking() as faults:
        faults.count("items", len(request.items), MAX_BATCH)
        # What most messages of a batch have in common is checked once.
        kinds: set[tuple[str, str, str]] = set()
        for index, item in enumerate(request.items[:MAX_BATCH]):
            kind = (item.tenant, item.scene, item.template)
            if kind not in kinds:
                kinds.add(kind)
                _check_kind(faults, f"items[{index}]", *kind)
            items.append(_read_item(faults, index, item, *kind))
    return items


def read_settlements(request: policy_pb2.SettleRequest) -> list[Settlement]:
    """Returns the reservations to settle."""
    settlements: list[Settlement] = []
    with checking() as faults:
        faults.count("items", len(request.items), MAX_BATCH)
        for index, item in enumerate(request.items[:MAX_BATCH]):
            at = f"items[{index}]"
            faults.tenant(f"{at}.tenant", item.tenant)
            _check_message(faults, index, item.user_id, item.intent_id, item.hop)
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


def _read_item(
    faults: Faults, index: int, item: policy_pb2.EvaluateItem, tenant: str, scene: str, template: str
) -> Item:
    user_id, intent_id, hop = item.user_id, item.intent_id, item.hop
    _check_message(faults, index, user_id, intent_id, hop)
    has = item.HasField
    return Item(
        intent_id,
        hop,
        tenant,
        user_id,
        scene,
        _read_address(faults, index, item.address) if has("address") else None,
        _read_channels(item) if item.channels else (),
        _moment(faults, index, "expires_at", item.expires_at) if has("expires_at") else None,
        item.deferrals,
        _moment(faults, index, "planned_at", item.planned_at) if has("planned_at") else None,
        template,
        _moment(faults, index, "send_at", item.send_at) if has("send_at") else None,
        faults.local_time(f"items[{index}].send_at_local", item.send_at_local) if has("send_at_local") else None,
        _moment(faults, index, "submitted_at", item.submitted_at) if has("submitted_at") else None,
        item.scheduled,
        item.gathered,
    )


def _check_kind(faults: Faults, at: str, tenant: str, scene: str, template: str) -> None:
    faults.tenant(f"{at}.tenant", tenant)
    faults.text(f"{at}.scene", scene, max_length=_MAX_ID)
    faults.text(f"{at}.template", template, max_length=_MAX_ID, required=False)


def _check_message(faults: Faults, index: int, user_id: str, intent_id: str, hop: int) -> None:
    # The path of a field is put together for the wrong ones only: this runs for every message there is.
    if not 0 < len(user_id) <= MAX_USER or not user_id.isprintable():
        faults.text(f"items[{index}].user_id", user_id, max_length=MAX_USER)
    if len(intent_id) > _MAX_ID or not _INTENT_ID.fullmatch(intent_id):
        faults.add(f"items[{index}].intent_id", "is no id of an intent")
    if hop not in {0, 1}:
        faults.add(f"items[{index}].hop", "is neither 0 nor 1")


def _read_address(faults: Faults, index: int, given: message_pb2.Address) -> Address | None:
    at = f"items[{index}].address"
    faults.text(f"{at}.value", given.value, max_length=_MAX_ADDRESS)
    channel = channel_from_wire(given.channel)
    if channel is None:
        faults.add(f"{at}.channel", "is required")
        return None
    return Address(channel, given.value)


def _read_channels(item: policy_pb2.EvaluateItem) -> tuple[Channel, ...]:
    """Returns the wishes; a channel that this version does not know is no wish."""
    wishes = (channel_from_wire(number) for number in item.channels)
    return tuple(channel for channel in wishes if channel is not None)


def _moment(faults: Faults, index: int, name: str, value: Timestamp) -> datetime | None:
    seconds = value.seconds
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
        faults.add(f"items[{index}].{name}", "is no moment between the years 2 and 9998")
        return None
    return _EPOCH + timedelta(seconds=seconds, microseconds=value.nanos // 1_000)
