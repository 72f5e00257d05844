"""Every reason that a gate gives. They are stable: programs and people read them in decisions and explanations.

| gate | passed or exempt | deferred, fell back or dropped |
|---|---|---|
| channel | `address_found` | `no_address`, `no_channel` |
| suppression | `not_suppressed` | `user_…`, `address_…`: see `gates.SUPPRESSED` |
| quiet hours | `outside_quiet_hours`, `scene_exempt`, `no_quiet_hours`, `released_after_deferral` | `quiet_hours`, `expires_before_quiet_end` |
| frequency | `within_caps`, `category_exempt` | `user_daily_cap`, `user_channel_daily_cap` |
| channel quota | `within_quota`, `no_quota` | `channel_quota_spent` |
"""

from __future__ import annotations

ADDRESS_FOUND = "address_found"
NO_ADDRESS = "no_address"
"""The user has no address on any channel that could be used."""
NO_CHANNEL = "no_channel"
"""None of the wanted channels is configured, or served by the template."""

NOT_SUPPRESSED = "not_suppressed"

OUTSIDE_QUIET_HOURS = "outside_quiet_hours"
SCENE_EXEMPT = "scene_exempt"
NO_QUIET_HOURS = "no_quiet_hours"
RELEASED_AFTER_DEFERRAL = "released_after_deferral"
"""It is quiet again, but the message was deferred once and comes on time: it goes. Worth an alert."""
QUIET_HOURS = "quiet_hours"
EXPIRES_BEFORE_QUIET_END = "expires_before_quiet_end"

WITHIN_CAPS = "within_caps"
CATEGORY_EXEMPT = "category_exempt"
USER_DAILY_CAP = "user_daily_cap"
USER_CHANNEL_DAILY_CAP = "user_channel_daily_cap"

WITHIN_QUOTA = "within_quota"
NO_QUOTA = "no_quota"
CHANNEL_QUOTA_SPENT = "channel_quota_spent"
