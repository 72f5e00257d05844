"""When an intent may leave: at a moment, or at a time by the recipient's own clock.

Which instant that is, the policy decides; here it is checked, and bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from agent_reach.v1 import message_pb2, reach_pb2
from services.chassis.errors import Violation
from services.chassis.moments import moment

MAX_AHEAD = timedelta(days=366)
# A date begins and ends somewhere on earth this long before and after it does in UTC.
_EASTERNMOST, _WESTERNMOST = timedelta(hours=14), timedelta(hours=12)
# A day on which clocks are put back is an hour longer.
_CLOCK_CHANGE = timedelta(hours=1)
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class SendTime:
    """The wish of one intent.

    Attributes:
        latest: the intent leaves no later than that for the sake of this wish, wherever its recipient is.
        earliest: it leaves no earlier than that, wherever its recipient is; None where nobody can tell.
        at: the moment, where one was given.
        local: the serialized `LocalTime`, where one was given.
        content: what the wish adds to the intent's content.
    """

    latest: datetime
    earliest: datetime | None = None
    at: datetime | None = None
    local: bytes | None = None
    content: tuple[str, ...] = ()


def send_time(spec: reach_pb2.IntentSpec, now: datetime, path: str, violations: list[Violation]) -> SendTime:
    """Returns when an intent may leave; without a wish, now. What is wrong is added to `violations`."""
    if spec.HasField("send_at") and spec.HasField("send_at_local"):
        violations.append(Violation(f"{path}.send_at", "give either send_at or send_at_local"))
    elif spec.HasField("send_at"):
        return _at(spec, now, f"{path}.send_at", violations)
    elif spec.HasField("send_at_local"):
        return _local(spec.send_at_local, now, f"{path}.send_at_local", violations)
    return SendTime(now)


def _at(spec: reach_pb2.IntentSpec, now: datetime, field: str, violations: list[Violation]) -> SendTime:
    try:
        at = moment(spec.send_at)
    except (ValueError, OverflowError):
        at = datetime.max.replace(tzinfo=UTC)
    if at > now + MAX_AHEAD:
        violations.append(Violation(field, "is more than 366 days away"))
        return SendTime(now)
    # A moment that has passed is no fault: a call that is repeated later gives the first intent back.
    return SendTime(max(at, now), at, at=at, content=(f"send_at:{at.isoformat()}",))


def _local(local: message_pb2.LocalTime, now: datetime, field: str, violations: list[Violation]) -> SendTime:
    before = len(violations)
    if not _TIME.fullmatch(local.time):
        violations.append(Violation(f"{field}.time", "is no time of day (HH:MM)"))
    if local.weekday not in message_pb2.Weekday.values():
        violations.append(Violation(f"{field}.weekday", "is no day of the week"))
    day = _date(local.date, f"{field}.date", violations)
    if local.weekday and local.date:
        violations.append(Violation(f"{field}.weekday", "cannot be set together with a date"))
    if len(violations) > before:
        return SendTime(now)
    content = (f"send_at_local:{local.time}", str(int(local.weekday)), local.date)
    if day is None:
        latest = now + timedelta(days=7 if local.weekday else 1) + _CLOCK_CHANGE
        return SendTime(latest, local=local.SerializeToString(), content=content)
    in_utc = datetime.combine(day, time.fromisoformat(local.time), UTC)
    if in_utc + _WESTERNMOST <= now:
        violations.append(Violation(f"{field}.date", "has passed, everywhere on earth"))
    elif in_utc - _EASTERNMOST > now + MAX_AHEAD:
        violations.append(Violation(f"{field}.date", "is more than 366 days away"))
    return SendTime(in_utc + _WESTERNMOST, in_utc - _EASTERNMOST, local=local.SerializeToString(), content=content)


def _date(text: str, field: str, violations: list[Violation]) -> date | None:
    if not text:
        return None
    try:
        # `fromisoformat` alone would take other forms as well; the margin keeps the arithmetic within the calendar.
        if _DATE.fullmatch(text) and 1 < (day := date.fromisoformat(text)).year < 9_999:
            return day
    except ValueError:
        pass
    violations.append(Violation(field, "is no date (YYYY-MM-DD)"))
    return None
