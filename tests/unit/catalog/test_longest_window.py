"""How far back counters must remember: as far as the longest window of any scene, of any tenant."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from services.catalog.policies import parse_policies

PLAIN = "version: 1\npolicies:\n  default: {}\nchannels:\n  email: {}\n"


@pytest.mark.parametrize(
    ("addition", "longest"),
    [
        ("", timedelta(0)),
        ("scenes:\n  sale: {user_window_caps: [{messages: 2, days: 7}, {messages: 1, seconds: 60}]}\n", timedelta(7)),
        ("categories:\n  marketing: {user_window_caps: [{messages: 2, days: 9}]}\n", timedelta(9)),
        ("tenants:\n  acme: {scenes: {sale: {user_window_caps: [{messages: 2, days: 30}]}}}\n", timedelta(30)),
    ],
)
def test_the_longest_window_is_found_wherever_it_stands(addition: str, longest: timedelta) -> None:
    assert parse_policies(PLAIN + addition, Path("policies.yaml")).longest_window == longest
