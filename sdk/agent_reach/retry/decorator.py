"""`on_failure`: an ordinary function whose failed calls are done again later."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from . import connections
from .codec import ArgumentsCodec, arguments_codec
from .errors import BindingError, HandlerError, ParameterError
from .handlers import Handler
from .model import Scheduled
from .options import TaskOptions
from .registration import Registrar
from .store import Draft

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Errors = type[Exception] | tuple[type[Exception], ...]


class Scheduling(Protocol):
    """Decorates a function that returns, where its call failed, a :class:`Scheduled` in the place of its result."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T | Scheduled]]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, T | Scheduled]: ...


class Reraising(Protocol):
    """Decorates a function that raises what it raised, and so returns what it returned."""

    def __call__(self, function: F, /) -> F:
        """Returns the decorated function."""


@dataclass(frozen=True, slots=True)
class ErrorRules:
    """What the errors of a decorated function mean.

    Attributes:
        include: trying again may help.
        exclude: of those, it does not.
        uncounted: what the function needs is away: trying again may help, and no attempt is spent.

    Raises:
        HandlerError: one of them is no exception class.
    """

    include: Errors
    exclude: Errors
    uncounted: Errors

    def __post_init__(self) -> None:
        for name in self.__slots__:
            given: Any = getattr(self, name)
            kinds = given if isinstance(given, tuple) else (given,)
            if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
                raise HandlerError(f"{name} must be an exception class, or a tuple of such: {given!r}")
            object.__setattr__(self, name, kinds)

    def retryable(self, error: BaseException) -> bool:
        """Says whether trying again may help."""
        return isinstance(error, (self.include, self.uncounted)) and not isinstance(error, self.exclude)

    def counted(self, error: BaseException) -> bool:
        """Says whether an attempt was spent."""
        return not isinstance(error, self.uncounted)


class Objects:
    """The objects, and classes, whose methods can be done again later, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, object] = {}

    def add(self, target: object, name: str) -> None:
        """Registers an object.

        Raises:
            HandlerError: another object has the name.
        """
        if self._by_name.setdefault(name, target) is not target:
            raise HandlerError(f"another object is registered as {name}")

    def name(self, target: object) -> str:
        """Returns the name of a registered object.

        Raises:
            HandlerError: it is not registered, so that its call could not be done again.
        """
        for name, known in self._by_name.items():
            if known is target:
                return name
        what = f"the class {target.__qualname__}" if isinstance(target, type) else f"this {type(target).__qualname__}"
        raise HandlerError(
            f"{what} is not registered, so its call could not be done again later:"
            " call retry.add_object(…) with it first"
        )

    def get(self, name: str) -> object:
        """Returns the object of a name.

        Raises:
            ParameterError: there is none in this process.
        """
        if name not in self._by_name:
            raise ParameterError(f"no object is registered as {name}")
        return self._by_name[name]


class Replays:
    """The functions of one application that are done again later.

    Args:
        registrar: registers failed calls.
        objects: whose methods can be decorated.
        bound: the connection that is bound, in this context.
    """

    def __init__(self, registrar: Registrar, objects: Objects, bound: ContextVar[Any]) -> None:
        self._registrar = registrar
        self._objects = objects
        self._bound = bound

    def handler(
        self, function: Callable[..., Any], code: str | None, options: TaskOptions, rules: ErrorRules
    ) -> Handler:
        """Makes a handler of a function that is to be decorated.

        Raises:
            HandlerError: a call of it could not be done again later.
        """
        _refuse_what_cannot_be_found_again(function)
        method = _is_method(function)
        codec = arguments_codec(function, skip_first=method)

        def read(payload: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
            stored = json.loads(payload)
            bound = codec.decode(stored["arguments"])
            first = (self._objects.get(stored["object"]),) if method else ()
            return (*first, *bound.args), bound.kwargs

        def call(arguments: tuple[tuple[Any, ...], Mapping[str, Any]], _: object) -> Any:
            args, kwargs = arguments
            return function(*args, **kwargs)

        return Handler(
            f"{function.__module__}.{function.__qualname__}" if code is None else code,
            inspect.iscoroutinefunction(function),
            read,
            call,
            _as_it_is,
            options,
            rules.retryable,
            rules.counted,
        )

    def wrap(
        self,
        function: Callable[P, T],
        handler: Handler,
        *,
        reraise: bool,
    ) -> Callable[P, Any]:
        """Returns the decorated function."""
        method = _is_method(function)
        codec = arguments_codec(function, skip_first=method)

        def parts(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], Draft]:
            # Before the call, which may change what its arguments hold.
            target, args, kwargs = _without_target(function, args, kwargs) if method else (None, args, kwargs)
            name = self._objects.name(target) if method else None
            try:
                payload = _payload(codec, name, args, kwargs)
            except (ParameterError, TypeError) as error:
                return functools.partial(_refuse, error)
            return lambda: self._registrar.draft(handler.code, payload, {})

        if handler.asynchronous:
            awaited: Callable[..., Any] = function

            @functools.wraps(function)
            async def asynchronously(*args: P.args, **kwargs: P.kwargs) -> Any:
                draft, connection, runs = parts(args, kwargs), self._bound.get(), False
                try:
                    async with connections.savepoint_async(connection):
                        runs = True
                        return await awaited(*args, **kwargs)
                except Exception as error:
                    # Without its savepoint it was not even called.
                    if not (runs and handler.retryable(error)):
                        raise
                    task = _drafted(draft, error)
                    if connection is None or reraise:
                        scheduled = await self._registrar.insert_alone_async(task)
                        if reraise:
                            raise
                        return scheduled
                    if connections.is_async(connection):
                        return await self._registrar.insert_async(connection, task)
                    return self._registrar.insert(connection, task)

            return asynchronously

        @functools.wraps(function)
        def waiting(*args: P.args, **kwargs: P.kwargs) -> T | Scheduled:
            draft, connection, runs = parts(args, kwargs), self._bound.get(), False
            if connections.is_async(connection):
                raise BindingError(f"{function.__qualname__} waits, and cannot run under an asynchronous connection")
            try:
                with connections.savepoint(connection):
                    runs = True
                    result = function(*args, **kwargs)
            except Exception as error:
                if not (runs and handler.retryable(error)):
                    raise
                task = _drafted(draft, error)
                if connection is None or reraise:
                    scheduled = self._registrar.insert_alone(task)
                    if reraise:
                        raise
                    return scheduled
                return self._registrar.insert(connection, task)
            _refuse_to_await(function, result)
            return result

        return waiting


def _refuse(error: Exception) -> Draft:
    raise error


def _drafted(draft: Callable[[], Draft], error: Exception) -> Draft:
    """Returns the task for a failed call; where it cannot be registered, both errors are told."""
    try:
        return draft()
    except ParameterError as unfit:
        raise unfit from error


def _payload(
    codec: ArgumentsCodec, name: str | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    payload: dict[str, Any] = {"arguments": codec.encode(args, kwargs)}
    if name is not None:
        payload["object"] = name
    return payload


def _without_target(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """Takes the object of a method out of the arguments of a call: the first, or that with its name."""
    if args:
        return args[0], args[1:], kwargs
    first = next(iter(inspect.signature(method).parameters))
    if first not in kwargs:
        raise TypeError(f"{method.__qualname__}() is called without {first}")
    return kwargs[first], args, {name: value for name, value in kwargs.items() if name != first}


def _refuse_to_await(function: Callable[..., Any], result: object) -> None:
    """Refuses what is still to be done: whoever awaits it is told of its failure, and nothing would be registered."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise HandlerError(
            f"{function.__qualname__} returned something to await, whose failure would go unseen: make it `async def`"
        )


def _as_it_is(payload: Any) -> Any:
    if not isinstance(payload, dict) or not isinstance(payload.get("arguments"), dict):
        raise ParameterError("a call is registered by calling the function, not by its code")
    return payload


def _is_method(function: Callable[..., Any]) -> bool:
    # A function does not know yet that it is one: its class is still being made.
    return next(iter(inspect.signature(function).parameters), None) in {"self", "cls"}


def _refuse_what_cannot_be_found_again(function: Callable[..., Any]) -> None:
    if not inspect.isfunction(function):
        raise HandlerError(f"{function!r} is no function: put @retry.on_failure right above `def`, below the others")
    name = function.__qualname__
    if function.__name__ == "<lambda>":
        raise HandlerError("a lambda has no name under which it could be found again: write a function")
    if captured := [variable for variable in function.__code__.co_freevars if variable != "__class__"]:
        raise HandlerError(
            f"{name} is a closure over {', '.join(captured)}, which could not be restored later: pass them as arguments"
        )
    if "<locals>" in name:
        raise HandlerError(
            f"{name} is defined inside another function, so the process that is to do it again may not have it:"
            " move it to its module, or its class's"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"{name} is a generator: a call of it does nothing by itself")
