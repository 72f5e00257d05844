"""The file by which a local system tells the command line where it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "endpoints.json"
DATA_DIRECTORY = Path(".reach")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a local system listens, and the development keys.

    Attributes:
        pid: the process that holds it.
        targets: gRPC target by role.
        metrics: URL of /metrics by role.
        receipts_url: where providers post receipts.
        api_key: key of the development agent; the file is readable for its owner only.
        operator_key: key of the development operator.
    """

    pid: int
    targets: Mapping[str, str]
    metrics: Mapping[str, str]
    receipts_url: str
    api_key: str
    operator_key: str

    @classmethod
    def load(cls, data: Path) -> Endpoints | None:
        """Reads the file of a data directory; None where nothing runs."""
        try:
            return cls(**json.loads((data / FILE_NAME).read_bytes()))
        except FileNotFoundError:
            return None

    def save(self, data: Path) -> None:
        """Writes the file, at once and for its owner only."""
        path = data / FILE_NAME
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=2)
        new.replace(path)

    @staticmethod
    def remove(data: Path) -> None:
        """Removes the file, when the system stops."""
        (data / FILE_NAME).unlink(missing_ok=True)
