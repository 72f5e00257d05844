"""The durable engine: jobs and registrations per second, lateness and CPU, beside Procrastinate and a floor.

One PostgreSQL with fsync on, a database for each contender, the same job that does nothing, the same concurrency, and
100,000 rows far ahead in every table. The contenders take turns, so that a machine with other work is unkind to all
alike; ratios are taken within a turn.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agent_reach.local import LocalPostgres
from bench.apart import Watching, work
from bench.contenders import CONCURRENCY, Bare, Contender, Floor, Procrastinate, Registering, Retry
from bench.cpu import postgres_seconds
from bench.report import report

_AHEAD = 100_000
_ROUNDS = 5
_CONNECTIONS = 8
_REGISTRATIONS = 2_000
_MANY = 1_000
_DELAY_SECONDS = 3.0
_FLOOR_BATCHES = (500, 1000)


@dataclass(slots=True)
class _Line:
    """One line of the table.

    Attributes:
        contender: who.
        what: for people.
        jobs: in one turn; so many that a turn takes a few seconds.
        per_s: jobs per second, a figure for each turn.
        cpu_ms: CPU of the worker for each job, in milliseconds.
        postgres_ms: the same of PostgreSQL.
    """

    contender: Contender
    what: str
    jobs: int
    per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    postgres_ms: list[float] = field(default_factory=list)


def run() -> None:
    """Runs the benchmark and prints what it measured."""
    with (
        tempfile.TemporaryDirectory(prefix="reach-bench-") as folder,
        LocalPostgres(Path(folder) / "postgres") as server,
    ):
        retry = _Line(Retry(server.create_database("retry")), "agent_reach.retry", 20_000)
        half = _Line(Retry(retry.contender.dsn, str(CONCURRENCY // 2)), "agent_reach.retry, half at once", 20_000)
        bare = _Line(Bare(server.create_database("bare")), "agent_reach.durable alone", 20_000)
        theirs = _Line(Procrastinate(server.create_database("theirs")), "Procrastinate", 60)
        empty = _Line(Procrastinate(server.create_database("empty")), "Procrastinate, nothing ahead", 150)
        dsn = server.create_database("floor")
        floors = [_Line(Floor(dsn, str(size)), f"floor, batches of {size}", 20_000) for size in _FLOOR_BATCHES]
        for line in (retry, bare, theirs, empty, floors[0]):
            line.contender.install()
            if line is not empty:
                line.contender.fill(_AHEAD, ahead=True)
        lines = [retry, half, theirs, bare, *floors, empty]
        for _ in range(_ROUNDS):
            for line in lines:
                _turn(line, server.directory)
        _show_work(lines)
        registered = {name: asyncio.run(_register(line.contender)) for name, line in (("o", retry), ("t", theirs))}
        _show_registrations(registered["o"], registered["t"])
        late = asyncio.run(_lateness(retry.contender, per_second=200, seconds=20))
        late_theirs = asyncio.run(_lateness(theirs.contender, per_second=10, seconds=10))
        _show_lateness(late, late_theirs)
    # One batch size for all turns: the luckier of two in each turn would be no floor but the noise above it.
    best = max((floor.per_s for floor in floors), key=statistics.median)
    over_theirs = [ours / other for ours, other in zip(retry.per_s, theirs.per_s, strict=True)]
    over_floor = [ours / other for ours, other in zip(retry.per_s, best, strict=True)]
    engine_over_floor = [ours / other for ours, other in zip(bare.per_s, best, strict=True)]
    quantiles = statistics.quantiles((seconds for seconds, _ in late), n=100)
    report(
        "The durable engine",
        {
            "jobs_per_s": statistics.median(retry.per_s),
            "over_procrastinate": statistics.median(over_theirs),
            "over_floor": statistics.median(over_floor),
            "engine_over_floor": statistics.median(engine_over_floor),
            "register_per_s": registered["o"][0],
            "lateness_p50_ms": quantiles[49] * 1_000,
            "lateness_p99_ms": quantiles[98] * 1_000,
            "cpu_ms_per_job": statistics.median(retry.cpu_ms),
        },
        {
            "jobs_per_s": f"no-op jobs per second through agent_reach.retry, {_spread(retry.per_s)}",
            "over_procrastinate": f"the same over Procrastinate's, turn by turn, {_spread(over_theirs, 1)}",
            "over_floor": f"the same over the floor's best batch size, {_spread(over_floor, 2)}",
            "engine_over_floor": f"the same for the engine without the library, {_spread(engine_over_floor, 2)}",
            "register_per_s": f"registrations per second, each its own transaction, {_CONNECTIONS} connections",
            "lateness_p50_ms": "from planned to started at 200 tasks per second, median",
            "lateness_p99_ms": "the same, 99th percentile",
            "cpu_ms_per_job": f"CPU of the worker's process, {_spread(retry.cpu_ms, 3)}",
        },
    )


def _turn(line: _Line, server: Path) -> None:
    line.contender.fill(line.jobs, ahead=False)
    line.contender.execute("VACUUM ANALYZE")
    before = postgres_seconds(server)
    worked = work(line.contender, line.jobs)
    line.per_s.append(line.jobs / worked.seconds)
    line.cpu_ms.append(worked.cpu_seconds / line.jobs * 1_000)
    line.postgres_ms.append((postgres_seconds(server) - before) / line.jobs * 1_000)


async def _register(contender: Contender) -> tuple[float, float]:
    """Returns registrations per second, one per transaction and many per transaction."""
    assert isinstance(contender, Registering)
    async with contender.registering(_CONNECTIONS):

        async def client() -> None:
            for _ in range(_REGISTRATIONS // _CONNECTIONS):
                await contender.register(3600)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(_CONNECTIONS)))
        each = _REGISTRATIONS / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(_REGISTRATIONS // _MANY):
            await contender.register_many(_MANY, 3600)
        return each, _REGISTRATIONS / (time.perf_counter() - began)


async def _lateness(contender: Contender, *, per_second: int, seconds: int) -> list[tuple[float, bool]]:
    """Registers jobs at a steady pace, every second one for now and the others for some seconds ahead.

    Returns:
        For each job the seconds from its planned moment to its start, and whether it was planned ahead.
    """
    assert isinstance(contender, Registering)
    count = per_second * seconds
    with Watching(contender, count + 1) as watching:
        async with contender.registering(_CONNECTIONS), asyncio.TaskGroup() as group:
            await contender.register(0)
            await asyncio.to_thread(watching.wait_first)
            began = time.perf_counter()
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / per_second - time.perf_counter()))
                group.create_task(contender.register(_DELAY_SECONDS * (number % 2)))
        return await asyncio.to_thread(watching.lateness)


def _show_work(lines: Iterable[_Line]) -> None:
    title = (
        f"No-op jobs, concurrency {CONCURRENCY}, {_AHEAD:,} rows far ahead that were there first.\n"
        "Procrastinate: one process, LISTEN on, jobs kept, pool of 10. The floor: one UPDATE claims, one finishes."
    )
    table = Table("contender", "jobs/s", "worker's CPU, ms/job", "PostgreSQL's CPU, ms/job", title=title)
    for line in lines:
        spreads = (_spread(line.per_s), _spread(line.cpu_ms, 3), _spread(line.postgres_ms, 3))
        table.add_row(line.what, *spreads)
    Console().print(table)


def _show_registrations(ours: tuple[float, float], theirs: tuple[float, float]) -> None:
    table = Table("registrations per second", "ours", "Procrastinate")
    for what, mine, other in zip(
        (f"one per transaction, {_CONNECTIONS} connections", f"{_MANY:,} per transaction"), ours, theirs, strict=True
    ):
        table.add_row(what, f"{mine:,.0f}", f"{other:,.0f}")
    Console().print(table)


def _show_lateness(ours: list[tuple[float, bool]], theirs: list[tuple[float, bool]]) -> None:
    table = Table("from planned to started", "jobs", "p50 ms", "p99 ms", "worst ms")
    for what, late in (("ours, 200 per second", ours), ("Procrastinate, 10 per second", theirs)):
        for kind in (False, True):
            chosen = [seconds for seconds, ahead in late if ahead is kind]
            quantiles = statistics.quantiles(chosen, n=100)
            figures = (f"{seconds * 1_000:,.1f}" for seconds in (quantiles[49], quantiles[98], max(chosen)))
            table.add_row(f"{what}, {'planned ahead' if kind else 'at once'}", str(len(chosen)), *figures)
    Console().print(table)


def _spread(values: list[float], digits: int = 0) -> str:
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    run()
