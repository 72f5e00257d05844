"""What cannot be done again later is refused at decoration, with a clear error."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import psycopg
import pytest

from agent_reach.retry import HandlerError, RegistrationError, Report, Retries, Scheduled, StrategyError, install

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


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (takes_a_connection, r"takes_a_connection\(connection\): Connection.* cannot be stored"),
        (takes_a_function, r"takes_a_function\(callback\): .* cannot be stored"),
        (says_nothing, r"says_nothing\(number\) has no annotation"),
        (generates, "generator"),
        (Mailer.send, r"Mailer.send\(to\): Connection.* cannot be stored"),
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


def test_a_function_inside_another_is_refused_since_a_worker_need_not_have_it() -> None:
    def charge(number: int) -> int:
        return number

    class Shop:
        def charge(self, number: int) -> None:
            pass

    for nested in (charge, Shop.charge):
        with pytest.raises(HandlerError, match=r"charge is defined inside another function.*move it to its module"):
            retry.on_failure()(nested)


def test_one_of_the_others_above_it_is_told_where_to_put_it() -> None:
    wrapped: Any
    for wrapped in (staticmethod(once), functools.partial(once, 1)):
        with pytest.raises(HandlerError, match=r"put @retry\.on_failure right above `def`"):
            retry.on_failure()(wrapped)


class Shop:
    @retry.on_failure(code="shop")
    def charge(self, number: int) -> int:
        return number

    @classmethod
    @retry.on_failure(code="shop class")
    def of(cls, number: int) -> str:
        return f"{cls.__name__} {number}"

    @staticmethod
    @retry.on_failure(code="shop static")
    def check(number: int) -> int:
        return number


async def test_type_checkers_know_what_a_decorated_function_returns() -> None:
    """What `assert_type` says is held by mypy, which reads this file; here it does nothing."""
    waiting = retry.on_failure(code="typed")(documented)
    assert_type(waiting(1), int | Scheduled)
    awaited = retry.on_failure(code="typed async")(documented_async)
    assert_type(await awaited(number=1), int | Scheduled)
    raising = retry.on_failure(code="typed reraise", reraise=True)(documented)
    assert_type(raising(1), int)
    shop = retry.add_object(Shop(), "shop")
    assert_type(shop, Shop)
    assert_type(shop.charge(1), int | Scheduled)
    assert_type(retry.add_object(Shop).of(1), str | Scheduled)
    assert_type(Shop.check(1), int | Scheduled)


async def documented_async(number: int) -> int:
    return number + 1


def test_a_strategy_without_its_interval_is_refused() -> None:
    with pytest.raises(StrategyError, match="needs interval_seconds"):

        @retry.on_failure(strategy="fibonacci")
        def charge(number: int) -> None:
            pass


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"include": KeyboardInterrupt}, "include must be an exception class"),
        ({"exclude": (ValueError, "TypeError")}, "exclude must be an exception class"),
        ({"uncounted": [ValueError]}, "uncounted must be an exception class"),
        ({"include": ValueError("instance")}, "include must be an exception class"),
    ],
)
def test_errors_are_exception_classes(rules: dict[str, Any], told: str) -> None:
    with pytest.raises(HandlerError, match=told):
        retry.on_failure(**rules)


@pytest.mark.parametrize("decorator", [retry.listener, retry.on_failure])
@pytest.mark.parametrize("options", [{"max_atempts": 9}, {"maxattempts": 3}, {"priority": "high"}])
def test_options_that_no_task_can_have_are_refused_at_decoration(decorator: Any, options: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError, match=next(iter(options))):
        decorator(code="options", **options)(once)


def lists(number: int) -> Iterator[int]:
    yield number


async def streams(number: int) -> AsyncIterator[int]:
    yield number


class Streams:
    async def __call__(self, number: int) -> AsyncIterator[int]:
        yield number


@pytest.mark.parametrize("generator", [lists, streams, Streams, Streams()])
def test_a_listener_that_is_a_generator_would_do_nothing_and_is_refused(generator: Any) -> None:
    with pytest.raises(HandlerError, match="is a generator"):
        retry.listener("generator")(generator)


def test_callbacks_are_given_or_decorated_with_their_code_or_without() -> None:
    @retry.at_end(code="y")
    def at_end(_: Report) -> None:
        pass

    @retry.after_attempt
    def after_attempt(_: Report) -> None:
        pass

    assert retry.after_attempt(at_end, "z") is at_end
    assert retry._callbacks.at_end == [("y", at_end)]
    assert retry._callbacks.after_attempt == [(None, after_attempt), ("z", at_end)]


def test_a_connection_string_is_read_at_once_and_never_repeated() -> None:
    for make in (
        lambda: Retries("postgresql+psycopg://shop:hush@localhost/shop"),
        lambda: Retries("host=localhost", direct_dsn="postgresql+psycopg://shop:hush@localhost/shop"),
        lambda: install("hush hush"),
    ):
        with pytest.raises(ValueError, match="cannot be read") as told:
            make()
        assert "hush" not in str(told.value)
        assert told.value.__suppress_context__, "psycopg's error repeats it"


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
