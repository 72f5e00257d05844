"""`reach up` as a user meets it: the real command in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from agent_reach.cli.endpoints import Endpoints
from services.local.data import PACKAGED_CONFIG
from services.local.ports import LOOPBACK, free_ports

pytestmark = pytest.mark.timeout(240)

_REACH = Path(sys.executable).parent / "reach"
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}


class RunningUp:
    """A `reach up` that serves."""

    def __init__(self, process: subprocess.Popen[str], data: Path) -> None:
        self.process = process
        self.data = data
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, pattern: str) -> str:
        """Waits for a line of its screen and returns it."""
        with self._changed:
            self._changed.wait_for(lambda: self._find(pattern) or self.process.poll() is not None, timeout=90)
        line = self._find(pattern)
        assert line, "\n".join(self.lines)
        return line

    def end(self, number: int) -> int:
        """Sends a signal and waits for the end."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=90)
        self._reader.join()
        return code

    def _find(self, pattern: str) -> str:
        return next((line for line in self.lines if re.search(pattern, line)), "")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()


@contextmanager
def _up(data: Path) -> Iterator[RunningUp]:
    with subprocess.Popen(
        [_REACH, "up", "--data", data, "--port-base", "0"],
        cwd=data.parent,
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        up = RunningUp(process, data)
        try:
            up.wait_for("Ctrl-C drains")
            yield up
        finally:
            if process.poll() is None:
                up.end(signal.SIGTERM)


def _reach(data: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_REACH, *arguments],
        cwd=data.parent,
        env={**_ENVIRONMENT, "REACH_DATA": str(data)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def _processes(data: Path) -> list[psutil.Process]:
    """Returns every process that belongs to a data directory, by its command line, folder or environment."""
    mine = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.cwd(), process.environ().get("REACH_API_KEYS_FILE", "")]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if any(str(data) in word for word in words) and process.pid != os.getpid():
            mine.append(process)
    return mine


def _parent_of_its_kind(program: str, data: Path) -> psutil.Process:
    """Returns the process of a server that started the others of it."""
    found = {process.pid: process for process in _processes(data) if program in process.name()}
    (parent,) = [process for process in found.values() if process.ppid() not in found]
    return parent


@pytest.fixture
def data(short_directory: Path) -> Path:
    return short_directory / "data"


def test_what_is_up_can_be_used_at_once_and_is_kept_between_runs(data: Path) -> None:
    with _up(data) as up:
        status = _reach(data, "status")
        assert status.returncode == 0, status.stderr
        assert status.stdout.count("SERVING") == 5
        order = ("--address", "ada@example.com", "--scene", "order_shipped", "--var", "order_id=A-1", "--key", "a-1")
        submitted = _reach(data, "submit", *order)
        assert submitted.returncode == 0, submitted.stderr
        intent_id = submitted.stdout.strip()
        assert "A-1" in _reach(data, "explain", intent_id).stdout

        refused = _reach(data, "submit", *order, "--var", "order_id=A-2")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "INTENT_KEY_REUSED" in refused.stderr
        assert "What to do" in refused.stderr
        assert "Traceback" not in refused.stderr

        # A second one on the same data says who holds it.
        second = _reach(data, "up", "--data", data, "--port-base", "0")
        assert second.returncode == 1
        assert f"held by process {up.process.pid}" in second.stderr
        assert "What to do" in second.stderr

        # A configuration with a fault is refused, and seen to be.
        policies = data / "config" / "policies.yaml"
        good = policies.read_text()
        policies.write_text(good.replace("user_daily_cap: 3", "user_daily_cap: many"))
        assert f"{policies}:" in up.wait_for("configuration refused")
        refused = _reach(data, "status")
        while refused.returncode == 0:  # each service looks by itself, within 2 s
            refused = _reach(data, "status")
        assert f"{policies}:" in refused.stderr
        assert refused.stdout.count("SERVING") == 5
        policies.write_text(good)
        up.wait_for("configuration in force")
        while _reach(data, "status").returncode:
            pass

        # A role that dies is told and started again.
        (dispatcher,) = [process for process in _processes(data) if "dispatcher" in process.cmdline()]
        dispatcher.kill()
        up.wait_for("dispatcher ended unexpectedly")
        up.wait_for("dispatcher serves again")
        assert _reach(data, "status").returncode == 0

        # Ctrl-C stops everything, its databases too.
        assert up.end(signal.SIGINT) == 0
        assert _processes(data) == []
        assert Endpoints.load(data) is None

    with _up(data):
        assert intent_id in _reach(data, "list").stdout


@pytest.mark.slow
def test_postgres_and_redis_that_die_are_started_again_and_everything_goes_on(data: Path) -> None:
    with _up(data) as up:
        for name, program in (("PostgreSQL", "postgres"), ("Redis", "redis-server")):
            server = _parent_of_its_kind(program, data)
            server.kill()
            up.wait_for(f"{name} ended unexpectedly")
            up.wait_for(f"{name} serves again")
        after = _reach(
            data, "submit", "--address", "ada@example.com", "--scene", "order_shipped", "--var", "order_id=A-3"
        )
        assert after.returncode == 0, after.stderr


@pytest.mark.slow
def test_when_it_is_killed_its_services_end_by_themselves_and_the_next_one_takes_over(data: Path) -> None:
    with _up(data) as up:
        roles = [process for process in _processes(data) if "services.main" in process.cmdline()]
        assert len(roles) == 5
        up.end(signal.SIGKILL)
        _gone, alive = psutil.wait_procs(roles, timeout=60)
        assert alive == []
    with _up(data) as up:
        assert _reach(data, "status").returncode == 0
        assert up.end(signal.SIGINT) == 0
    assert _processes(data) == []


@pytest.mark.parametrize("role", ["intake", pytest.param("policy", marks=pytest.mark.slow)])
def test_a_port_that_is_taken_is_named_and_nothing_is_left_running(data: Path, role: str) -> None:
    base = next(free_ports())
    taken = {"intake": base, "policy": base + 1}[role]
    with socket.socket() as holder:
        holder.bind((LOOPBACK, taken))
        holder.listen()
        failed = _reach(data, "up", "--data", data, "--port-base", str(base))
    assert failed.returncode == 1
    assert f"{taken} is taken by another process" in failed.stderr
    assert "--port-base" in failed.stderr
    assert "What to do" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert _processes(data) == []


@pytest.mark.slow
def test_policies_with_a_fault_are_named_by_line_and_nothing_is_left_running(data: Path) -> None:
    config = data.parent / "config"
    shutil.copytree(PACKAGED_CONFIG, config)
    policies = config / "policies.yaml"
    policies.write_text(policies.read_text().replace("user_daily_cap: 3", "user_daily_cap: many"))
    failed = _reach(data, "up", "--data", data, "--port-base", "0")
    assert failed.returncode == 1
    assert re.search(r"\(configuration\): .*policies\.yaml:\d+: ", failed.stderr), failed.stderr
    assert "What to do" in failed.stderr
    assert _processes(data) == []


@pytest.mark.slow
def test_broken_off_while_it_starts_it_leaves_nothing_running(data: Path) -> None:
    with subprocess.Popen(
        [_REACH, "up", "--data", data, "--port-base", "0"],
        cwd=data.parent,
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "starting services" in line:
                process.send_signal(signal.SIGINT)
                break
        rest, _ = process.communicate(timeout=90)
    assert process.returncode == 0, rest
    assert "Traceback" not in rest
    assert _processes(data) == []
