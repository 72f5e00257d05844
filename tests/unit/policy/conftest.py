"""Properties are checked on every input alike: how long one takes says more about the machine than about us."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None, max_examples=60)
settings.load_profile("untimed")
