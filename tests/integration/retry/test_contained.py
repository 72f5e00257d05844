"""Whatever handlers and callbacks do stays their own: the worker goes on, and everybody else is told."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent_reach.retry import GiveUp, Report, Retries, RetrySettings, State
from agent_reach.retry.worker import Worker

from .field import FAST, Field, until


class PanicError(BaseException):
    """As the extension modules of other languages raise it: no Exception."""


def exits() -> None:
    raise SystemExit(3)


def panics() -> None:
    raise PanicError("out of bounds")


def ends_iterations() -> None:
    raise StopIteration


def cancels() -> None:
    raise asyncio.CancelledError


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """Set when the test is over: what hangs by it ends then."""
    over = threading.Event()
    yield over
    over.set()


@pytest.mark.parametrize(
    ("leaves", "told"),
    [
        (exits, "AttemptInterruptedError: the handler called sys.exit()"),
        (panics, "AttemptInterruptedError: the handler raised PanicError: out of bounds"),
        (ends_iterations, "RuntimeError: "),
        (cancels, "AttemptInterruptedError: the handler was cancelled"),
    ],
)
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_handler_that_leaves_by_an_unusual_door_has_failed_and_the_worker_goes_on(
    retry: Retries, field: Field, leaves: Callable[[], None], told: str, *, asynchronous: bool
) -> None:
    if asynchronous:

        @retry.listener("strange", max_attempts=1)
        async def on_loop(_: int) -> None:
            leaves()
    else:

        @retry.listener("strange", max_attempts=1)
        def in_thread(_: int) -> None:
            leaves()

    @retry.listener("plain")
    async def plain(_: int) -> None: ...

    async with retry.running():
        strange = retry.register(None, "strange", 1)
        assert await field.until_ended(strange.task_id) is State.EXHAUSTED
        assert await field.until_ended(retry.register(None, "plain", 1).task_id) is State.SUCCEEDED
    error = retry.tasks.show(strange.task_id)[0].last_error
    assert error is not None
    assert error.startswith(told)


@pytest.mark.parametrize("leaves", [exits, panics, ends_iterations, cancels])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_callback_that_leaves_by_an_unusual_door_keeps_nobody_from_being_told(
    retry: Retries, field: Field, leaves: Callable[[], None], *, asynchronous: bool
) -> None:
    told: list[int] = []

    async def on_loop(_: Report) -> None:
        leaves()

    def in_thread(_: Report) -> None:
        leaves()

    retry.at_end(on_loop if asynchronous else in_thread)
    retry.at_end(lambda report: told.append(report.result))

    @retry.listener("plain")
    async def plain(number: int) -> int:
        return number

    async with retry.running():
        for number in (1, 2):
            await field.until_ended(retry.register(None, "plain", number).task_id)
        await until(lambda: told == [1, 2])


async def test_a_callback_that_returns_something_to_await_is_awaited(retry: Retries, field: Field) -> None:
    told: list[str] = []

    async def tell(word: str) -> None:
        told.append(word)

    class Caller:
        async def __call__(self, _: Report) -> None:
            told.append("object")

    retry.at_end(Caller())
    retry.at_end(lambda _: tell("lambda"))

    @retry.listener("plain")
    async def plain(_: int) -> None: ...

    async with retry.running():
        await field.until_ended(retry.register(None, "plain", 1).task_id)
        await until(lambda: told == ["object", "lambda"])


async def test_no_more_work_is_begun_while_callbacks_lag_behind(retry: Retries, field: Field) -> None:
    retry = Retries(field.dsn, settings=RetrySettings(**FAST | {"concurrency": 4}))
    go_on = asyncio.Event()
    under_way, told = 0, 0

    @retry.listener("plain")
    async def plain(_: int) -> None: ...

    @retry.at_end
    async def lag(_: Report) -> None:
        nonlocal under_way, told
        under_way += 1
        await go_on.wait()
        under_way -= 1
        told += 1

    tasks = [retry.register(None, "plain", number) for number in range(400)]

    def waits(worker: Worker) -> bool:
        """Whether all that was done is stored, and the next tasks are at hand but have not begun."""
        queue = worker.engine.stats().queues["reach_retry.tasks"]
        return (under_way >= 4, queue.in_flight, queue.settling) == (True, 4, 0)

    async with retry.running() as worker:
        await until(lambda: waits(worker))
        assert field.tasks("state = 'SUCCEEDED'") == under_way < len(tasks) / 2
        go_on.set()
        await until(lambda: told == len(tasks))


async def test_handlers_that_hang_take_nobody_elses_place(retry: Retries, field: Field, hung: threading.Event) -> None:
    retry = Retries(field.dsn, settings=RetrySettings(**FAST | {"concurrency": 2}))

    @retry.listener("hangs", max_attempts=1, max_execution_seconds=0.2)
    def hangs(_: int) -> None:
        hung.wait()

    @retry.listener("healthy", max_attempts=1, max_execution_seconds=5)
    def healthy(number: int) -> int:
        return number

    async with retry.running():
        for number in range(4):
            assert await field.until_ended(retry.register(None, "hangs", number).task_id) is State.EXHAUSTED
        assert await field.until_ended(retry.register(None, "healthy", 1).task_id) is State.SUCCEEDED


async def test_a_handler_that_did_nothing_yet_has_not_succeeded(retry: Retries, field: Field) -> None:
    async def work(number: int) -> None: ...

    def of(result: Callable[[int], Any]) -> Callable[[int], Any]:
        def handler(number: int) -> Any:
            return result(number)

        return handler

    kinds: dict[str, Callable[[int], Any]] = {
        "coroutine": of(work),
        "partial": of(functools.partial(work)),
        "generator": of(lambda number: (each for each in range(number))),
        "class": of(lambda _: GiveUp),
    }
    for code, handler in kinds.items():
        retry.listener(code, max_attempts=1)(handler)
    async with retry.running():
        for code in kinds:
            task_id = retry.register(None, code, 1).task_id
            assert await field.until_ended(task_id) is State.EXHAUSTED, code
            assert "HandlerError: the handler returned" in (retry.tasks.show(task_id)[0].last_error or "")


async def test_what_went_wrong_is_logged_without_what_it_was_about(retry: Retries, field: Field) -> None:
    retry = Retries(field.dsn, settings=RetrySettings(**FAST | {"log_level": "DEBUG"}))

    @retry.listener("pay", max_attempts=1)
    async def pay(card: str) -> str:
        if card.endswith("2"):
            raise ValueError(card)
        return card

    @retry.at_end
    def fail(report: Report) -> None:
        raise RuntimeError(report.result)

    with capture_logs() as logs:
        async with retry.running():
            for card in ("4111-1", "4111-2"):
                await field.until_ended(retry.register(None, "pay", card).task_id)
    assert [line["event"] for line in logs].count("retry.callback_failed") == 2
    assert "4111" not in repr(logs)


async def test_a_task_is_invoked_from_another_thread_and_its_loop(retry: Retries, field: Field) -> None:
    @retry.listener("double")
    async def double(number: int) -> int:
        return 2 * number

    async with retry.running():
        later = retry.register(None, "double", 4, first_delay_seconds=3600)
        assert await asyncio.to_thread(asyncio.run, retry.run_now_async(later.task_id)) == 8
