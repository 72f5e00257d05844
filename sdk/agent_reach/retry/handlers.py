"""Who does a task: functions, callable objects, and classes of such, by the code of the task."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .codec import Codec, resolved_annotations
from .errors import HandlerError
from .options import TaskOptions, check_code

Call = Callable[[Any, Any], Any]
"""Does the work, given what was read and a context; returns the result, or something to await for it."""


@dataclass(frozen=True, slots=True)
class Handler:
    """Who does the tasks of one code.

    Attributes:
        code: of the tasks.
        asynchronous: it is awaited on the loop; the others run in a thread.
        read: reads a stored payload, a JSON text; raises ParameterError where it cannot be read.
        call: does the work with what was read.
        encode: checks a parameter and returns its payload; raises ParameterError.
        options: of tasks whose registration says nothing else.
        retryable: whether trying again may help after this error.
        counted: whether this error has spent an attempt; otherwise the task waits, as after ``Wait``.
    """

    code: str
    asynchronous: bool
    read: Callable[[str], Any]
    call: Call
    encode: Callable[[Any], Any]
    options: TaskOptions
    retryable: Callable[[BaseException], bool] = lambda _: True
    counted: Callable[[BaseException], bool] = lambda _: True


@dataclass(slots=True)
class Registry:
    """The handlers of an application.

    Attributes:
        codes: what this process can do; the same list for ever, since the queue reads it at every claim.
        added: called when a handler is added, for those that run already.
    """

    codes: list[str] = field(default_factory=list)
    added: list[Callable[[], None]] = field(default_factory=list)
    _handlers: dict[str, Handler] = field(default_factory=dict)

    def add(self, handler: Handler) -> None:
        """Makes a handler known.

        Raises:
            HandlerError: its code has one already.
            RegistrationError: no task could have the code.
        """
        check_code(handler.code)
        if handler.code in self._handlers:
            raise HandlerError(f"the code {handler.code} has a handler already")
        self._handlers[handler.code] = handler
        self.codes.append(handler.code)
        for tell in list(self.added):
            tell()

    def get(self, code: str) -> Handler | None:
        """Returns the handler of a code, if this process has it."""
        return self._handlers.get(code)


def listener(code: str, target: Any, options: TaskOptions) -> Handler:
    """Makes a handler of what a user decorated.

    Args:
        code: of the tasks.
        target: ``function(parameter)`` or ``function(parameter, ctx)``, sync or async; an object that is called that
            way; or a class of such objects, of which one is made, without arguments, when the first task comes.
        options: of tasks whose registration says nothing else.

    Raises:
        HandlerError: it cannot be called that way, or its parameter cannot be stored.
    """
    function = _function_of(target)
    name = getattr(target, "__qualname__", type(target).__qualname__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"{name} is a generator: a call of it does nothing by itself")
    parameters = list(inspect.signature(function).parameters.values())
    if function is not target:
        parameters = parameters[1:]
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    if len(parameters) not in {1, 2} or any(parameter.kind not in positional for parameter in parameters):
        raise HandlerError(
            f"{name} must take the parameter, and the context if it likes: (parameter) or (parameter, ctx)"
        )
    hints = resolved_annotations(function)
    if parameters[0].name not in hints:
        raise HandlerError(f"{name}({parameters[0].name}) has no annotation: say what it takes")
    codec = Codec(hints[parameters[0].name], f"{name}({parameters[0].name})")
    call = _only_one(target) if inspect.isclass(target) else target
    if len(parameters) == 1:
        call = _without_context(call)
    return Handler(code, inspect.iscoroutinefunction(function), codec.decode, call, codec.encode, options)


def _function_of(target: Any) -> Callable[..., Any | Awaitable[Any]]:
    """Returns the function that is called in the end; with ``self`` where it is one of a class."""
    if inspect.isclass(target):
        function = target.__dict__.get("__call__") or getattr(target, "__call__", None)  # noqa: B004 - the function itself
        if not inspect.isfunction(function):
            raise HandlerError(f"{target.__qualname__} has no method __call__")
        return function
    if inspect.isfunction(target):
        return target
    function = getattr(type(target), "__call__", None)  # noqa: B004 - the function itself is wanted
    if not inspect.isfunction(function):
        raise HandlerError(f"{target!r} is neither a function nor a class or an object with a method __call__")
    return function


def _only_one(kind: type[Any]) -> Callable[..., Any]:
    """Returns a function that calls the one object of a class, which is made for the first call."""
    made: list[Any] = []
    lock = threading.Lock()

    def call(*arguments: Any) -> Any:
        with lock:
            if not made:
                made.append(kind())
        return made[0](*arguments)

    return call


def _without_context(call: Callable[[Any], Any]) -> Call:
    return lambda parameter, _: call(parameter)
