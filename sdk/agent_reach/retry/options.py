"""What can be said about a task, at its handler and at its registration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypedDict
from uuid import uuid4

from . import strategies
from .codec import dumps
from .errors import RegistrationError, StrategyError
from .settings import RetrySettings
from .store import Draft
from .strategies import Strategy

_TEXTS = {"code": 200, "unique_key": 500, "description": 2000, "creator": 200}


class TaskOptions(TypedDict, total=False):
    """The options; what is not given at the registration is the handler's, then the settings'.

    Attributes:
        max_attempts: how often the task is started at most, 1 or more.
        first_delay_seconds: from the registration to the first planned attempt.
        interval_seconds: what the strategy works with.
        strategy: how the gaps grow: a strategy, or its name.
        jitter_ratio: 0.3 spreads every gap evenly over 70 % to 130 % of itself.
        priority: 0 to 9, 9 is the most urgent; 5 if nobody says.
        expires_after_seconds: so long after the registration it is not started any more.
        max_execution_seconds: an attempt is stopped, and has failed, after so long.
        unique_key: at most one live task has it, whatever its code.
        description: for people.
        creator: for people: who registered it.
    """

    max_attempts: int
    first_delay_seconds: float
    interval_seconds: float | None
    strategy: Strategy | str
    jitter_ratio: float
    priority: int
    expires_after_seconds: float | None
    max_execution_seconds: float | None
    unique_key: str | None
    description: str | None
    creator: str | None


class Strategies:
    """The strategies of an application: the built-in ones, and its own."""

    def __init__(self) -> None:
        self._known: dict[str, Strategy] = dict(strategies.BUILT_IN)

    def add(self, strategy: Strategy) -> None:
        """Makes a strategy known.

        Raises:
            StrategyError: another one has its name.
        """
        if self._known.setdefault(strategy.name, strategy) != strategy:
            raise StrategyError(f"there is another strategy {strategy.name} already")

    def find(self, name: str) -> Strategy:
        """Returns the strategy of this name.

        Raises:
            StrategyError: nobody has made it known.
        """
        if name not in self._known:
            raise StrategyError(f"unknown strategy {name!r}; known are {', '.join(sorted(self._known))}")
        return self._known[name]


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


def check(options: TaskOptions, known: Strategies) -> None:
    """Refuses options that no task can have.

    Raises:
        RegistrationError: one of them is out of its bounds.
        StrategyError: the strategy is unknown, or lacks its interval.
    """
    strategies.check(_strategy(options, known), options.get("interval_seconds"))
    _whole(options, "max_attempts", 1, 1_000_000)
    _whole(options, "priority", 0, 9)
    _seconds(options, "first_delay_seconds", zero=True)
    _seconds(options, "interval_seconds", zero=True)
    _seconds(options, "expires_after_seconds", zero=False)
    _seconds(options, "max_execution_seconds", zero=False)
    jitter = options.get("jitter_ratio", 0.0)
    if not 0 <= jitter < 1:
        raise RegistrationError("jitter_ratio must be 0 or more, and less than 1")
    for name, longest in _TEXTS.items():
        _text(name, options.get(name), longest)


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
    check(options, known)
    if not code:
        raise RegistrationError("a task needs a code")
    _text("code", code, _TEXTS["code"])
    return Draft(
        id=uuid4(),
        code=code,
        payload=dumps(payload),
        priority=options.get("priority", 5),
        first_delay_seconds=options["first_delay_seconds"],
        max_attempts=options["max_attempts"],
        strategy=_strategy(options, known).name,
        interval_seconds=options.get("interval_seconds"),
        jitter_ratio=options.get("jitter_ratio", 0.0),
        unique_key=options.get("unique_key"),
        expires_after_seconds=options.get("expires_after_seconds"),
        max_execution_seconds=options.get("max_execution_seconds"),
        description=options.get("description"),
        creator=options.get("creator"),
        origin=origin,
    )


def _strategy(options: TaskOptions, known: Strategies) -> Strategy:
    strategy = options["strategy"]
    if isinstance(strategy, Strategy):
        known.add(strategy)
        return strategy
    return known.find(strategy)


def _whole(options: Mapping[str, Any], name: str, least: int, most: int) -> None:
    value = options.get(name, least)
    if not (isinstance(value, int) and least <= value <= most):
        raise RegistrationError(f"{name} must be a whole number from {least} to {most}")


def _seconds(options: Mapping[str, Any], name: str, *, zero: bool) -> None:
    value = options.get(name)
    if value is None:
        return
    if not (math.isfinite(value) and (value >= 0 if zero else value > 0) and value <= strategies.MAX_GAP_SECONDS):
        raise RegistrationError(f"{name} must be {'0' if zero else 'more than 0'} to {strategies.MAX_GAP_SECONDS:g}")


def _text(name: str, value: object, longest: int) -> None:
    if value is None:
        return
    if not isinstance(value, str) or len(value) > longest or "\0" in value:
        raise RegistrationError(f"{name} must be text of at most {longest} characters without NUL")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RegistrationError(f"{name} holds a lone surrogate") from error
