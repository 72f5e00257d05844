"""Calling what the application wrote, so that whatever it does stays its own.

What it raises becomes an error, also what would otherwise end the loop (``sys.exit()``) or could not be carried by a
future (``StopIteration``). Only ``KeyboardInterrupt`` on the loop and a cancellation pass as they are.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from .errors import AttemptInterruptedError, HandlerError
from .model import ANSWERS

Span = AbstractContextManager[object]
NO_SPAN: Span = nullcontext()


async def awaited(call: Callable[..., Any], *arguments: object, span: Span = NO_SPAN) -> Any:
    """Calls a function on the loop, and awaits what it returns."""
    try:
        with span:
            return await call(*arguments)
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _contained(error) from error


def in_thread(call: Callable[..., Any], *arguments: object, span: Span = NO_SPAN) -> asyncio.Future[Any]:
    """Calls a function in a thread of its own, with the caller's context variables.

    A pool would keep its place for a thread that hangs, so that those behind it wait for ever, and the process would not
    end before it. Such a thread is left to itself here: it has no place, and ends with the process.

    Returns:
        What it returns or raises. To cancel the future abandons the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        result, error = None, None
        try:
            with span:
                result = call(*arguments)
        except BaseException as raised:  # noqa: BLE001 - it is the future's
            error = raised if isinstance(raised, Exception) else _contained(raised)
        with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, future, result, error)

    threading.Thread(target=context.run, args=(work,), name="reach-retry", daemon=True).start()
    return future


def answer_of(result: Any) -> Any:
    """Returns what a handler returned, if that can be an answer.

    Raises:
        HandlerError: nobody has done the work, since it is a coroutine or a generator; or it is the class of an answer.
    """
    if result is None:
        return None
    if inspect.isclass(result) and issubclass(result, ANSWERS):
        raise HandlerError(f"the handler returned the class {result.__name__} and not an answer: {result.__name__}(…)")
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise HandlerError(
            f"the handler returned {type(result).__name__}, and did nothing yet: it must return its result;"
            " a decorator around an `async def` must be one that returns an `async def`"
        )
    return result


def frames(error: BaseException) -> str:
    """Returns where an error was raised, for a log: no values, no message, since both may quote parameters."""
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    return "\n".join([*lines, type(error).__qualname__])


def _contained(error: BaseException) -> Exception:
    contained: Exception
    if isinstance(error, SystemExit):
        contained = AttemptInterruptedError("the handler called sys.exit()")
    elif isinstance(error, asyncio.CancelledError):
        contained = AttemptInterruptedError("the handler was cancelled")
    else:
        contained = AttemptInterruptedError(f"the handler raised {type(error).__qualname__}: {error}")
    contained.__cause__ = error
    return contained


def _resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # Which no future can carry.
        future.set_exception(RuntimeError("the handler raised StopIteration"))
    else:
        future.set_exception(error)
