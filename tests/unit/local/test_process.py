"""A role is awaited until it serves, told why it does not, and goes when its parent goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from services.chassis.startup import StartupError
from services.local.ports import LOOPBACK, free_ports
from services.local.process import RoleProcess


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[RoleProcess]:
    """A real role, the one that needs nothing else."""
    process = RoleProcess("sandbox", _environment(f"{LOOPBACK}:{next(free_ports())}"), tmp_path / "log")
    yield process
    await process.stop()


def _environment(address: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
    return {**kept, "REACH_GRPC_ADDRESS": address, "REACH_SERVICE_KEY": "reach_key", "REACH_DRAIN_SECONDS": "1"}


async def test_it_serves_drains_and_can_be_started_again(sandbox: RoleProcess) -> None:
    await sandbox.start()
    port = sandbox.grpc_port
    assert port
    assert psutil.pid_exists(sandbox.pid)
    await sandbox.stop()
    assert await sandbox.wait() == 0
    assert sandbox.pid == 0
    await sandbox.start()
    assert sandbox.grpc_port == port
    await sandbox.kill()
    assert await sandbox.wait() == -signal.SIGKILL


async def test_a_setting_with_a_fault_is_told_by_name(tmp_path: Path) -> None:
    environment = {**_environment(f"{LOOPBACK}:0"), "REACH_DRAIN_SECONDS": "soon"}
    process = RoleProcess("sandbox", environment, tmp_path / "log")
    with pytest.raises(StartupError, match=r"sandbox \(settings\): REACH_DRAIN_SECONDS: .*number") as caught:
        await process.start()
    assert "environment" in caught.value.advice
    assert process.pid == 0


async def test_a_role_that_nobody_could_call_says_what_is_missing(tmp_path: Path) -> None:
    environment = _environment(f"{LOOPBACK}:0")
    del environment["REACH_SERVICE_KEY"]
    process = RoleProcess("sandbox", environment, tmp_path / "log")
    with pytest.raises(StartupError) as caught:
        await process.start()
    assert "REACH_API_KEYS_FILE" in caught.value.advice


async def test_one_that_dies_before_it_serves_names_its_log(tmp_path: Path) -> None:
    environment = {**_environment(f"{LOOPBACK}:0"), "PYTHONHOME": "/nowhere"}
    process = RoleProcess("sandbox", environment, tmp_path / "log")
    with pytest.raises(StartupError, match="ended before it served") as caught:
        await process.start()
    assert str(tmp_path / "log") in caught.value.advice


def test_it_ends_when_its_parent_is_gone() -> None:
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "services.main", "sandbox", "--with-parent", "--report-fd", str(write_end)],
        env=_environment(f"{LOOPBACK}:0"),
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(write_end,),
    ) as process:
        os.close(write_end)
        with os.fdopen(read_end) as reports:
            assert "grpc_port" in reports.readline()
        assert process.stdin is not None
        # What the kernel does with every pipe of a process that dies.
        process.stdin.close()
        assert process.wait() == 0
