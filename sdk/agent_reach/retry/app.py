"""The application's one object: its handlers, its registrations, its worker."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, Unpack, overload
from uuid import UUID

import structlog

from . import connections, schema
from .connections import AsyncConnection, SyncConnection
from .decorator import ErrorRules, Errors, Objects, Replays, Reraising, Scheduling
from .errors import HandlerError, TaskNotFoundError
from .handlers import Registry, listener
from .model import Scheduled
from .operate import Operations
from .options import Strategies, TaskOptions, check, merged
from .queue import RetryQueue
from .registration import Registrar
from .runner import Runner
from .settings import RetrySettings
from .store import Statements
from .strategies import Strategy
from .telemetry import Telemetry
from .telling import Callback, Callbacks
from .worker import Worker, working

T = TypeVar("T")
F = TypeVar("F")


class Retries:
    """Retries that survive crashes, in the transactions of the application that needs them.

    ::

        retry = Retries("postgresql://…")

        @retry.listener("user_notify", strategy=BACKOFF, interval_seconds=5)
        async def notify(parameter: Notification, ctx: Context) -> None: ...

        with psycopg.connect(…) as connection:
            connection.execute("INSERT INTO orders …")
            retry.register(connection, "user_notify", Notification(order_id=7))

        async with retry.running(): ...

    Making one does no work and opens nothing.

    Args:
        dsn: PostgreSQL, or a pooler in transaction mode in front of it.
        direct_dsn: PostgreSQL itself, where ``dsn`` is a pooler: for LISTEN, the heartbeat and migrations.
        schema_name: where the library's tables live.
        settings: from the environment if not given.

    Raises:
        ValueError: a connection string cannot be read, or the schema's name is not a plain lower-case one.
    """

    def __init__(
        self,
        dsn: str,
        *,
        direct_dsn: str | None = None,
        schema_name: str = schema.DEFAULT_SCHEMA,
        settings: RetrySettings | None = None,
    ) -> None:
        self.settings = settings or RetrySettings()
        self.tasks = Operations(dsn, schema_name)
        self._dsn = dsn
        self._direct_dsn = connections.check_dsn(direct_dsn or dsn)
        self._schema = schema_name
        self._statements = Statements(schema_name)
        self._registry = Registry()
        self._strategies = Strategies()
        self._objects = Objects()
        self._callbacks = Callbacks([], [])
        self._log = structlog.wrap_logger(
            None,
            wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(self.settings.log_level)),
            logger_factory_args=(__name__,),
        )
        self._telemetry = Telemetry(schema_name)
        self._bound: ContextVar[Any] = ContextVar(f"reach-retry-{id(self)}", default=None)
        self._registrar = Registrar(
            dsn, self._statements, self._registry, self._strategies, self.settings, self._telemetry, self._log
        )
        self._replays = Replays(self._registrar, self._objects, self._bound)
        self._worker: Worker | None = None
        self._runs = False

    # -- tables -----------------------------------------------------------------------------------------------------

    def install(self, *, grant_to: str | None = None) -> list[int]:
        """Creates or upgrades the library's tables; see :func:`agent_reach.retry.install`."""
        return schema.install(self._direct_dsn, self._schema, grant_to=grant_to)

    def install_sql(self, after: int = 0, *, grant_to: str | None = None) -> str:
        """Returns the SQL of :meth:`install`, after the version that is installed already."""
        return schema.install_sql(self._schema, after, grant_to=grant_to)

    # -- handlers ---------------------------------------------------------------------------------------------------

    def listener(self, code: str, **options: Unpack[TaskOptions]) -> Callable[[F], F]:
        """Makes a function, a callable object, or a class of such the handler of a code.

        It takes the parameter, which its annotation describes, and the context if it likes. To return is success, to
        raise is failure; ``Retry(after=…)`` and ``GiveUp(reason)`` are answers too.

        Args:
            code: of the tasks it does.
            options: of tasks whose registration says nothing else.

        Raises:
            HandlerError: it cannot be called that way, its parameter cannot be stored, or the code is taken.
            RegistrationError: no task could have these options.
        """

        def decorate(target: F) -> F:
            check(merged(self.settings, options), self._strategies)
            self._registry.add(listener(code, target, options))
            return target

        return decorate

    @overload
    def on_failure(
        self,
        *,
        include: Errors = ...,
        exclude: Errors = ...,
        uncounted: Errors = ...,
        reraise: Literal[False] = False,
        code: str | None = ...,
        **options: Unpack[TaskOptions],
    ) -> Scheduling: ...

    @overload
    def on_failure(
        self,
        *,
        include: Errors = ...,
        exclude: Errors = ...,
        uncounted: Errors = ...,
        reraise: Literal[True],
        code: str | None = ...,
        **options: Unpack[TaskOptions],
    ) -> Reraising: ...

    def on_failure(
        self,
        *,
        include: Errors = (Exception,),
        exclude: Errors = (),
        uncounted: Errors = (),
        reraise: bool = False,
        code: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Makes a function whose failed calls are done again later, with the same arguments.

        Called normally, it runs here. When it raises one of ``include`` the call is registered, and the caller gets a
        :class:`Scheduled`. Within :meth:`bind` it runs under a savepoint, so that its own writes are undone, and
        the task is registered in the bound transaction; otherwise in one of its own.

        Args:
            include: errors after which trying again may help. Another one later ends the task as GIVEN_UP.
            exclude: of those, which not.
            uncounted: errors that say that what the function needs is away. The call is done again too, but after
                such an error no attempt is spent: it waits by its strategy, 1 s at least.
            reraise: register in a transaction of its own always, and let the error go on to the caller.
            code: of the tasks; by default the function's module and name, so that moving it needs one.
            options: of the tasks. The call that failed here counts as no attempt.

        Raises:
            HandlerError: a call of it could not be done again: a closure, a parameter that cannot be stored.
            RegistrationError: no task could have these options.
        """
        rules = ErrorRules(include, exclude, uncounted)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            check(merged(self.settings, options), self._strategies)
            handler = self._replays.handler(function, code, options, rules)
            self._registry.add(handler)
            return self._replays.wrap(function, handler, reraise=reraise)

        return decorate

    def add_object(self, target: T, name: str | None = None) -> T:
        """Registers an object whose methods :meth:`on_failure` decorates, or a class for its class methods.

        Args:
            target: the object, or the class; returned, so that this decorates a class too.
            name: under which tasks refer to it, by default the module and name of the class.

        Raises:
            HandlerError: another object has the name.
        """
        kind = target if isinstance(target, type) else type(target)
        self._objects.add(target, name or f"{kind.__module__}.{kind.__qualname__}")
        return target

    def add_strategy(self, strategy: Strategy) -> None:
        """Makes a strategy of the application's known, in every process that registers or does tasks with it."""
        self._strategies.add(strategy)

    @overload
    def after_attempt(self, callback: Callback, code: str | None = ...) -> Callback: ...

    @overload
    def after_attempt(self, *, code: str | None = ...) -> Callable[[Callback], Callback]: ...

    def after_attempt(self, callback: Callback | None = None, code: str | None = None) -> Any:
        """Has a function, sync or async, called after every attempt (of one code); a decorator too."""
        return _noted(self._callbacks.after_attempt, callback, code)

    @overload
    def at_end(self, callback: Callback, code: str | None = ...) -> Callback: ...

    @overload
    def at_end(self, *, code: str | None = ...) -> Callable[[Callback], Callback]: ...

    def at_end(self, callback: Callback | None = None, code: str | None = None) -> Any:
        """Has a function, sync or async, called once when a task (of one code) has ended here; a decorator too."""
        return _noted(self._callbacks.at_end, callback, code)

    # -- registering ------------------------------------------------------------------------------------------------

    def register(
        self, connection: SyncConnection | None, code: str, parameter: Any, **options: Unpack[TaskOptions]
    ) -> Scheduled:
        """Registers a task in the connection's transaction: it commits, or rolls back, with that.

        Args:
            connection: psycopg's, or SQLAlchemy's connection or session; None for a transaction of its own.
            code: says who does it.
            parameter: what the handler takes.
            options: see :class:`TaskOptions`.

        Raises:
            RegistrationError: it cannot be registered; the transaction is untouched.
            BindingError: the connection is none that is known.
        """
        task = self._registrar.draft(code, parameter, options)
        return self._registrar.insert_alone(task) if connection is None else self._registrar.insert(connection, task)

    async def register_async(
        self, connection: AsyncConnection | None, code: str, parameter: Any, **options: Unpack[TaskOptions]
    ) -> Scheduled:
        """As :meth:`register`, with an asynchronous connection or session."""
        task = self._registrar.draft(code, parameter, options)
        if connection is None:
            return await self._registrar.insert_alone_async(task)
        return await self._registrar.insert_async(connection, task)

    @contextmanager
    def bind(self, connection: SyncConnection | AsyncConnection) -> Iterator[None]:
        """Has decorated functions called in the block run in this connection's transaction, under savepoints.

        Raises:
            BindingError: the connection is none that is known.
        """
        connections.check(connection)
        token = self._bound.set(connection)
        try:
            yield
        finally:
            self._bound.reset(token)

    # -- doing ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self, name: str | None = None) -> AsyncIterator[Worker]:
        """Does tasks in this process while the block runs; then lets them end, and hands back what has not started.

        Args:
            name: says to people which process this is; host and process id if not given.

        Raises:
            HandlerError: it runs here already.
            StrategyError: that of the settings is unknown.
        """
        if self._runs:
            raise HandlerError("this object runs already")
        self._runs = True
        try:
            async with self._working(name, claims=True) as self._worker:
                yield self._worker
        finally:
            self._runs, self._worker = False, None

    def run_forever(self, name: str | None = None) -> None:
        """Does tasks until SIGTERM or SIGINT comes, then stops in good order. For the main thread."""
        asyncio.run(self._until_stopped(name))

    async def run_now_async(self, task_id: UUID | str) -> Any:
        """Does a waiting task here, at once, and returns its result. It never runs twice at once.

        Raises:
            TaskNotFoundError: there is none.
            TaskStateError: it runs somewhere, or has ended.
            AttemptFailedError: the handler answered that it did not work.
            Exception: what the handler raised; the task then goes on by its strategy.
        """
        wanted = _id(task_id)
        if self._worker is not None:
            return await self._worker.run_now(wanted)
        async with self._working(None, claims=False) as worker:
            return await worker.run_now(wanted)

    def run_now(self, task_id: UUID | str) -> Any:
        """As :meth:`run_now_async`, for callers without a loop.

        Raises:
            HandlerError: there is a loop, which it would block.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise HandlerError("there is an event loop, which this would block: await run_now_async")

        wanted = _id(task_id)

        async def alone() -> Any:
            async with self._working(None, claims=False) as worker:
                return await worker.run_now(wanted)

        return asyncio.run(alone())

    def _working(self, name: str | None, *, claims: bool) -> Any:
        self._strategies.find(self.settings.strategy)
        runner = Runner(
            RetryQueue(self._schema, self._registry.codes if claims else [], self._strategies.names),
            self._registry,
            self._strategies,
            self._callbacks,
            self._telemetry,
            self.settings,
            self._dsn,
            self._log,
        )
        return working(
            self._dsn,
            self._direct_dsn,
            self._registry,
            runner,
            self._statements,
            self.settings,
            self._telemetry,
            name,
            claims=claims,
        )

    async def _until_stopped(self, name: str | None) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        async with self.running(name):
            await stopping.wait()


def _noted(callbacks: list[tuple[str | None, Callback]], callback: Callback | None, code: str | None) -> Any:
    if callback is None:
        return lambda given: _noted(callbacks, given, code)
    callbacks.append((code, callback))
    return callback


def _id(task_id: UUID | str) -> UUID:
    try:
        return task_id if isinstance(task_id, UUID) else UUID(task_id)
    except ValueError as error:
        raise TaskNotFoundError(f"no task has the id {task_id!r}") from error
