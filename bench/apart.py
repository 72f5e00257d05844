"""A contender of `bench.durable` at work in a process of its own, so that its CPU time is its own too."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from bench.contenders import CONTENDERS, Contender, Registering

# Far more than any of them needs; a run that hangs ends.
_TIMEOUT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Worked:
    """What one worker needed for its jobs, from its start to its end.

    Attributes:
        seconds: by the clock.
        cpu_seconds: of its process, without imports.
    """

    seconds: float
    cpu_seconds: float


def work(contender: Contender, count: int) -> Worked:
    """Has a worker do so many due jobs.

    Raises:
        RuntimeError: the table does not say that all of them are done.
    """
    before = contender.finished()
    worked = Worked(**json.loads(_answer(_start(contender, "work", count))))
    if contender.finished() - before != count:
        raise RuntimeError(f"{contender.name}: {contender.finished() - before} of {count} jobs are done")
    return worked


class Watching:
    """A worker that notes when each job started, while somebody registers jobs; a context manager.

    Args:
        contender: whose worker.
        count: how many jobs it waits for.
    """

    def __init__(self, contender: Contender, count: int) -> None:
        self._process = _start(contender, "started", count)

    def wait_first(self) -> None:
        """Returns when the first job has started, so that the worker is known to be up."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def lateness(self) -> list[tuple[float, bool]]:
        """Waits for the jobs; returns what `Registering.started` does."""
        return [(late, ahead) for late, ahead in json.loads(_answer(self._process))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def _start(contender: Contender, what: str, count: int) -> subprocess.Popen[str]:
    words = (sys.executable, "-m", "bench.apart", contender.name, contender.dsn, what, str(count))
    return subprocess.Popen((*words, *contender.options), stdout=subprocess.PIPE, text=True)


def _answer(process: subprocess.Popen[str]) -> str:
    """Waits for what a worker has to say; ends one that takes too long.

    Raises:
        subprocess.SubprocessError: it took too long, or failed.
    """
    with process:
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return output


def _main(name: str, dsn: str, what: str, count: str, *options: str) -> None:
    # The answer alone goes to stdout.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    contender = CONTENDERS[name](dsn, *options)
    if what == "started":
        assert isinstance(contender, Registering)
        print(json.dumps(asyncio.run(contender.started(int(count), lambda: print(flush=True)))))
        return
    began, cpu_began = time.perf_counter(), time.process_time()
    asyncio.run(contender.work(int(count)))
    worked = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu_began}
    print(json.dumps(worked))


if __name__ == "__main__":
    _main(*sys.argv[1:])
