"""The intents as a durable queue: those that wait to be judged and handed on."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from agent_reach.durable import Claim, TableQueue

from .draft import Draft

INTENTS = "intake.intents"

_COLUMNS = (
    "tenant", "user_id", "bare_channel", "bare_address", "scene", "template", "variables_json", "wishes", "expires_at",
    "traceparent", "created_at", "send_at", "send_at_local", "lifetime_seconds",
)  # fmt: skip


def intent_queue() -> TableQueue:
    """Returns the queue. The pump tries for ever, so attempts mean nothing."""
    return TableQueue(INTENTS, _COLUMNS, counts_attempts=False)


def claim_of(draft: Draft, owner: UUID, run_at: datetime) -> Claim:
    """Returns the claim of an intent that was inserted as ours."""
    row = {column: getattr(draft, column) for column in _COLUMNS}
    return Claim(draft.id, owner, 1, 0, run_at, draft.priority, row=row)
