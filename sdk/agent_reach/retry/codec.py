"""Parameters on their way into the database and out of it: checked by their types both ways."""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from .errors import HandlerError, ParameterError
from .roundtrip import RoundTrip, words

MAX_PAYLOAD_BYTES = 1024 * 1024
_MAX_STEPS_SHOWN = 20


class Codec:
    """One type's way to JSON and back.

    Args:
        kind: a dataclass, a pydantic model, ``JsonValue`` or any type that pydantic can write as JSON and read back.
        where: names the parameter in messages.

    Raises:
        HandlerError: values of this type cannot be stored.
    """

    def __init__(self, kind: Any, where: str) -> None:
        self._where = where
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            self._adapter.json_schema(mode="serialization")
            self._adapter.json_schema(mode="validation")
            known = words(self._adapter.core_schema)
        except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError, NameError) as error:
            raise HandlerError(
                f"{where}: {_name(kind)} cannot be stored as JSON; use a dataclass, a pydantic model or JSON values"
            ) from error
        if "generator" in known:
            raise HandlerError(f"{where}: what can be gone through once only cannot be stored; say list instead")
        self._round_trip = RoundTrip(known)

    def encode(self, value: Any) -> Any:
        """Returns a value as JSON value, having seen that it is read back as it is.

        Raises:
            ParameterError: it is not of the type, or cannot be stored.
        """
        try:
            checked = self._adapter.validate_python(value)
            # As JSON pydantic makes null of them.
            _refuse_numbers_without_value(self._adapter.dump_python(checked, warnings=False))
            encoded = self._adapter.dump_python(checked, mode="json", by_alias=True, round_trip=True, warnings="error")
            found = self._round_trip.difference(checked, self._read(_text(encoded)))
        except (ValidationError, ValueError, RecursionError) as error:
            # pydantic's messages repeat the values, which may be private: only places and reasons are told.
            raise ParameterError(f"{self._where}: {_reasons(error)}") from error
        if found is not None:
            raise ParameterError(f"{self._where}: {_place(found[0])}: {found[1]}")
        return encoded

    def decode(self, stored: str) -> Any:
        """Reads a stored JSON text.

        Raises:
            ParameterError: it is not of the type (any more).
        """
        try:
            return self._read(stored)
        except ValidationError as error:
            raise ParameterError(f"{self._where}: {_reasons(error)}") from error

    def _read(self, text: str) -> Any:
        # By names too: an alias may be for reading only.
        return self._adapter.validate_json(text, by_alias=True, by_name=True)


@dataclass(frozen=True, slots=True)
class ArgumentsCodec:
    """The arguments of one function's calls, each by its own type.

    Attributes:
        signature: of the function, without ``self``.
        codecs: by the parameter's name.
    """

    signature: inspect.Signature
    codecs: Mapping[str, Codec]

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a call's arguments as JSON object.

        Raises:
            ParameterError: an argument is not of its type.
        """
        bound = self.signature.bind(*args, **kwargs)
        return {name: self.codecs[name].encode(value) for name, value in bound.arguments.items()}

    def decode(self, stored: Any) -> inspect.BoundArguments:
        """Reads stored arguments, a JSON object by name.

        Raises:
            ParameterError: they no longer fit the function.
        """
        if not isinstance(stored, dict):
            raise ParameterError("the stored arguments are no object")
        bound = self.signature.bind_partial()
        for name, value in stored.items():
            if name not in self.codecs:
                raise ParameterError(f"the function has no parameter {name} any more")
            bound.arguments[name] = self.codecs[name].decode(json.dumps(value))
        try:
            return self.signature.bind(*bound.args, **bound.kwargs)
        except TypeError as error:
            raise ParameterError(f"the stored arguments do not fit the function any more: {error}") from error


def arguments_codec(function: Callable[..., Any], *, skip_first: bool = False) -> ArgumentsCodec:
    """Returns the codec for a function's calls.

    Args:
        function: every parameter has an annotation.
        skip_first: leave ``self`` out.

    Raises:
        HandlerError: a parameter cannot be stored.
    """
    hints = resolved_annotations(function)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
    codecs = {}
    for parameter in parameters:
        where = f"{function.__qualname__}({parameter.name})"
        if parameter.name not in hints:
            raise HandlerError(f"{where} has no annotation, so nobody can say whether it can be stored")
        kind: Any = hints[parameter.name]
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            kind = tuple.__class_getitem__((kind, ...))
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            kind = dict.__class_getitem__((str, kind))
        codecs[parameter.name] = Codec(kind, where)
    return ArgumentsCodec(signature.replace(parameters=parameters), codecs)


def resolved_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns a function's annotations, resolved.

    Raises:
        HandlerError: a name in them is not known where the function was defined.
    """
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise HandlerError(f"{function.__qualname__}: an annotation cannot be resolved: {error}") from error


def any_json(value: Any) -> Any:
    """Returns any value that pydantic knows as JSON value: for codes whose handler lives elsewhere.

    Raises:
        ParameterError: it cannot be stored.
    """
    kind: Any = type(value)
    try:
        return _codec_of(kind).encode(value)
    except HandlerError as error:
        raise ParameterError(str(error)) from error


@lru_cache(maxsize=256)
def _codec_of(kind: Any) -> Codec:
    return Codec(kind, "parameter")


def dumps(payload: Any) -> str:
    """Returns a payload as text that PostgreSQL's jsonb takes.

    Raises:
        ParameterError: it does not take it.
    """
    try:
        return _text(payload)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"parameter: {_reasons(error)}") from error


def _text(payload: Any) -> str:
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
    if "\\u0000" in text and _has_nul(payload):
        raise ValueError("text with a NUL character cannot be stored")
    if len(text.encode()) > MAX_PAYLOAD_BYTES:  # raises UnicodeEncodeError, a ValueError, for lone surrogates
        raise ValueError(f"more than {MAX_PAYLOAD_BYTES:,} bytes as JSON: store it elsewhere, and register where")
    return text


def _refuse_numbers_without_value(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("infinite numbers and NaN cannot be stored")
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _refuse_numbers_without_value(each)


def _has_nul(payload: Any) -> bool:
    if isinstance(payload, str):
        return "\0" in payload
    if isinstance(payload, dict):
        return any(_has_nul(key) or _has_nul(value) for key, value in payload.items())
    return isinstance(payload, list) and any(map(_has_nul, payload))


def _reasons(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "text with a lone surrogate, or bytes that are no UTF-8, cannot be stored"
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or holds itself"
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{_place(each['loc'])}: {each['msg']}" for each in found[:5])


def _place(steps: tuple[int | str, ...]) -> str:
    shown = ".".join(map(str, steps[:_MAX_STEPS_SHOWN])) or "value"
    return shown if len(steps) <= _MAX_STEPS_SHOWN else f"{shown}…"


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
