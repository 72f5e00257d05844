"""Settings of the sandbox."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.chassis.settings import ChassisSettings


class SandboxSettings(ChassisSettings):
    """What the sandbox needs to know beside the chassis."""

    sandbox_places: int = Field(8, ge=1, le=1_000, description="Runs at the same time; one more is refused.")
    sandbox_python: Path | None = Field(
        None,
        description="Interpreter for Python code. Not set: the one below the service's virtual environment, so that"
        " code sees the standard library and not the service's packages.",
    )
    sandbox_dir: Path | None = Field(
        None, description="Folder below which each run gets a folder of its own; not set: the system's temporary one."
    )
    sandbox_memory_bytes: int | None = Field(
        2 * 1024**3, ge=64 * 1024**2, description="Address space of each process of a run; null sets no limit."
    )
    sandbox_file_bytes: int = Field(64 * 1024**2, ge=0, description="Size of each file that a run may write.")
    sandbox_processes: int | None = Field(
        None,
        ge=1,
        description="Processes at most. The kernel counts all processes of the user id, the service's too, so set it"
        " only where the sandbox has a user of its own that is not root. Not set: no limit.",
    )
    sandbox_delivery_seconds: float = Field(
        60.0, gt=0, description="Time for a slow caller to take what is left of the output after the run has ended."
    )
