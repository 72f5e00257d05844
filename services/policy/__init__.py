"""May this person be disturbed, now, here? Judges messages by profile, suppressions, hour, caps and quotas.

Keeps no state in the process: profiles and suppressions live in PostgreSQL, counters in Redis, from where they may
vanish at any moment; any replica answers any request. Writes no task and knows no provider.
"""
