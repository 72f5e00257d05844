"""What cannot be done again later is refused at decoration, with a clear error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from agent_reach.retry import HandlerError, Retries, StrategyError

retry = Retries("host=nowhere")


def takes_a_connection(connection: psycopg.Connection[Any]) -> None:
    pass


def takes_a_function(callback: Callable[[], None]) -> None:
    pass


def says_nothing(number) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    pass


def generates(number: int) -> Iterator[int]:
    yield number


class Mailer:
    def send(self, to: psycopg.Connection[Any]) -> None:
        pass

    @classmethod
    def make(cls, number: int) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (takes_a_connection, r"takes_a_connection\(connection\): Connection.* cannot be stored"),
        (takes_a_function, r"takes_a_function\(callback\): .* cannot be stored"),
        (says_nothing, r"says_nothing\(number\) has no annotation"),
        (generates, "generator"),
        (Mailer.send, r"Mailer.send\(to\): Connection.* cannot be stored"),
        (Mailer.make.__func__, "class method"),  # type: ignore[attr-defined]
        (lambda: None, "lambda"),
        (print, "no function"),
    ],
)
def test_it_is_refused(function: Callable[..., Any], told: str) -> None:
    with pytest.raises(HandlerError, match=told):
        retry.on_failure()(function)


def test_a_closure_is_refused_and_told_what_it_holds() -> None:
    secret = 7

    def charge(number: int) -> int:
        return secret + number

    with pytest.raises(HandlerError, match=r"closure over secret.*pass them as arguments"):
        retry.on_failure()(charge)


def test_a_strategy_without_its_interval_is_refused() -> None:
    with pytest.raises(StrategyError, match="needs interval_seconds"):

        @retry.on_failure(strategy="fibonacci")
        def charge(number: int) -> None:
            pass


def test_the_same_function_cannot_be_decorated_twice_under_one_code() -> None:
    retry.on_failure(code="once")(once)
    with pytest.raises(HandlerError, match="already"):
        retry.on_failure(code="once")(once)


def once(number: int) -> None:
    pass


def test_a_function_stays_what_it_was() -> None:
    decorated = retry.on_failure(code="documented")(documented)
    assert (decorated.__name__, decorated.__doc__) == ("documented", "Adds one.")
    assert decorated(1) == 2


def documented(number: int) -> int:
    """Adds one."""
    return number + 1
