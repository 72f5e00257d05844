"""What is wrong with a request: gathered field by field, so that the caller learns all of it at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import message_pb2
from services.catalog.addresses import AddressError, normalise
from services.catalog.wire import channel_from_wire
from services.catalog.zones import find_zone
from services.chassis.errors import InvalidFieldsError, Violation
from services.chassis.moments import moment
from services.chassis.tenants import check_tenant
from services.chassis.validation import check_text

from .decision import Address, LocalTime

MAX_BATCH = 500
MAX_USER = 256
_MAX_ZONE = 64
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class Faults:
    """Gathers what is wrong, so that the caller learns all of it at once."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def add(self, field: str, description: str) -> None:
        """Notes what is wrong with a field."""
        self.violations.append(Violation(field, description))

    def text(self, field: str, value: str, *, max_length: int, required: bool = True) -> str:
        """Checks that a text is storable, not too long, and there if it must be; returns it."""
        self.violations += check_text(field, value, max_length=max_length, required=required)
        return value

    def tenant(self, field: str, value: str) -> None:
        """Checks that a text is the name of a tenant."""
        self.violations += check_tenant(field, value)

    def count(self, field: str, number: int, most: int) -> None:
        """Checks how many entries a field holds."""
        if not 1 <= number <= most:
            self.add(field, f"holds {number} entries; 1 to {most} are allowed")

    def moment(self, field: str, value: Timestamp) -> datetime | None:
        """Returns a moment (UTC); None where it is none."""
        try:
            return moment(value)
        except (ValueError, OverflowError):
            self.add(field, "is no moment between the years 1 and 9999")
            return None

    def optional_moment(self, field: str, message: Message, name: str) -> datetime | None:
        """Returns the moment in a message's field; None where it is not set."""
        return self.moment(field, getattr(message, name)) if message.HasField(name) else None

    def local_time(self, field: str, given: message_pb2.LocalTime) -> LocalTime | None:
        """Returns a time by somebody's own clock; None where it is none."""
        if not _TIME.fullmatch(given.time):
            self.add(f"{field}.time", "is no time like 08:00")
            return None
        if given.weekday and (given.date or given.weekday not in range(1, 8)):
            self.add(f"{field}.weekday", "is no day of the week, or comes together with date")
        day = self._date(f"{field}.date", given.date) if given.date else None
        return LocalTime(time.fromisoformat(given.time), given.weekday - 1 if given.weekday else None, day)

    def _date(self, field: str, text: str) -> date | None:
        try:
            day = date.fromisoformat(text) if _DATE.fullmatch(text) else None
        except ValueError:
            day = None
        if day is None or not 1970 <= day.year < 9998:
            self.add(field, "is no date like 2026-03-08")
            return None
        return day

    def zone(self, field: str, name: str, *, required: bool) -> str:
        """Checks the name of a zone; returns it."""
        before = len(self.violations)
        self.text(field, name, max_length=_MAX_ZONE, required=required)
        if name and len(self.violations) == before and find_zone(name) is None:
            self.add(field, "is no known IANA time zone, for example Europe/Zurich")
        return name

    def address(self, field: str, given: message_pb2.Address) -> Address | None:
        """Returns an address in normal form; None where it is none."""
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
def checking() -> Iterator[Faults]:
    """Yields what gathers faults.

    Raises:
        InvalidFieldsError: when the body ends and anything is wrong.
    """
    faults = Faults()
    yield faults
    if faults.violations:
        raise InvalidFieldsError(faults.violations)
