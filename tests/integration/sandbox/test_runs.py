"""What code finds around it, and how its end is told."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from services.sandbox.runner import End, EndKind, LauncherError, Limits, NoPlaceError, Output, Sandbox
from services.sandbox.spec import Language, RunSpec

from .support import alive, collect, left_in, python, shell, until

FLOOD = "import os\nwhile True: os.write(1, bytes(1000))\n"


async def test_both_streams_and_the_exit_code_come_back(sandbox: Sandbox) -> None:
    done = await shell(sandbox, "echo out; echo err >&2; exit 7")

    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert (done.end.kind, done.end.exit_code) == (EndKind.EXITED, 7)
    assert (done.end.stdout_bytes, done.end.stderr_bytes) == (4, 4)
    assert done.end.duration_seconds > 0


async def test_standard_input_is_fed_and_ends(sandbox: Sandbox) -> None:
    text = os.urandom(300_000)

    done = await python(sandbox, "import sys; print(len(sys.stdin.buffer.read()))", stdin=text)

    assert done.stdout == b"300000\n"


async def test_standard_input_that_nobody_reads_holds_nothing_up(sandbox: Sandbox) -> None:
    done = await shell(sandbox, "exec <&-; echo done", stdin=bytes(1024 * 1024))

    assert (done.stdout, done.end.kind) == (b"done\n", EndKind.EXITED)


async def test_output_is_bytes_and_comes_back_unchanged(sandbox: Sandbox) -> None:
    done = await python(sandbox, "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4)")

    assert done.stdout == bytes(range(256)) * 4


async def test_a_signal_is_told_from_an_exit(sandbox: Sandbox) -> None:
    done = await shell(sandbox, "kill -TERM $$")

    assert (done.end.kind, done.end.exit_code) == (EndKind.SIGNALLED, -signal.SIGTERM)


async def test_a_script_may_be_larger_than_an_argument(sandbox: Sandbox) -> None:
    done = await shell(sandbox, "#" + "x" * 1_000_000 + "\necho here")

    assert done.stdout == b"here\n"


async def test_the_environment_is_scrubbed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REACH_SERVICE_KEY", "very-secret")

    code = "import os, json; print(json.dumps(dict(os.environ)))"
    done = await python(sandbox, code, environment={"GIVEN": "yes"})

    seen = json.loads(done.stdout)
    seen.pop("LC_CTYPE", None)  # the interpreter's own
    assert set(seen) == {"PATH", "HOME", "TMPDIR", "LANG", "GIVEN"}
    assert seen["GIVEN"] == "yes"


async def test_code_gets_an_empty_folder_of_its_own(sandbox: Sandbox, tmp_path: Path) -> None:
    code = "import os, tempfile; print(os.getcwd() == os.environ['HOME'], os.listdir(), tempfile.gettempdir())"
    done = await python(sandbox, code)

    home, listing, temporary = done.stdout.decode().split()
    assert (home, listing) == ("True", "[]")
    assert Path(temporary).is_relative_to(tmp_path)


async def test_the_folder_is_gone_whatever_the_code_did_to_it(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import os
os.makedirs("a/b"); open("a/b/c", "w").close(); os.chmod("a/b", 0); os.chmod("a", 0)
os.symlink("/etc", "etc")
os.chdir(os.environ["TMPDIR"])
for _ in range(1500):
    os.mkdir("deep"); os.chdir("deep")
"""
    done = await python(sandbox, code)

    assert (done.end.kind, done.stderr) == (EndKind.EXITED, b"")
    assert left_in(tmp_path) == []
    assert left_in(Path("/etc"))


async def test_code_sees_the_standard_library_and_not_the_service(sandbox: Sandbox) -> None:
    code = """
import json, importlib.util
print([name for name in ("services", "agent_reach", "grpc") if importlib.util.find_spec(name)])
"""
    assert (await python(sandbox, code)).stdout == b"[]\n"


async def test_code_inherits_no_descriptor(sandbox: Sandbox) -> None:
    ours = os.pipe()
    for descriptor in ours:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - its only parameter

    done = await python(sandbox, "import os; print(len(os.listdir('/proc/self/fd')))")

    for descriptor in ours:
        os.close(descriptor)

    # The three streams and the listing itself.
    assert done.stdout == b"4\n"


async def test_code_has_no_powers_and_cannot_get_any(sandbox: Sandbox) -> None:
    done = await shell(sandbox, "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; ulimit -c")

    lines = done.stdout.split()
    assert lines[1] == lines[3] == b"0000000000000000"
    assert lines[5:] == [b"1", b"0"]


async def test_a_file_cannot_grow_beyond_its_limit(tmp_path: Path) -> None:
    sandbox = Sandbox(Limits(places=1, folder=tmp_path, file_bytes=10_000))

    done = await python(sandbox, "open('f', 'wb').write(bytes(20_000))")

    assert b"File too large" in done.stderr
    await sandbox.close()


async def test_memory_cannot_grow_beyond_its_limit(tmp_path: Path) -> None:
    sandbox = Sandbox(Limits(places=1, folder=tmp_path, memory_bytes=256 * 1024**2))

    done = await python(sandbox, "bytearray(1024**3)")

    assert b"MemoryError" in done.stderr
    await sandbox.close()


async def test_one_run_more_than_there_are_places_is_refused(tmp_path: Path) -> None:
    sandbox = Sandbox(Limits(places=2, folder=tmp_path))
    runs = [await sandbox.start(RunSpec(Language.SHELL, "sleep 1000")) for _ in range(2)]

    with pytest.raises(NoPlaceError):
        await sandbox.start(RunSpec(Language.SHELL, "true"))

    runs[0].stop()
    await until(lambda: sandbox.free_places == 1)
    assert (await shell(sandbox, "true")).end.exit_code == 0
    await sandbox.close()
    assert sandbox.free_places == 2


async def test_an_interpreter_that_is_missing_is_an_error_and_not_an_end(tmp_path: Path) -> None:
    sandbox = Sandbox(Limits(places=1, folder=tmp_path, python=tmp_path / "nowhere"))

    with pytest.raises(LauncherError, match="could not be started"):
        await python(sandbox, "print(1)")

    await until(lambda: sandbox.free_places == 1)
    assert left_in(tmp_path) == []


async def test_exactly_the_allowed_output_is_no_offence(sandbox: Sandbox) -> None:
    done = await python(sandbox, "print('x' * 99_999)", max_output_bytes=100_000)

    assert (done.end.kind, len(done.stdout)) == (EndKind.EXITED, 100_000)


async def test_one_byte_more_ends_the_run_and_is_not_passed_on(sandbox: Sandbox) -> None:
    done = await python(sandbox, "print('x' * 100_000)", max_output_bytes=100_000)

    assert (done.end.kind, len(done.stdout)) == (EndKind.OUTPUT_LIMIT, 100_000)


async def test_the_cap_holds_for_both_streams_together(sandbox: Sandbox) -> None:
    code = "while :; do echo aaaaaaaaaaaaaaaa; echo bbbbbbbbbbbbbbbb >&2; done"

    done = await shell(sandbox, code, max_output_bytes=50_001)

    assert done.end.kind is EndKind.OUTPUT_LIMIT
    assert len(done.stdout) + len(done.stderr) == 50_001
    assert (done.end.stdout_bytes, done.end.stderr_bytes) == (len(done.stdout), len(done.stderr))


async def test_code_that_floods_waits_for_a_slow_reader(sandbox: Sandbox) -> None:
    run = await sandbox.start(RunSpec(Language.PYTHON, FLOOD, max_output_bytes=16 * 1024**2))
    events = run.events()
    assert isinstance(await anext(events), Output)

    # It stands still: what it wrote is bounded while nobody reads.
    [code] = psutil.Process(run.launcher_pid).children()
    written: list[int] = []
    await until(lambda: stands_still(code, written))
    assert written[-1] < 1024**2

    # And goes on when somebody does.
    taken = 0
    async for event in events:
        assert isinstance(event, Output)
        taken += len(event.data)
        if taken > 3 * 1024**2:
            break
    run.stop()


async def test_a_reader_that_never_comes_does_not_keep_the_place(tmp_path: Path) -> None:
    sandbox = Sandbox(Limits(places=1, folder=tmp_path, delivery_seconds=0.1))

    run = await sandbox.start(RunSpec(Language.SHELL, "yes", timeout_seconds=0.2))
    await until(lambda: sandbox.free_places == 1)

    assert not alive(run.launcher_pid)
    await sandbox.close()


async def test_stopping_tells_the_reader(sandbox: Sandbox) -> None:
    run = await sandbox.start(RunSpec(Language.SHELL, "echo up; sleep 1000"))
    events = run.events()
    await anext(events)

    run.stop()

    end = await anext(events)
    assert isinstance(end, End)
    assert end.kind is EndKind.STOPPED


async def test_many_short_runs_leave_nothing_behind(sandbox: Sandbox, tmp_path: Path) -> None:
    for _ in range(5):
        runs = [await sandbox.start(RunSpec(Language.SHELL, "echo hi")) for _ in range(3)]
        for run in runs:
            assert (await collect(run)).stdout == b"hi\n"
        await until(lambda: sandbox.free_places == 4)
    assert left_in(tmp_path) == []


def stands_still(process: psutil.Process, written: list[int]) -> bool:
    """Whether it slept and wrote nothing during many turns of our loop, in which its output could be taken."""
    written.append(process.io_counters().write_chars)
    return len(written) > 20 and written[-20] == written[-1] and bool(process.status() == psutil.STATUS_SLEEPING)
