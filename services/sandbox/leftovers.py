"""The second net: ends what is left of a run whose launcher was killed, by accident or by the code itself."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def kill_leftovers(home: Path) -> int:
    """Kills every process that still carries the run's home in its environment. Returns how many.

    Only a net: code that gave itself another environment is not found. It is never needed while the launcher lives.
    """
    killed = 0
    # Each pass may have missed what was forked during it.
    while found := [process for process in psutil.process_iter() if _belongs(process, home)]:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed += len(found)
        psutil.wait_procs(found, timeout=1.0)
    return killed


def _belongs(process: psutil.Process, home: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE
    return False
