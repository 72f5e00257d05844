"""What is wrong with the operator's files, so that it can be found and mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in one file.

    Attributes:
        file: the file at fault.
        line: its line, from 1; None where the fault is the file as a whole.
        reason: what is wrong, and what is allowed.
    """

    file: Path
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line is not None else str(self.file)
        return f"{place}: {self.reason}"


class CatalogError(Exception):
    """The files of the configuration do not make a catalog; every problem is named.

    Attributes:
        problems: the faults, at least one.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
