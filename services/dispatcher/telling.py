"""Telling agents: an outcome row for each change of state, in the transaction that makes it.

A digest has no agent of its own: what becomes of it is told to each of its parts.
"""

from __future__ import annotations

# The parts of a digest that go with it; those that were cancelled, or expired before it was flushed, have ended.
LIVE_PART = "p.state = 'SCHEDULED'"


def tell(tasks: str, *, where: str = "true", state: str = "t.state", reason: str = "t.reason", order: str = "") -> str:
    """Returns SQL that tells of tasks.

    Args:
        tasks: FROM item; has the columns of a task under the alias ``t``.
        where: which of them.
        state: what they reached.
        reason: why.
        order: in which order they are told, where that matters.
    """
    return f"""
        INSERT INTO dispatcher.outcomes
            (tenant, intent_id, task_id, hop, user_id, scene, state, reason, channel, attempts)
        SELECT t.tenant, coalesce(p.intent_id, t.intent_id), t.id, t.hop, t.user_id, t.scene, {state}, {reason},
            t.channel, t.attempts
        FROM {tasks} LEFT JOIN dispatcher.tasks AS p
            ON p.gathered_into = CASE WHEN t.gathered THEN t.intent_id END AND {LIVE_PART}
        WHERE ({where}) AND (NOT t.gathered OR p.id IS NOT NULL)
        {f"ORDER BY {order}" if order else ""}
    """  # noqa: S608 - the fragments are the callers' own, without values
