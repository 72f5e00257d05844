"""What the operator may write in policies.yaml, and what he is told when it is wrong."""

from __future__ import annotations

from datetime import time, timedelta
from pathlib import Path

import pytest

from services.catalog.errors import CatalogError
from services.catalog.policies import Policies, load_policies
from services.catalog.rules import Category, Channel, QuietWindow, UnknownSend

# The configuration of the issue "The main job, end to end", exactly as it stands there.
ISSUE = """\
version: 3
policies:
  default:
    quiet_hours: ["22:30", "08:00"]
    quiet_exempt_scenes: [verify_code, alert]
    user_daily_cap: 3
    user_channel_daily_cap: {sms: 2, email: 5}
    retry: {max_attempts: 4, base_seconds: 3, cap_seconds: 300, jitter_ratio: 0.3}
    task_ttl_seconds: 86400
channels:
  sms: {burst: 200, rate_per_sec: 200, daily_quota: 500000, fallback: email}
  email: {burst: 500, rate_per_sec: 300, daily_quota: 2000000}
  webhook: {burst: 100, rate_per_sec: 100, daily_quota: 1000000}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "policies.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def load(folder: Path, text: str) -> Policies:
    return load_policies(write(folder, text))


def faults(folder: Path, text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(CatalogError) as caught:
        load(folder, text)
    return [(problem.line, problem.reason) for problem in caught.value.problems]


def test_the_configuration_of_the_issue_loads_as_it_stands(tmp_path: Path) -> None:
    policies = load(tmp_path, ISSUE)
    policy = policies.scene("order_shipped").policy
    assert policy.quiet_hours == (QuietWindow(time(22, 30), time(8, 0)),)
    assert policy.quiet_exempt_scenes == {"verify_code", "alert"}
    assert policy.user_daily_cap == 3
    assert policy.user_channel_daily_cap == {Channel.SMS: 2, Channel.EMAIL: 5}
    assert (policy.retry.max_attempts, policy.retry.base_seconds) == (4, 3)
    assert (policy.retry.cap_seconds, policy.retry.jitter_ratio) == (300, 0.3)
    assert policy.task_ttl == timedelta(days=1)
    assert list(policies.channels) == [Channel.SMS, Channel.EMAIL, Channel.WEBHOOK]
    assert policies.channels[Channel.SMS].fallback is Channel.EMAIL
    assert policies.channels[Channel.WEBHOOK].daily_quota == 1_000_000
    assert policies.revision == 3


def test_the_version_is_that_of_the_content_not_of_its_layout(tmp_path: Path) -> None:
    version = load(tmp_path, ISSUE).version
    assert load(tmp_path, "# a comment\n" + ISSUE).version == version
    assert load(tmp_path, ISSUE.replace("user_daily_cap: 3", "user_daily_cap: 4")).version != version


def test_the_order_of_the_channels_is_part_of_the_version(tmp_path: Path) -> None:
    lines = ISSUE.splitlines()
    swapped = "\n".join([*lines[:-2], lines[-1], lines[-2]])
    assert load(tmp_path, swapped).version != load(tmp_path, ISSUE).version


@pytest.mark.parametrize(
    ("scene", "category", "window"),
    [
        ("verify_code", Category.VERIFICATION, None),
        ("verification", Category.VERIFICATION, None),
        ("alert", Category.ALERT, timedelta(hours=1)),
        ("marketing", Category.MARKETING, timedelta(days=1)),
        ("notification", Category.NOTIFICATION, timedelta(hours=1)),
        ("nobody_declared_this", Category.NOTIFICATION, timedelta(hours=1)),
    ],
)
def test_scenes_that_nobody_declared(tmp_path: Path, scene: str, category: Category, window: timedelta | None) -> None:
    rules = load(tmp_path, ISSUE).scene(scene)
    assert (rules.category, rules.intent_key_window) == (category, window)
    assert rules.template == scene
    assert rules.channels is None


def test_verification_and_alert_may_disturb_at_night_and_are_sent_again_when_unknown(tmp_path: Path) -> None:
    policies = load(tmp_path, ISSUE)
    assert policies.scene("alert").quiet_exempt
    assert policies.scene("alert").unknown_send is UnknownSend.AGAIN
    assert not policies.scene("order_shipped").quiet_exempt
    assert policies.scene("order_shipped").unknown_send is UnknownSend.FAIL


def test_a_named_policy_inherits_what_it_leaves_out(tmp_path: Path) -> None:
    text = ISSUE.replace(
        "channels:\n  sms",
        "  gentle: {user_daily_cap: 1, retry: {max_attempts: 8}, user_channel_daily_cap: {sms: 1}}\nchannels:\n  sms",
    )
    text += "scenes:\n  spring_sale: {category: marketing, policy: gentle, channels: [email], unknown_send: again}\n"
    rules = load(tmp_path, text).scene("spring_sale")
    assert rules.policy.name == "gentle"
    assert rules.policy.user_daily_cap == 1
    assert rules.policy.user_channel_daily_cap == {Channel.SMS: 1, Channel.EMAIL: 5}
    assert (rules.policy.retry.max_attempts, rules.policy.retry.cap_seconds) == (8, 300)
    assert rules.policy.quiet_hours == (QuietWindow(time(22, 30), time(8, 0)),)
    assert rules.channels == (Channel.EMAIL,)
    assert rules.unknown_send is UnknownSend.AGAIN


def test_a_named_policy_may_switch_off_what_the_default_has(tmp_path: Path) -> None:
    text = ISSUE.replace("channels:\n  sms", "  loud: {quiet_hours: null, user_daily_cap: null}\nchannels:\n  sms")
    policy = load(tmp_path, text + "scenes:\n  x: {policy: loud}\n").scene("x").policy
    assert policy.quiet_hours == ()
    assert policy.user_daily_cap is None


def test_windows_of_derived_keys_are_settable_by_category_and_by_scene(tmp_path: Path) -> None:
    text = (
        ISSUE
        + "categories: {notification: {intent_key_window_seconds: 60}}\nscenes:\n  x: {intent_key_window_seconds: 5}\n"
    )
    policies = load(tmp_path, text)
    assert policies.scene("notification").intent_key_window == timedelta(minutes=1)
    assert policies.scene("x").intent_key_window == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("wrong", "right", "line", "reason"),
    [
        ("user_daily_cap: 3", "user_daily_cap: -1", 6, "greater than or equal to 0"),
        ("user_daily_cap: 3", 'user_daily_cap: "3"', 6, "valid integer"),
        ("user_daily_cap: 3", "user_dayly_cap: 3", 6, "is not a known setting"),
        ('["22:30", "08:00"]', '["22:30"]', 4, "quiet_hours"),
        ('["22:30", "08:00"]', '["22:30", "24:01"]', 4, "'24:01' is no time of day"),
        ('["22:30", "08:00"]', "[2230, 800]", 4, "valid string"),
        ('["22:30", "08:00"]', '["08:00", "08:00"]', 4, "same time"),
        ("fallback: email", "fallback: sms", 11, "is the channel itself"),
        ("fallback: email", "fallback: chat", 11, "chat is not among the channels"),
        ("webhook:", "pigeon:", 13, "pigeon"),
        ("webhook:", "email:", 13, "stands here a second time"),
        ("default:", "defualt:", 2, "no policy named default"),
        ("version: 3", "version: [", 3, "expected"),
    ],
)
def test_a_fault_is_told_with_its_line(tmp_path: Path, wrong: str, right: str, line: int, reason: str) -> None:
    found = faults(tmp_path, ISSUE.replace(wrong, right))
    assert any(at == line and reason in text for at, text in found), found


@pytest.mark.parametrize(
    ("scenes", "line", "reason"),
    [
        ("  x: {policy: gentle}", 15, "no policy named gentle"),
        ("  x: {channels: [chat]}", 15, "chat is not among the channels"),
        ("  x: {channels: [sms, sms]}", 15, "twice"),
        ("  x: {category: spam}", 15, "category"),
        ("  verify_code: {category: verification, intent_key_window_seconds: 5}", 15, "must give its intent_key"),
        ("  Not-A-Name!: {}", 15, "match pattern"),
    ],
)
def test_a_fault_in_a_scene_is_told_with_its_line(tmp_path: Path, scenes: str, line: int, reason: str) -> None:
    found = faults(tmp_path, f"{ISSUE}scenes:\n{scenes}\n")
    assert any(at == line and reason in text for at, text in found), found


def test_a_default_time_zone_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "IANA" in faults(tmp_path, f"{ISSUE}default_time_zone: Asia/Nowhere\n")[0][1]
    assert load(tmp_path, f"{ISSUE}default_time_zone: Asia/Tokyo\n").time_zone() == "Asia/Tokyo"


def test_several_faults_are_told_at_once(tmp_path: Path) -> None:
    text = ISSUE.replace("user_daily_cap: 3", "user_daily_cap: -1").replace("burst: 200", "burst: none")
    assert len(faults(tmp_path, text)) == 2


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read"):
        load_policies(tmp_path / "policies.yaml")
    (tmp_path / "policies.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogError, match="cannot be read"):
        load_policies(tmp_path / "policies.yaml")
