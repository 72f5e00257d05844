"""YAML files checked against a model, with the line of every fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from .errors import CatalogError, Problem

ModelT = TypeVar("ModelT", bound=BaseModel)


class Lines:
    """Finds the line on which a value of a YAML file stands."""

    def __init__(self, file: Path, root: yaml.Node | None) -> None:
        self.file = file
        self._root = root

    def problem(self, location: Sequence[int | str], reason: str) -> Problem:
        """Returns a problem at the deepest part of a location that the file has."""
        path = ".".join(str(part) for part in location)
        return Problem(self.file, self._line(location), f"{path}: {reason}" if path else reason)

    def _line(self, location: Sequence[int | str]) -> int:
        node = self._root
        line = 1
        for part in location:
            if isinstance(node, yaml.MappingNode):
                entry = next(((key, value) for key, value in node.value if key.value == str(part)), None)
                if entry is None:
                    break
                key, node = entry
                line = key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line


def read_text(file: Path) -> str:
    """Reads a UTF-8 file.

    Raises:
        CatalogError: it is not there, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CatalogError([Problem(file, None, f"cannot be read: {reason}")]) from error


def load_yaml(file: Path, model: type[ModelT]) -> tuple[ModelT, Lines]:
    """Reads a YAML file into a model.

    Returns:
        The model, and the finder of lines for checks that look at more than one value.

    Raises:
        CatalogError: the file cannot be read, is no YAML, names a key twice, or does not fit the model.
    """
    text = read_text(file)
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        raise CatalogError([Problem(file, line, getattr(error, "problem", None) or str(error))]) from error
    lines = Lines(file, root)
    if repeated := _repeated_keys(root, file):
        raise CatalogError(repeated)
    try:
        # By way of JSON: there strict types still know tuples, enums and times by their text.
        return model.model_validate_json(json.dumps({} if data is None else data, default=str), strict=True), lines
    except ValidationError as error:
        problems = [
            lines.problem(_location(fault["loc"]), _reason(fault["type"], fault["msg"])) for fault in error.errors()
        ]
        raise CatalogError(problems) from error


def _location(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    return tuple(part for part in location if part != "[key]")


def _reason(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "is not a known setting"
    return message.removeprefix("Value error, ")


def _repeated_keys(node: yaml.Node | None, file: Path) -> list[Problem]:
    """Finds keys that stand twice in one mapping; YAML would silently take the last."""
    problems: list[Problem] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                problems.append(Problem(file, key.start_mark.line + 1, f"{key.value}: stands here a second time"))
            seen.add(key.value)
            problems += _repeated_keys(value, file)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            problems += _repeated_keys(value, file)
    return problems
