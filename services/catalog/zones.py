"""Time zones by their IANA names: the same ones on every machine."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


@lru_cache(maxsize=1_024)
def find_zone(name: str) -> ZoneInfo | None:
    """Returns a zone by its IANA name, or None.

    None is also what a machine calls its own (`localtime`, `posixrules`, `posix/…`), what counts leap seconds
    (`right/…`), and the place holder `Factory`: they mean something else elsewhere, or nothing.
    """
    if name not in _names():
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # the machine's own file is broken
        return None


def check_time_zone(name: str) -> str:
    """Returns the name of an IANA time zone if it is one.

    Raises:
        ValueError: no such zone is known.
    """
    if find_zone(name) is None:
        raise ValueError(f"{name!r} is not a known IANA time zone")
    return name


@cache
def _names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()) - {"Factory"}
