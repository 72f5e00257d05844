"""Tells who wants to know of attempts: callbacks, those who wait for a task, the metrics, and the log."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agent_reach.durable import Claim

from .calls import awaited, frames, in_thread
from .model import Report, State
from .telemetry import Telemetry

# So long is waited at the end for callbacks that are under way.
_LAST_CALLS_SECONDS = 5.0
# A callback is cancelled, or its thread left to itself, after so long: others wait for its place.
_CALL_SECONDS = 60.0

Callback = Callable[[Report], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Who is told of attempts and of ends; ``None`` as code is every code."""

    after_attempt: list[tuple[str | None, Callback]]
    at_end: list[tuple[str | None, Callback]]


class Teller:
    """Tells of attempts and of ends.

    Args:
        callbacks: of the application; the lists may grow.
        telemetry: the instruments.
        most: for so many reports at most callbacks are called at once.
        log: where attempts that failed, and callbacks that raise, go.
    """

    def __init__(self, callbacks: Callbacks, telemetry: Telemetry, most: int, log: Any) -> None:
        self._callbacks = callbacks
        self._telemetry = telemetry
        self._most = most
        self._log = log
        self._waiting: dict[tuple[UUID, int], asyncio.Future[Report]] = {}
        self._calling: set[asyncio.Task[None]] = set()

    def expect(self, task_id: UUID, claim_no: int) -> asyncio.Future[Report]:
        """Returns the future of the report on a claim that is about to be handed out here."""
        return self._waiting.setdefault((task_id, claim_no), asyncio.get_running_loop().create_future())

    def forget(self, task_id: UUID, claim_no: int) -> None:
        """Drops what :meth:`expect` gave."""
        self._waiting.pop((task_id, claim_no), None)

    def no_report(self, claim: Claim, why: Exception) -> None:
        """Tells who waits for a claim that there will be no report."""
        future = self._waiting.pop((claim.id, claim.claim_no), None)
        if future is not None and not future.done():
            future.set_exception(why)

    def report(
        self, claim: Claim, report: Report, told: Callable[[], None], *, attempted: bool, waited: bool = False
    ) -> None:
        """Tells of a claim that is settled.

        Args:
            claim: which.
            report: what it has come to.
            told: called when everybody was told.
            attempted: the handler was called.
            waited: the handler had to wait, which is no attempt.
        """
        if attempted:
            self._note(report, waited=waited)
        future = self._waiting.pop((claim.id, claim.claim_no), None)
        if future is not None and not future.done():
            future.set_result(report)
        calling = self.tell(report, attempted=attempted and not waited)
        if calling is None:
            told()
        else:
            calling.add_done_callback(lambda _: told())

    def tell(self, report: Report, *, attempted: bool) -> asyncio.Task[None] | None:
        """Calls the callbacks of a report, in a task of their own; None where there are none.

        Args:
            report: what they are told.
            attempted: an attempt was made, so that those are called which want to know of each.
        """
        called = list(self._callbacks.after_attempt) if attempted else []
        if report.state.final:
            self._telemetry.ended(report.code, report.state)
            called += self._callbacks.at_end
        wanted = [callback for code, callback in called if code in {None, report.code}]
        if not wanted:
            return None
        task = asyncio.get_running_loop().create_task(self._call(wanted, report))
        self._calling.add(task)
        task.add_done_callback(self._calling.discard)
        return task

    @property
    def has_room(self) -> bool:
        """Whether callbacks could be called at once: those who work on must not run away from them."""
        return len(self._calling) < self._most

    async def room(self) -> None:
        """Returns when there is room."""
        while not self.has_room:
            await asyncio.wait(self._calling, return_when=asyncio.FIRST_COMPLETED)

    async def finish(self) -> None:
        """Waits a moment for the callbacks that are under way, and ends the others."""
        if self._calling:
            await asyncio.wait(self._calling, timeout=_LAST_CALLS_SECONDS)
        for task in self._calling:
            task.cancel()

    def _note(self, report: Report, *, waited: bool) -> None:
        self._telemetry.attempted(report.code, report.state, report.error, waited=waited)
        if report.state is State.SUCCEEDED:
            return
        say = self._log.debug if waited else self._log.info
        say(
            "retry.waiting" if waited else "retry.attempt_failed",
            task=str(report.task_id),
            code=report.code,
            attempt=report.attempt,
            state=report.state.value,
            error=type(report.error).__name__ if report.error is not None else "answer",
        )

    async def _call(self, callbacks: list[Callback], report: Report) -> None:
        for callback in callbacks:
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    if inspect.iscoroutinefunction(callback):
                        await awaited(callback, report)
                    elif inspect.isawaitable(answer := await in_thread(callback, report)):
                        await answer
            except (Exception, asyncio.CancelledError) as error:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                self._log.error(
                    "retry.callback_failed", task=str(report.task_id), code=report.code, error=frames(error)
                )
