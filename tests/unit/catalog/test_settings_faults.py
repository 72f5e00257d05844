"""Settings that cannot hold, told with line and reason."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from services.catalog.errors import CatalogError
from services.catalog.policies import parse_policies

HEAD = 'version: 1\npolicies: {default: {quiet_hours: ["22:00", "07:00"]}}\nchannels: {email: {}}\n'


def faults(text: str, head: str = HEAD) -> list[tuple[int | None, str]]:
    with pytest.raises(CatalogError) as caught:
        parse_policies(head + textwrap.dedent(text).lstrip("\n"), Path("policies.yaml"))
    return [(problem.line, problem.reason) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('categories:\n  marketing:\n    quiet_hours: [{from: "8:00", to: "09:00"}]', 6, "from"),
        (
            "categories:\n  marketing:\n    quiet_hours:\n      - {from: '08:00', to: '09:00'}\n      - {from: '9:00'}",
            8,
            "'9:00' is no time of day",
        ),
        ('categories:\n  marketing:\n    quiet_hours: [{from: "08:00", to: "09:00", days: [monday]}]', 6, "days"),
        ('categories:\n  marketing:\n    quiet_hours: [{from: "08:00", to: "09:00", days: [mon, mon]}]', 6, "twice"),
        ('categories:\n  marketing:\n    quiet_hours: [{from: "10:00", to: "10:00"}]', 6, "same time"),
        ("categories:\n  marketing:\n    quiet_hours: []", 6, "is empty; write null"),
        ('categories:\n  marketing:\n    quiet_hours: ["24:00", "07:00"]', 6, "'24:00' is no time of day"),
        ('categories:\n  marketing:\n    quiet_hours: ["00:00", "24:00"]', 6, "no minute of the week"),
        (
            'categories:\n  marketing:\n    quiet_hours: [{from: "00:00", to: "13:00"}, {from: "12:00", to: "24:00"}]',
            6,
            "no minute of the week",
        ),
        ("categories:\n  marketing:\n    user_window_caps: [{messages: 2}]", 6, "needs days or seconds"),
        (
            "categories:\n  marketing:\n    user_window_caps: [{messages: 2, days: 7, seconds: 5}]",
            6,
            "has days and seconds",
        ),
        ("categories:\n  marketing:\n    user_window_caps: [{messages: 2, days: 91}]", 6, "less than or equal to 90"),
        ("categories:\n  spam: {}", 5, "spam"),
        ("categories:\n  verification: {intent_key_window_seconds: 5}", 5, "must give its intent_key"),
        ('categories:\n  alert: {quiet_hours: ["22:00", "07:00"]}', 5, "add quiet_exempt: false"),
        ("scenes:\n  alert:\n    quiet_hours: [{from: '22:00', to: '07:00'}]", 6, "add quiet_exempt: false"),
        ("scenes:\n  x: {share: 1.5}", 5, "less than or equal to 1"),
        ("scenes:\n  x: {digest: {max_items: 5}}", 5, "window_seconds"),
        ("scenes:\n  x: {digest: {window_seconds: 60, max_items: 1}}", 5, "greater than or equal to 2"),
        ("scenes:\n  verify_code: {digest: {window_seconds: 60}}", 5, "a verification is not gathered"),
        ("scenes:\n  x: {digest: {window_seconds: 60}, task_ttl_seconds: 60}", 5, "not shorter than the life"),
        ("scenes:\n  x: {tenant_daily_quota: 5}", 5, "is not a known setting"),
        ("scenes:\n  x: {retry: null}", 5, "retry"),
        ("scenes:\n  x: {task_ttl_seconds: null}", 5, "valid integer"),
        ("tenants:\n  acme:\n    scenes:\n      x: {policy: gentle}", 7, "no policy named gentle"),
        ("tenants:\n  acme:\n    scenes:\n      x: {channels: [sms]}", 7, "sms is not among the channels"),
        ("tenants:\n  acme:\n    policies:\n      night: {tenant_daily_quota: 5}", 7, "belongs to policy default"),
        ("tenants:\n  acme:\n    categories:\n      verification: {intent_key_window_seconds: 5}", 7, "must give its"),
        ("tenants:\n  acme:\n    default_time_zone: Asia/Nowhere", 6, "IANA"),
        ("default_time_zone: localtime", 4, "'localtime' is not a known IANA time zone"),
        (
            (
                "tenants:\n  acme:\n    policies:\n      night:\n        quiet_exempt_scenes:\n        - a\n        - alert\n"
                "    scenes: {b: {}}"
            ),
            9,
            "policies.night.quiet_exempt_scenes.0: there is no scene named a",
        ),
        ("tenants:\n  -acme: {}", 5, "match pattern"),
        ("tenants:\n  acme: {channels: {}}", 5, "is not a known setting"),
        ("shadow: {share: 0.1}", 4, "file"),
        ("shadow: {file: ../policies.yaml}", 4, "match pattern"),
        ("shadow: {file: policies.yaml}", 4, "is this file itself"),
    ],
)
def test_a_setting_that_cannot_hold_is_told_with_its_line(text: str, line: int, reason: str) -> None:
    found = faults(text)
    assert any(at == line and reason in words for at, words in found), found


DIGEST = "scenes:\n  news: {digest: {window_seconds: 1800}}\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        # 4 is `scenes:`, 5 is `news:`, 6 is `tenants:`, 7 is `acme:`.
        (
            DIGEST + "tenants:\n  acme:\n    policies:\n      default:\n        task_ttl_seconds: 600",
            10,
            "tenants.acme.policies.default.task_ttl_seconds: scene news gathers for 1800 s, which is not shorter than",
        ),
        (
            DIGEST + "tenants:\n  acme:\n    categories:\n      notification: {task_ttl_seconds: 600}",
            9,
            "tenants.acme.categories.notification.task_ttl_seconds: scene news gathers",
        ),
        (
            DIGEST + "tenants:\n  acme:\n    scenes:\n      news: {task_ttl_seconds: 600}",
            9,
            "tenants.acme.scenes.news.task_ttl_seconds: scene news gathers",
        ),
        (
            DIGEST
            + "tenants:\n  acme:\n    policies: {quick: {task_ttl_seconds: 600}}\n    scenes: {news: {policy: quick}}",
            8,
            "tenants.acme.policies.quick.task_ttl_seconds: scene news gathers",
        ),
        (
            DIGEST + "tenants:\n  acme:\n    scenes:\n      news: {category: verification}",
            9,
            "tenants.acme.scenes.news.category: a verification is not gathered (scene news)",
        ),
        (
            "categories: {marketing: {task_ttl_seconds: 600}}\n"
            + DIGEST
            + "tenants: {acme: {scenes: {news: {category: "
            "marketing}}}}",
            7,
            "tenants.acme.scenes.news.category: scene news gathers",
        ),
        (
            "scenes: {pin: {intent_key_window_seconds: 60}}\ntenants:\n  acme:\n    scenes:\n      pin: {category: verification}",
            8,
            "tenants.acme.scenes.pin.category: a verification must give its intent_key",
        ),
    ],
)
def test_what_a_tenant_has_otherwise_is_checked_against_every_scene_of_the_file(
    text: str, line: int, reason: str
) -> None:
    [(at, words)] = faults(text)
    assert at == line
    assert words.startswith(reason)


def test_what_is_wrong_without_a_tenant_is_told_once_and_what_each_tenant_adds_for_each() -> None:
    text = "scenes:\n  news: {digest: {window_seconds: 60}, task_ttl_seconds: 60}\ntenants:\n"
    tenants = "  one: {policies: {default: {user_daily_cap: 1}}}\n  two: {policies: {default: {user_daily_cap: 2}}}\n"
    assert [line for line, _ in faults(text + tenants)] == [5]
    tenants = "".join(f"  {name}: {{categories: {{notification: {{task_ttl_seconds: 60}}}}}}\n" for name in ("a", "b"))
    assert [line for line, _ in faults(DIGEST + "tenants:\n" + tenants)] == [7, 8]


def test_a_tenant_that_mends_what_it_has_otherwise_is_fine() -> None:
    mended = "tenants: {acme: {policies: {default: {task_ttl_seconds: 600}}, scenes: {news: {digest: null}}}}"
    assert parse_policies(HEAD + DIGEST + mended, Path("policies.yaml")).scene("news", "acme").digest is None


def test_a_day_that_is_none_is_one_fault() -> None:
    text = 'categories: {marketing: {quiet_hours: [{from: "20:00", to: "09:00", days: [Mon]}]}}'
    [(line, reason)] = faults(text)
    assert (line, reason.partition(": ")[0]) == (4, "categories.marketing.quiet_hours.0.days.0")
    assert "'mon', 'tue'" in reason


def test_a_pair_may_end_with_the_day() -> None:
    text = 'categories: {marketing: {quiet_hours: ["20:00", "24:00"]}}'
    [window] = parse_policies(HEAD + text, Path("policies.yaml")).scene("marketing").policy.quiet_hours
    assert (window.start.hour, window.end) == (20, window.end.min)


@pytest.mark.parametrize("scenes", ["scenes: {door: {}}", "tenants: {acme: {scenes: {door: {}}}}"])
def test_a_scene_may_be_exempt_that_the_file_or_a_tenant_declares(scenes: str) -> None:
    head = HEAD.replace("{quiet_hours", "{quiet_exempt_scenes: [door, verify_code], quiet_hours")
    assert parse_policies(head + scenes, Path("policies.yaml")).scene("door", "acme").quiet_exempt


def test_a_rate_has_an_end() -> None:
    for rate in (".inf", ".nan", "!!float .inf", "0", "1.0e+300"):
        assert "rate_per_sec" in faults("", HEAD.replace("email: {}", f"email: {{rate_per_sec: {rate}}}"))[0][1]


def test_alerts_that_may_not_disturb_can_have_quiet_hours() -> None:
    text = 'scenes: {alert: {quiet_exempt: false, quiet_hours: ["22:00", "07:00"]}}'
    assert parse_policies(HEAD + text, Path("policies.yaml")).scene("alert").policy.quiet_hours


def test_a_whole_day_can_be_quiet() -> None:
    text = 'categories: {marketing: {quiet_hours: [{from: "00:00", to: "24:00", days: [sun]}]}}'
    [window] = parse_policies(HEAD + text, Path("policies.yaml")).scene("marketing").policy.quiet_hours
    assert (window.start, window.end, window.days) == (window.start.min, window.start.min, frozenset({6}))
