"""What a start that fails says: which part, why, and what to do."""

from __future__ import annotations


class StartupError(Exception):
    """A part could not be started.

    Attributes:
        part: the part, in the user's words.
        advice: what the user can do about it.
    """

    def __init__(self, part: str, why: str, advice: str) -> None:
        super().__init__(f"{part}: {why}")
        self.part = part
        self.advice = advice
