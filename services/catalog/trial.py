"""Renders a JSON part on trial, so that a comma too many is found when the file is loaded, not when it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from jinja2 import Environment, TemplateError

if TYPE_CHECKING:
    from .templates import TemplateHead

# Jinja2's sandbox asks a callable for these before it calls it.
_SANDBOX_MARKS = frozenset({"unsafe_callable", "alters_data"})


class _Anything(int):
    """Stands for the value of any variable.

    It prints as 1, which is right inside of quotes and outside. It is a number, a list of two, and an object of whatever
    attributes and methods it is asked for.
    """

    def __getattr__(self, name: str) -> Self:
        if name.startswith("_") or name in _SANDBOX_MARKS:
            raise AttributeError(name)
        return self

    def __getitem__(self, _key: object) -> Self:
        return self

    def __call__(self, *_arguments: object, **_named: object) -> Self:
        return self

    def __iter__(self) -> Iterator[Self]:
        return iter((self, self))

    def __len__(self) -> int:
        return 2


_ANYTHING = _Anything(1)


def find_json_fault(environment: Environment, source: str, head: TemplateHead) -> str:
    """Returns why a part cannot be JSON whatever its variables hold; empty when it can, or when nobody can tell.

    Two trials: with all variables, and with the required ones only.
    """
    required = dict.fromkeys(head.required, _ANYTHING)
    everything = {**required, **dict.fromkeys(head.optional, _ANYTHING)}
    for words, variables in (("", everything), (", without the optional variables", required)):
        try:
            text = environment.from_string(source).render(head.context(variables))
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError):
            continue  # it asks more of its variables than a trial can give
        try:
            json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            return f"renders no valid JSON{words}: {error}"
    return ""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is none")
