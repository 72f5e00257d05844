"""YAML files checked against a model, with the line of every fault.

A file is taken apart in steps, each of which can bear whatever a file holds: size, then the stream of events (depth),
then the tree (aliases, counted as often as they stand), then the values, then the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML was built without libyaml; ten times slower
    from yaml import SafeLoader  # type: ignore[assignment]

from .errors import CatalogError, Problem

MAX_BYTES = 1_048_576
# Line breaks of YAML 1.1 that are none of YAML 1.2, nor of editors: the lines of faults would be others than shown.
_NO_BREAKS = str.maketrans("\x85\u2028\u2029", "   ")
_MAX_DEPTH = 32
_MAX_NODES = 200_000
_TOO_DEEP = f"is nested deeper than {_MAX_DEPTH} levels"

ModelT = TypeVar("ModelT", bound=BaseModel)


class _Loader(SafeLoader):
    """Reads plain values as YAML 1.2 and editors do: `22:30` is no number of base 60, `2026-01-01` no date.

    Names are read as they are written: a scene may be called `on`, `no`, `1.10` or `null`.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's own
        self.flatten_mapping(node)  # before, or merge keys would be names too
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's own
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:  # a number, or a date by tag, that Python cannot hold
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag.rpartition(":")[2] not in {"int", "float", "timestamp"}]
    for first, resolvers in SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


class Lines:
    """Finds the line on which a value of a YAML file stands."""

    def __init__(self, file: Path, root: yaml.Node | None) -> None:
        self.file = file
        self._root = root
        self._entries: dict[int, dict[str, tuple[yaml.Node, yaml.Node]]] = {}

    def problem(self, location: Sequence[int | str], reason: str) -> Problem:
        """Returns a problem at the deepest part of a location that the file has."""
        path = ".".join(str(part) for part in location)
        return Problem(self.file, self._line(location), f"{path}: {reason}" if path else reason)

    def _line(self, location: Sequence[int | str]) -> int:
        node = self._root
        line = 1
        for part in location:
            if isinstance(node, yaml.MappingNode):
                entry = self._index(node).get(str(part))
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

    def _index(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if id(node) not in self._entries:
            scalars = (entry for entry in node.value if isinstance(entry[0], yaml.ScalarNode))
            self._entries[id(node)] = {key.value: (key, value) for key, value in scalars}
        return self._entries[id(node)]


def read_text(file: Path) -> str:
    """Reads a UTF-8 file of at most `MAX_BYTES`.

    Raises:
        CatalogError: it is not there, is too large, or is not UTF-8.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise CatalogError([Problem(file, None, f"is larger than {MAX_BYTES} bytes")])
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CatalogError([Problem(file, None, f"cannot be read: {reason}")]) from error


def load_yaml(file: Path, model: type[ModelT]) -> tuple[ModelT, Lines]:
    """Reads a YAML file into a model.

    Returns:
        The model, and the finder of lines for checks that look at more than one value.

    Raises:
        CatalogError: the file cannot be read, or `parse_yaml` refuses it.
    """
    return parse_yaml(read_text(file), file, model)


def parse_yaml(text: str, file: Path, model: type[ModelT]) -> tuple[ModelT, Lines]:
    """Reads the text of a YAML file into a model.

    Raises:
        CatalogError: it is no YAML, is nested too deep or unfolds too far, names a key twice, or does not fit the
            model.
    """
    root, data = _read(text.translate(_NO_BREAKS), file)
    lines = Lines(file, root)
    # By way of JSON: there strict types still know tuples, enums and times by their text.
    as_json = json.dumps({} if data is None else data, default=str)
    try:
        return model.model_validate_json(as_json, strict=True), lines
    except ValidationError as error:
        faults = error.errors()
        problems = [
            lines.problem(_location(fault["loc"]), _reason(fault["type"], fault["msg"]))
            for fault in faults
            if not _is_echo(fault, faults)
        ]
        raise CatalogError(problems) from error


def _read(text: str, file: Path) -> tuple[yaml.Node | None, Any]:
    """Returns the tree of a YAML text and its values."""
    try:
        _check_depth(text, file)
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None, None
            _Tree(file).check(root)
            return root, loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise CatalogError([Problem(file, _line_of(getattr(error, "problem_mark", None)), reason)]) from error


def _line_of(mark: Any) -> int | None:
    return None if mark is None else mark.line + 1


def _check_depth(text: str, file: Path) -> None:
    """Refuses what is nested too deep, before anything descends into it."""
    depth = 0
    for event in yaml.parse(text, Loader=SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise CatalogError([Problem(file, _line_of(event.start_mark), _TOO_DEEP)])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Tree:
    """Checks the tree of a file: each node once, however often aliases repeat it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._measured: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()
        self._problems: list[Problem] = []

    def check(self, root: yaml.Node) -> None:
        """Refuses keys that stand twice in a mapping, which YAML would silently take the last of, and bombs.

        Raises:
            CatalogError: with every fault.
        """
        self._measure(root)
        if self._problems:
            raise CatalogError(self._problems)

    def _measure(self, node: yaml.Node) -> tuple[int, int]:
        """Returns how many nodes a node stands for, and how deep they are nested, its aliases written out."""
        known = self._measured.get(id(node))
        if known is not None:
            return known
        if id(node) in self._open:
            raise self._refusal(node, "contains itself by an alias")
        self._open.add(id(node))
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            self._find_repeated(node)
            children = [part for entry in node.value for part in entry]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        measures = [self._measure(child) for child in children]
        size = 1 + sum(measure[0] for measure in measures)
        depth = 1 + max((measure[1] for measure in measures), default=0)
        if size > _MAX_NODES:
            raise self._refusal(node, f"unfolds to more than {_MAX_NODES} values")
        if depth > _MAX_DEPTH + 1:
            raise self._refusal(node, _TOO_DEEP)
        self._open.discard(id(node))
        self._measured[id(node)] = size, depth
        return size, depth

    def _find_repeated(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                reason = f"{key.value}: stands here a second time"
                self._problems.append(Problem(self._file, key.start_mark.line + 1, reason))
            seen.add(key.value)

    def _refusal(self, node: yaml.Node, reason: str) -> CatalogError:
        return CatalogError([Problem(self._file, node.start_mark.line + 1, reason)])


def _is_echo(fault: ErrorDetails, faults: Sequence[ErrorDetails]) -> bool:
    """Says whether a list is too short only because pydantic took out what is wrong in it, and is told by itself."""
    at = fault["loc"]
    return fault["type"] == "too_short" and any(other["loc"][: len(at)] == at != other["loc"] for other in faults)


def _location(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Leaves out what pydantic says of its own ways: `[key]`, and the forms of a union."""
    return tuple(part for part in location if not (isinstance(part, str) and part.startswith("[")))


def _reason(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "is not a known setting"
    return message.removeprefix("Value error, ")
