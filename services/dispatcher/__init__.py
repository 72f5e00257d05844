"""Turns decided intents into tasks and sends them: renders, schedules, sends, retries, falls back, tells outcomes.

Never decides whether a person may be disturbed: that is asked of the policy.
"""
