"""Whatever code starts ends with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from services.sandbox.runner import EndKind, LauncherError, Output, Run, Sandbox
from services.sandbox.spec import Language, RunSpec

from .support import alive, collect, left_in, python, until

# Forks twice, leaves the session, ignores what can be ignored, and tells its number.
DAEMON = """
import os, signal, sys, time
def daemon():
    told, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
            os.write(1, f"{os.getpid()}\\n".encode())
            os.write(tell, b"!")
            while True: time.sleep(1000)
        os._exit(0)
    os.wait()
    os.read(told, 1)
"""
ENDLESS = DAEMON + "daemon()\nwhile True: time.sleep(1000)\n"


async def pids(run: Run, count: int) -> list[int]:
    """Reads the numbers that the code tells, as many as there are to come."""
    told = b""
    async for event in run.events():
        assert isinstance(event, Output)
        told += event.data
        if told.count(b"\n") >= count:
            return [int(line) for line in told.split()]
    raise AssertionError("ended too early")


async def test_a_timeout_kills_a_daemon_that_left_the_session(sandbox: Sandbox) -> None:
    done = await python(sandbox, ENDLESS, timeout_seconds=1.0)

    assert done.end.kind is EndKind.TIMED_OUT
    assert not alive(int(done.stdout))


async def test_a_daemon_does_not_outlive_the_code_that_ends(sandbox: Sandbox) -> None:
    code = DAEMON + "daemon()\n"

    done = await python(sandbox, code)

    assert (done.end.kind, done.end.exit_code) == (EndKind.EXITED, 0)
    assert not alive(int(done.stdout))


async def test_a_tree_that_grows_while_it_is_cut_is_cut_whole(sandbox: Sandbox) -> None:
    # Five children with nine each, every one in a session of its own; whoever finds its parent gone forks again.
    code = """
import os, time
def live(children):
    os.setsid() if os.getpid() != os.getsid(0) else None
    for _ in range(children):
        if os.fork() == 0:
            live(9 if children == 5 else 0)
    os.write(1, f"{os.getpid()}\\n".encode())
    parent = os.getppid()
    while True:
        time.sleep(0.001)
        if os.getppid() != parent and os.fork() == 0:
            parent = os.getppid()
live(5)
"""
    run = await sandbox.start(RunSpec(Language.PYTHON, code))
    tree = await pids(run, 51)

    run.stop()
    await until(lambda: sandbox.free_places == 4)

    assert len(set(tree)) == 51
    assert [pid for pid in tree if alive(pid)] == []


async def test_a_process_that_flees_by_forking_is_caught(sandbox: Sandbox) -> None:
    # Each process lives a moment only: it forks its successor and ends.
    code = """
import os
if os.fork() == 0:
    os.setsid()
    while os.fork() == 0: pass
    os._exit(0)
"""
    done = await python(sandbox, code)

    assert done.end.kind is EndKind.EXITED


async def test_output_beyond_the_cap_kills_the_tree(sandbox: Sandbox) -> None:
    code = DAEMON + "daemon()\nwhile True: os.write(1, bytes(1000))\n"

    done = await python(sandbox, code, max_output_bytes=20_000)

    assert done.end.kind is EndKind.OUTPUT_LIMIT
    assert not alive(int(done.stdout.split(b"\n")[0]))


async def test_stopping_kills_the_tree(sandbox: Sandbox) -> None:
    run = await sandbox.start(RunSpec(Language.PYTHON, ENDLESS))
    [daemon] = await pids(run, 1)

    run.stop()
    await until(lambda: sandbox.free_places == 4)

    assert not alive(daemon)
    assert not alive(run.launcher_pid)


async def test_a_run_stopped_before_it_began_leaves_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    run = await sandbox.start(RunSpec(Language.PYTHON, ENDLESS))

    run.stop()
    await until(lambda: sandbox.free_places == 4)

    assert not alive(run.launcher_pid)
    assert left_in(tmp_path) == []


async def test_code_that_kills_its_guard_is_found_by_its_home(sandbox: Sandbox, tmp_path: Path) -> None:
    code = DAEMON + "daemon()\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(1000)\n"
    run = await sandbox.start(RunSpec(Language.PYTHON, code))
    [daemon] = await pids(run, 1)

    with pytest.raises(LauncherError):
        await collect(run)
    await until(lambda: sandbox.free_places == 4)

    assert not alive(daemon)
    assert left_in(tmp_path) == []


# A service's process: it runs ENDLESS and prints the launcher's number and the daemon's.
HOST = """
import asyncio, sys
from pathlib import Path
from services.sandbox.launcher import forbid_inspection
from services.sandbox.runner import Limits, Sandbox
from services.sandbox.spec import Language, RunSpec

async def main():
    forbid_inspection()
    sandbox = Sandbox(Limits(folder=Path(sys.argv[1])))
    run = await sandbox.start(RunSpec(Language.PYTHON, sys.argv[2]))
    print(run.launcher_pid, flush=True)
    async for event in run.events():
        print(event.data.decode(), end="", flush=True)

asyncio.run(main())
"""


async def host(tmp_path: Path, code: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOST,
        str(tmp_path),
        code,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "REACH_SERVICE_KEY": "very-secret"},
    )


async def test_a_service_that_is_killed_takes_its_runs_along(tmp_path: Path) -> None:
    service = await host(tmp_path, ENDLESS)
    assert service.stdout is not None
    launcher = int(await service.stdout.readline())
    daemon = int(await service.stdout.readline())
    assert alive(launcher)
    assert alive(daemon)

    service.send_signal(signal.SIGKILL)
    await service.wait()

    await until(lambda: not alive(daemon) and not alive(launcher))
    assert left_in(tmp_path) == []


async def test_code_cannot_read_the_secrets_of_the_service_from_proc(tmp_path: Path) -> None:
    code = """
import os, pathlib, re, time
def parent(pid): return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
launcher = os.getppid(); service = parent(launcher)
for pid in (launcher, service):
    for name in ("environ", "mem", "maps"):
        try: found = pathlib.Path(f"/proc/{pid}/{name}").open("rb").read(100)
        except OSError as error: found = type(error).__name__
        print(name, found)
print("end")
time.sleep(1000)
"""
    service = await host(tmp_path, code)
    assert service.stdout is not None
    await service.stdout.readline()
    lines: list[bytes] = []
    while (line := await service.stdout.readline()) != b"end\n":
        lines.append(line)

    service.kill()
    await service.wait()

    assert len(lines) == 6
    assert all(line.endswith(b" PermissionError\n") for line in lines)
    await until(lambda: left_in(tmp_path) == [])
