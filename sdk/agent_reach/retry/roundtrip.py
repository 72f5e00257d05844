"""Whether a value comes back from its JSON as it went in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, TypeAdapter

Place = tuple[int | str, ...]
Step = tuple[int | str, Any, Any]
"""Where in a value, what went in there, and what came back."""

_PLAIN = (str, int, float, bool, type(None), list, dict)
_SECRETS = (Secret, SecretBytes, SecretStr)
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


def words(schema: Any) -> frozenset[str]:
    """Returns the kinds of schema that a pydantic core schema is made of, such as ``union`` and ``set``."""
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        return frozenset([kind] if isinstance(kind, str) else []).union(*map(words, schema.values()))
    if isinstance(schema, list | tuple):
        return frozenset().union(*map(words, schema))
    return frozenset()


class RoundTrip:
    """Compares what went in with what came back, by content: ``==`` is whatever a class says it is.

    Under ``Any`` what comes back is JSON, and is compared as that. Private attributes of models are no content.

    Args:
        known: the words of the annotation's schema.
    """

    def __init__(self, known: frozenset[str]) -> None:
        # One of a union's members may read what another one wrote: what such an annotation names comes back exactly.
        self._exact = known if "union" in known else frozenset()

    def difference(self, before: Any, after: Any) -> tuple[Place, str] | None:
        """Returns where the two differ first, and how, in words without the values; None where they do not."""
        if before is after:
            return None
        steps = _inside(before, after) if type(before) is type(after) else None
        if steps is None:
            return None if self._same(before, after) else ((), _told(before, after))
        for step, was, now in steps:
            if (found := self.difference(was, now)) is not None:
                return (step, *found[0]), found[1]
        return None

    def _same(self, before: Any, after: Any) -> bool:
        if isinstance(before, type(after)) and before == after:
            return True
        # Otherwise only `Any` reads something else, which is plain JSON.
        if type(after) not in _PLAIN or type(before).__name__.lower() in self._exact:
            return False
        if _masked(_ANYTHING.dump_python(before, round_trip=True)):
            return False
        return bool(_ANYTHING.dump_python(before, mode="json", by_alias=True, round_trip=True) == after)


def _inside(before: Any, after: Any) -> Iterable[Step] | None:
    """Returns what two values of one type hold; None where they are to be compared as they are."""
    kind: Any = type(before)
    if isinstance(before, BaseModel):
        extra = ("extra", before.__pydantic_extra__, after.__pydantic_extra__)
        return chain(_values(kind.model_fields, vars(before), vars(after)), [extra])
    if dataclasses.is_dataclass(before):
        names = [field.name for field in dataclasses.fields(before)]
        return ((name, getattr(before, name, None), getattr(after, name, None)) for name in names)
    if isinstance(before, Mapping):
        return _values(before, before, after) if before.keys() == after.keys() else None
    if isinstance(before, list | tuple):
        return zip(range(len(before)), before, after, strict=True) if len(before) == len(after) else None
    if kind.__eq__ is object.__eq__ and hasattr(before, "__dict__"):
        return [("__dict__", vars(before), vars(after))]
    return None


def _values(names: Iterable[Any], before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Iterator[Step]:
    for name in names:
        yield str(name), before.get(name), after.get(name)


def _masked(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_masked, value))
    return isinstance(value, _SECRETS)


def _told(before: Any, after: Any) -> str:
    was, now = type(before).__name__, type(after).__name__
    return f"a {was} would come back as {now}" if was != now else f"this {was} would come back changed"
