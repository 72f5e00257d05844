"""A zone is a place of the world, and the same one on every machine."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from services.catalog.zones import check_time_zone, find_zone


@pytest.mark.parametrize("name", ["Europe/Zurich", "America/Argentina/Ushuaia", "UTC", "Etc/GMT+5", "US/Pacific"])
def test_zones_are_found_by_their_iana_names(name: str) -> None:
    assert find_zone(name) == ZoneInfo(check_time_zone(name))


@pytest.mark.parametrize(
    "name",
    [
        "localtime",
        "posixrules",
        "Factory",
        "posix/Europe/Zurich",
        "right/Europe/Zurich",
        "Asia/Nowhere",
        "Europe",
        "europe/zurich",
        "../Europe/Zurich",
        "/etc/localtime",
        "Europe/Zurich\0",
        "",
        "x" * 10_000,
    ],
)
def test_what_is_none_everywhere_is_none_here(name: str) -> None:
    assert find_zone(name) is None
    with pytest.raises(ValueError, match="is not a known IANA time zone"):
        check_time_zone(name)
