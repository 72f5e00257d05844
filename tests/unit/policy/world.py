"""A plain policy, a plain user and a plain message; each test says what is otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from types import MappingProxyType

from services.catalog.rules import (
    Category,
    Channel,
    ChannelRules,
    Policy,
    QuietWindow,
    RetryRules,
    SceneRules,
    UnknownSend,
)
from services.policy.decision import Item, Person, Rules

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NIGHT = datetime(2026, 6, 1, 23, tzinfo=UTC)
MORNING = datetime(2026, 6, 2, 8, tzinfo=UTC)
ANN = Person({Channel.EMAIL: "ann@example.com", Channel.SMS: "+16502530000"}, locale="de-CH")
POLICY = Policy(
    name="default",
    quiet_hours=(QuietWindow(time(22, 30), time(8)),),
    quiet_exempt_scenes=frozenset(),
    user_daily_cap=3,
    user_channel_daily_cap=MappingProxyType({Channel.SMS: 2, Channel.EMAIL: 5}),
    user_window_caps=(),
    tenant_daily_quota=None,
    retry=RetryRules(4, 3, 300, 0.3),
    task_ttl=timedelta(days=1),
)


def scene(category: Category = Category.NOTIFICATION, policy: Policy = POLICY, **changes: object) -> SceneRules:
    rules = SceneRules(
        name="order_shipped",
        category=category,
        declared=True,
        channels=None,
        policy=policy,
        template="order_shipped",
        quiet_exempt=category in {Category.VERIFICATION, Category.ALERT},
        unknown_send=UnknownSend.FAIL,
        intent_key_window=None,
        dedupe_window=None,
        digest=None,
        share=1.0,
        opt_in=False,
    )
    return replace(rules, **changes)  # type: ignore[arg-type]  # each test names real fields


def rules(scene_rules: SceneRules | None = None, *, quota: Mapping[Channel, int] | None = None) -> Rules:
    fallbacks = {Channel.SMS: Channel.EMAIL}
    quotas = quota or {}
    channels = {
        channel: ChannelRules(channel, 1, 1, quotas.get(channel, 1_000), fallbacks.get(channel))
        for channel in (Channel.SMS, Channel.EMAIL, Channel.WEBHOOK)
    }
    return Rules(scene_rules or scene(), channels, "UTC", "hash")


def item(**changes: object) -> Item:
    plain = Item(intent_id="intent-1", hop=0, tenant="acme", user_id="ann", scene="order_shipped")
    return replace(plain, **changes)  # type: ignore[arg-type]  # each test names real fields
