"""Whose word counts: the narrower one, and at the same width the tenant's before the file's before what is built in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.catalog.policies import Policies, parse_policies
from services.catalog.rules import Category, Channel, QuietWindow, UnknownSend, WindowCap

NIGHT = (QuietWindow(time(22, 30), time(8, 0)),)


def policies(text: str = "") -> Policies:
    """Returns policies of which the test says only what matters to it."""
    base: dict[str, Any] = {"version": 1, "policies": {"default": {}}, "channels": {"email": {}, "sms": {}}}
    said = yaml.safe_load(text) or {}
    return parse_policies(yaml.safe_dump({**base, **said}, sort_keys=False), Path("policies.yaml"))


# Narrowest first: where acme's scene `sale` (category marketing, policy `gentle`) may get its cap from.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("tenants", "acme", "scenes", "sale"),
    ("scenes", "sale"),
    ("tenants", "acme", "policies", "gentle"),
    ("policies", "gentle"),
    ("tenants", "acme", "categories", "marketing"),
    ("categories", "marketing"),
    ("tenants", "acme", "policies", "default"),
    ("policies", "default"),
)


def put(tree: dict[str, Any], path: tuple[str, ...], value: Mapping[str, Any]) -> None:
    for part in path:
        tree = tree.setdefault(part, {})
    tree.update(value)


@pytest.mark.parametrize("width", range(len(LEVELS) + 1))
def test_the_narrowest_word_counts_whatever_the_others_say(width: int) -> None:
    for said in itertools.combinations(range(len(LEVELS)), width):
        tree: dict[str, Any] = {"policies": {"default": {}, "gentle": {}}}
        put(tree, ("scenes", "sale"), {"category": "marketing", "policy": "gentle"})
        for level in said:
            put(tree, LEVELS[level], {"user_daily_cap": 100 + level})
        found = policies(yaml.safe_dump(tree))
        expected = {True: 100 + min(said, default=0), False: 3}[bool(said)]
        assert found.scene("sale", "acme").policy.user_daily_cap == expected
        others = [level for level in said if LEVELS[level][0] != "tenants"]
        expected = {True: 100 + min(others, default=0), False: 3}[bool(others)]
        assert found.scene("sale", "somebody").policy.user_daily_cap == expected
        assert found.scene("sale").policy.user_daily_cap == expected


def test_what_is_built_in_for_a_category() -> None:
    found = policies()
    expected = {
        Category.VERIFICATION: (4, True, None, None, UnknownSend.AGAIN),
        Category.ALERT: (4, True, timedelta(hours=1), timedelta(hours=1), UnknownSend.AGAIN),
        Category.NOTIFICATION: (4, False, timedelta(hours=1), timedelta(hours=1), UnknownSend.FAIL),
        Category.MARKETING: (8, False, timedelta(hours=1), timedelta(days=1), UnknownSend.FAIL),
    }
    for category, values in expected.items():
        rules = found.scene(category.value)
        assert values == (
            rules.policy.retry.max_attempts,
            rules.quiet_exempt,
            rules.dedupe_window,
            rules.intent_key_window,
            rules.unknown_send,
        ), category
        assert rules.policy.task_ttl == timedelta(days=1)
        assert (rules.digest, rules.share, rules.opt_in) == (None, 1.0, False)


def test_a_category_keeps_what_is_built_in_when_the_default_speaks_of_all() -> None:
    found = policies("policies: {default: {retry: {max_attempts: 2, base_seconds: 7}, dedupe_window_seconds: 60}}")
    marketing, code = found.scene("marketing"), found.scene("verify_code")
    assert (marketing.policy.retry.max_attempts, marketing.policy.retry.base_seconds) == (8, 7)
    assert (found.scene("notification").policy.retry.max_attempts, code.policy.retry.max_attempts) == (2, 2)
    assert (marketing.dedupe_window, code.dedupe_window) == (timedelta(minutes=1), None)


def test_a_category_can_be_set_otherwise() -> None:
    found = policies(
        """
        categories:
          marketing:
            retry: {max_attempts: 5}
            task_ttl_seconds: 3600
            user_window_caps: [{messages: 2, days: 7}, {messages: 1, seconds: 86400}]
            opt_in: true
          alert: {quiet_exempt: false, quiet_hours: ["23:00", "05:00"]}
          notification: {dedupe_window_seconds: null, intent_key_window_seconds: 60, unknown_send: again}
        """
    )
    marketing, alert, notification = (found.scene(name) for name in ("marketing", "alert", "x"))
    assert marketing.policy.retry.max_attempts == 5
    assert marketing.policy.task_ttl == timedelta(hours=1)
    assert marketing.policy.user_window_caps == (WindowCap(2, timedelta(days=7)), WindowCap(1, timedelta(days=1)))
    assert (marketing.opt_in, notification.opt_in) == (True, False)
    assert not alert.quiet_exempt
    assert alert.policy.quiet_hours == (QuietWindow(time(23), time(5)),)
    assert notification.dedupe_window is None
    assert notification.intent_key_window == timedelta(minutes=1)
    assert notification.unknown_send is UnknownSend.AGAIN


def test_a_scene_can_set_everything_for_itself() -> None:
    found = policies(
        """
        scenes:
          sale:
            category: marketing
            channels: [sms, email]
            template: spring
            quiet_hours: [{from: "20:00", to: "24:00", days: [fri, sat]}, {from: "00:00", to: "10:00"}]
            user_daily_cap: null
            user_channel_daily_cap: {sms: 1}
            user_window_caps: [{messages: 2, days: 7}]
            retry: {max_attempts: 2}
            task_ttl_seconds: 7200
            dedupe_window_seconds: 600
            intent_key_window_seconds: 300
            digest: {window_seconds: 1800, max_items: 10}
            share: 0.1
            opt_in: true
            unknown_send: again
        """
    )
    rules = found.scene("sale")
    assert rules.channels == (Channel.SMS, Channel.EMAIL)
    assert rules.template == "spring"
    assert rules.policy.quiet_hours == (
        QuietWindow(time(20), time(0), frozenset({4, 5})),
        QuietWindow(time(0), time(10)),
    )
    assert rules.policy.user_daily_cap is None
    assert rules.policy.user_channel_daily_cap == {Channel.SMS: 1}
    assert rules.policy.user_window_caps == (WindowCap(2, timedelta(days=7)),)
    assert (rules.policy.retry.max_attempts, rules.policy.retry.cap_seconds) == (2, 300)
    assert rules.policy.task_ttl == timedelta(hours=2)
    assert rules.dedupe_window == timedelta(minutes=10)
    assert rules.intent_key_window == timedelta(minutes=5)
    assert rules.digest is not None
    assert (rules.digest.window, rules.digest.max_items) == (timedelta(minutes=30), 10)
    assert (rules.share, rules.opt_in, rules.unknown_send) == (0.1, True, UnknownSend.AGAIN)


def test_caps_by_channel_are_inherited_each_by_itself_and_can_be_lifted() -> None:
    found = policies(
        """
        policies: {default: {user_channel_daily_cap: {sms: 2, email: 5}}}
        categories: {marketing: {user_channel_daily_cap: {email: 1}}}
        scenes: {sale: {category: marketing, user_channel_daily_cap: {sms: null}}}
        """
    )
    assert found.scene("marketing").policy.user_channel_daily_cap == {Channel.SMS: 2, Channel.EMAIL: 1}
    assert found.scene("sale").policy.user_channel_daily_cap == {Channel.EMAIL: 1}


def test_a_policy_that_lists_a_scene_as_exempt_speaks_as_narrowly_as_the_scene() -> None:
    found = policies(
        """
        policies: {default: {quiet_exempt_scenes: [door, bell]}}
        categories: {notification: {quiet_exempt: false}}
        scenes: {bell: {quiet_exempt: false}, door: {}}
        """
    )
    exempt = {name: found.scene(name).quiet_exempt for name in ("door", "bell", "other")}
    assert exempt == {"door": True, "bell": False, "other": False}


def test_a_built_in_scene_keeps_its_category_unless_another_one_is_named() -> None:
    found = policies("scenes: {verify_code: {channels: [sms]}, alert: {category: notification}}")
    assert found.scene("verify_code").category is Category.VERIFICATION
    assert found.scene("alert").category is Category.NOTIFICATION


def test_a_tenant_has_its_own_scenes_zone_and_strictness() -> None:
    found = policies(
        """
        strict_scenes: true
        default_time_zone: Europe/Zurich
        scenes: {sale: {category: marketing, share: 0.5}}
        tenants:
          acme: {scenes: {sale: {share: 1.0}, own: {category: alert}}, default_time_zone: Asia/Tokyo}
          loose: {strict_scenes: false}
        """
    )
    assert (found.scene("sale").share, found.scene("sale", "acme").share) == (0.5, 1.0)
    assert found.scene("sale", "acme").category is Category.MARKETING
    accepted = {
        (tenant, scene): found.accepts_scene(scene, tenant)
        for tenant in ("acme", "loose", "other")
        for scene in ("sale", "own", "nobody_declared_this")
    }
    assert {pair for pair, taken in accepted.items() if not taken} == {
        ("acme", "nobody_declared_this"),
        ("other", "own"),
        ("other", "nobody_declared_this"),
    }
    assert (found.time_zone("acme"), found.time_zone("loose"), found.time_zone()) == (
        "Asia/Tokyo",
        "Europe/Zurich",
        "Europe/Zurich",
    )


def test_a_tenant_can_take_back_what_the_file_says() -> None:
    found = policies(
        """
        policies: {default: {}, gentle: {user_daily_cap: 1}}
        scenes:
          sale:
            category: marketing
            policy: gentle
            digest: {window_seconds: 60}
            channels: [email]
        tenants: {acme: {scenes: {sale: {policy: default, digest: null, channels: null}}}}
        """
    )
    rules = found.scene("sale", "acme")
    assert (rules.policy.name, rules.policy.user_daily_cap, rules.digest, rules.channels) == ("default", 3, None, None)


def test_a_quota_of_the_tenant_holds_for_all_of_its_scenes() -> None:
    found = policies(
        """
        policies: {default: {tenant_daily_quota: 1000}, gentle: {}}
        scenes: {sale: {category: marketing, policy: gentle}}
        tenants: {small: {policies: {default: {tenant_daily_quota: 10}}}}
        """
    )
    for scene in ("sale", "alert", "undeclared"):
        assert found.scene(scene, "small").policy.tenant_daily_quota == 10
        assert found.scene(scene, "other").policy.tenant_daily_quota == 1_000
    assert policies().scene("alert").policy.tenant_daily_quota is None


def test_an_undeclared_scene_is_a_notification_under_its_own_name() -> None:
    found = policies("categories: {notification: {user_daily_cap: 9}}")
    rules = found.scene("whatever", "acme")
    assert (rules.name, rules.template, rules.declared) == ("whatever", "whatever", False)
    assert (rules.category, rules.policy.user_daily_cap) == (Category.NOTIFICATION, 9)
    assert rules.policy.quiet_hours == NIGHT


def test_scenes_that_nobody_declared_do_not_fill_the_memory() -> None:
    found = policies("scenes: {x: {category: marketing}}")
    for number in range(25_000):
        assert found.scene(f"s{number}").name == f"s{number}"
    assert len(found._known) <= 20_000
    assert found.scene("x").category is Category.MARKETING


def test_saying_what_would_be_inherited_makes_another_version_where_it_means_something_else() -> None:
    default = "policies: {default: {user_daily_cap: 5}, gentle: %s}\nscenes: {x: {policy: gentle}}"
    silent, said = policies(default % "{}"), policies(default % "{user_daily_cap: 3}")
    assert (silent.scene("x").policy.user_daily_cap, said.scene("x").policy.user_daily_cap) == (5, 3)
    assert silent.version != said.version
