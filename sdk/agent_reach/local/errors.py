"""What can go wrong when a local server is started."""

from __future__ import annotations


class LocalServerError(Exception):
    """A local server did not start.

    Attributes:
        part: which server ("PostgreSQL", "Redis").
        advice: what the user can do about it.
    """

    def __init__(self, part: str, why: str, advice: str) -> None:
        super().__init__(f"{part}: {why}")
        self.part = part
        self.advice = advice
