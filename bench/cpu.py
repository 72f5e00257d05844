"""Where the time goes: CPU seconds of every process of a local system, and sampled functions of its services."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from services.local.stack import LocalStack

_SAMPLES_PER_SECOND = 200
_SHOWN = 12


@asynccontextmanager
async def accounted(
    stack: LocalStack, title: str, work: dict[str, float], profile: Path | None
) -> AsyncIterator[None]:
    """Prints, after the body, what each process used per unit of work; with `profile`, also the hottest functions.

    Args:
        stack: the system.
        title: names the table.
        work: after the body holds ``count`` and ``seconds``.
        profile: where py-spy's raw samples are kept.
    """
    before = _cpu_seconds(stack)
    samplers = await _sample(stack, profile) if profile else {}
    yield
    after = _cpu_seconds(stack)
    table = Table("process", "CPU s", "ms per 1,000", "share of 1 core", title=title)
    for name, seconds in sorted(after.items(), key=lambda item: -item[1] + before.get(item[0], 0.0)):
        used = seconds - before.get(name, 0.0)
        table.add_row(name, f"{used:.2f}", f"{used / work['count'] * 1e6:,.0f}", f"{used / work['seconds']:.0%}")
    Console().print(table)
    for name, (process, path) in samplers.items():
        process.send_signal(signal.SIGINT)
        await process.wait()
        _print_hottest(name, path)


def postgres_seconds(directory: Path) -> float:
    """Returns the CPU seconds that the server on a data directory has used so far, its backends included."""
    postmaster = int((directory / "postmaster.pid").read_text().splitlines()[0])
    return _tree(psutil.Process(postmaster))


def _cpu_seconds(stack: LocalStack) -> dict[str, float]:
    seconds = {"this client": _of(psutil.Process(os.getpid()))}
    for name, role in stack.roles.items():
        if role.pid:
            seconds[name] = _of(psutil.Process(role.pid))
    seconds["postgres"] = postgres_seconds(stack.postgres.directory)
    seconds["redis"] = sum(
        _of(process) for process in psutil.Process().children(recursive=True) if "redis" in process.name()
    )
    return seconds


def _of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _tree(process: psutil.Process) -> float:
    while True:
        try:
            running = sum(_of(child) for child in process.children())
        except psutil.NoSuchProcess:
            continue  # a backend ended meanwhile
        # Those that ended are in their parent's account.
        times = process.cpu_times()
        return running + _of(process) + float(times.children_user + times.children_system)


async def _sample(stack: LocalStack, folder: Path) -> dict[str, tuple[asyncio.subprocess.Process, Path]]:
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    samplers = {}
    for name, role in stack.roles.items():
        path = folder / f"{name}.txt"
        words = (
            "record",
            "--pid",
            str(role.pid),
            # Only who holds the interpreter: waiting threads would drown the rest.
            "--gil",
            "--format",
            "raw",
            "--rate",
            str(_SAMPLES_PER_SECOND),
            "--output",
            str(path),
        )
        process = await asyncio.create_subprocess_exec(
            "py-spy", *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        samplers[name] = (process, path)
    return samplers


def _print_hottest(name: str, path: Path) -> None:
    """Prints the functions in which, and below which, a service was seen most."""
    if not path.exists():
        return
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(count)
        for frame in set(frames):
            below[frame] += int(count)
    total = sum(own.values()) or 1
    table = Table("own", "with callees", "function", title=f"{name}: {total} samples")
    for frame, seen in own.most_common(_SHOWN):
        table.add_row(f"{seen / total:.1%}", f"{below[frame] / total:.1%}", frame)
    Console().print(table)
