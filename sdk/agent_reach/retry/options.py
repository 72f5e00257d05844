"""What can be said about a task, at its handler and at its registration."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from . import strategies
from .codec import dumps
from .errors import RegistrationError, StrategyError
from .settings import MAX_ATTEMPTS, RetrySettings
from .store import Draft
from .strategies import Gap, Strategy, seconds

T = TypeVar("T")


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("text with a NUL character cannot be stored")
    return text


_Delay = Annotated[float | timedelta, PlainValidator(partial(seconds, zero=True))]
_Limit = Annotated[float | timedelta, PlainValidator(partial(seconds, zero=False))]
_Key = Annotated[str, Field(max_length=500), AfterValidator(_without_nul)]
_Note = Annotated[str, Field(max_length=2000), AfterValidator(_without_nul)]
_Name = Annotated[str, Field(max_length=200), AfterValidator(_without_nul)]
_Code = Annotated[str, Field(min_length=1, max_length=200, strict=True), AfterValidator(_without_nul)]
_Strategy = Annotated[Strategy | Gap | str, PlainValidator(lambda given: given)]


@with_config(ConfigDict(extra="forbid", strict=True))
class TaskOptions(TypedDict, total=False):
    """The options; what is not given at the registration is the handler's, then the settings'.

    Lengths of time are seconds, or a ``timedelta``.

    Attributes:
        max_attempts: how often the task is started at most, 1 or more.
        first_delay_seconds: from the registration to the first planned attempt.
        interval_seconds: what the strategy works with.
        strategy: how the gaps grow: a strategy, its name, or a function ``(attempt, interval)`` of its own.
        jitter_ratio: 0.3 spreads every gap evenly over 70 % to 130 % of itself.
        priority: 0 to 9, 9 is the most urgent; 5 if nobody says.
        expires_after_seconds: so long after the registration it is not started any more.
        max_execution_seconds: an attempt is stopped, and has failed, after so long.
        unique_key: at most one live task has it, whatever its code.
        description: for people.
        creator: for people: who registered it.
    """

    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)]
    first_delay_seconds: _Delay
    interval_seconds: _Delay | None
    strategy: _Strategy
    jitter_ratio: Annotated[float, Field(ge=0, lt=1)]
    priority: Annotated[int, Field(ge=0, le=9)]
    expires_after_seconds: _Limit | None
    max_execution_seconds: _Limit | None
    unique_key: _Key | None
    description: _Note | None
    creator: _Name | None


_OPTIONS: TypeAdapter[Any] = TypeAdapter(TaskOptions)
_CODE: TypeAdapter[str] = TypeAdapter(_Code)


class Strategies:
    """The strategies of an application: the built-in ones, and its own.

    Attributes:
        names: as they stand in tasks; the same list for ever, since the queue reads it at every claim.
    """

    def __init__(self) -> None:
        self._known: dict[str, Strategy] = dict(strategies.BUILT_IN)
        self.names = [strategy.name for strategy in self._known.values()]

    def add(self, strategy: Strategy) -> None:
        """Makes a strategy known.

        Raises:
            StrategyError: another one has its name.
        """
        known = self._known.get(strategy.name.casefold())
        if known is None:
            self._known[strategy.name.casefold()] = strategy
            self.names.append(strategy.name)
        elif known != strategy:
            raise StrategyError(
                f"there is another strategy {strategy.name} already: make one object, or function, and use that"
            )

    def find(self, name: str) -> Strategy:
        """Returns the strategy of this name, in upper or lower case.

        Raises:
            StrategyError: nobody has made it known.
        """
        known = self._known.get(name.casefold())
        if known is None:
            raise StrategyError(f"unknown strategy {name!r}; known are {', '.join(sorted(self._known))}")
        return known

    def of(self, given: Strategy | Gap | str) -> Strategy:
        """Returns what was given as an option; it is known from then on.

        Raises:
            StrategyError: it is none.
        """
        if isinstance(given, str):
            return self.find(given)
        strategy = given if isinstance(given, Strategy) else strategies.of_function(given)
        self.add(strategy)
        return strategy


def merged(settings: RetrySettings, *layers: TaskOptions) -> TaskOptions:
    """Lays options over each other, the last on top, all over the settings."""
    options = TaskOptions(
        max_attempts=settings.max_attempts,
        first_delay_seconds=settings.first_delay_seconds,
        strategy=settings.strategy,
    )
    for layer in layers:
        options.update(layer)
    return options


def check(options: TaskOptions, known: Strategies) -> dict[str, Any]:
    """Returns options as they are stored: lengths of time in seconds, the strategy by its name.

    Args:
        options: all of them.
        known: the strategies.

    Raises:
        RegistrationError: one of them is unknown, not of its type, or out of its bounds.
        StrategyError: the strategy is unknown, or lacks its interval.
    """
    checked: dict[str, Any] = _validated(_OPTIONS, options)
    strategy = known.of(checked["strategy"])
    strategies.check(strategy, checked.get("interval_seconds"))
    return {**checked, "strategy": strategy.name}


def check_code(code: str) -> str:
    """Returns a code that tasks can have.

    Raises:
        RegistrationError: it is none.
    """
    return _validated(_CODE, code, "code")


def draft(code: str, payload: Any, options: TaskOptions, known: Strategies, origin: str | None = None) -> Draft:
    """Returns a task that can be inserted.

    Args:
        code: says who does it.
        payload: its parameter, as JSON value.
        options: all of them.
        known: the strategies.
        origin: the span in which it is registered, as ``traceparent``.

    Raises:
        RegistrationError: it cannot.
    """
    return Draft(
        id=uuid4(), code=check_code(code), payload=dumps(payload), origin=origin, **_NONE | check(options, known)
    )


_NONE: dict[str, Any] = {**dict.fromkeys(TaskOptions.__annotations__), "priority": 5, "jitter_ratio": 0.0}


def _validated(adapter: TypeAdapter[T], given: object, whole: str = "") -> T:
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        # Without the values, which may be private.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        told = {f"{'.'.join(map(str, each['loc'])) or whole}: {_reason(each)}" for each in found}
        raise RegistrationError("; ".join(sorted(told))) from None


def _reason(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return f"there is no such option; there are {', '.join(TaskOptions.__annotations__)}"
    return str(error["msg"]).removeprefix("Value error, ")
