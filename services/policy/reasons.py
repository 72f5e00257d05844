"""Every reason that a gate gives. They are stable: programs and people read them in decisions and explanations.

| gate | passed or exempt | deferred, fell back or dropped |
|---|---|---|
| schedule | `send_at_reached` | `scheduled`, `expires_before_send_at` |
| release | `released_to_user` | `not_released` |
| channel | `address_found` | `no_address`, `no_channel` |
| suppression | `not_suppressed` | `user_…`, `address_…`: see `gates.SUPPRESSED`; `preference_opted_out`, `opt_in_missing` |
| digest | `already_gathered`, `expires_before_digest` | `gathered` |
| quiet hours | `outside_quiet_hours`, `scene_exempt`, `no_quiet_hours`, `released_after_deferral` | `quiet_hours`, `expires_before_quiet_end` |
| frequency | `within_caps`, `category_exempt` | `tenant_daily_quota`, `user_daily_cap`, `user_channel_daily_cap`, `user_window_cap` |
| channel quota | `within_quota`, `no_quota` | `channel_quota_spent` |

The gates schedule, release and digest are asked, and leave a trace, only where the intent or its scene uses them.
"""

from __future__ import annotations

SEND_AT_REACHED = "send_at_reached"
SCHEDULED = "scheduled"
EXPIRES_BEFORE_SEND_AT = "expires_before_send_at"

RELEASED_TO_USER = "released_to_user"
NOT_RELEASED = "not_released"
"""The scene is switched on for a share of users, and this one is not among them."""

ADDRESS_FOUND = "address_found"
NO_ADDRESS = "no_address"
"""The user has no address on any channel that could be used."""
NO_CHANNEL = "no_channel"
"""None of the wanted channels is configured, or served by the template."""

NOT_SUPPRESSED = "not_suppressed"
PREFERENCE_OPTED_OUT = "preference_opted_out"
OPT_IN_MISSING = "opt_in_missing"
"""The scene needs a user's opting in, and this one has not."""

ALREADY_GATHERED = "already_gathered"
EXPIRES_BEFORE_DIGEST = "expires_before_digest"
"""It cannot wait until the digest leaves, so it goes by itself."""
GATHERED = "gathered"

OUTSIDE_QUIET_HOURS = "outside_quiet_hours"
SCENE_EXEMPT = "scene_exempt"
NO_QUIET_HOURS = "no_quiet_hours"
RELEASED_AFTER_DEFERRAL = "released_after_deferral"
"""It is quiet again, but the message was deferred once and comes on time: it goes. Worth an alert."""
QUIET_HOURS = "quiet_hours"
EXPIRES_BEFORE_QUIET_END = "expires_before_quiet_end"

WITHIN_CAPS = "within_caps"
CATEGORY_EXEMPT = "category_exempt"
TENANT_DAILY_QUOTA = "tenant_daily_quota"
USER_DAILY_CAP = "user_daily_cap"
USER_CHANNEL_DAILY_CAP = "user_channel_daily_cap"
USER_WINDOW_CAP = "user_window_cap"

WITHIN_QUOTA = "within_quota"
NO_QUOTA = "no_quota"
CHANNEL_QUOTA_SPENT = "channel_quota_spent"
