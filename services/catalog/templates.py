"""Templates' heads: what each needs, what it serves, and the sources of its parts, checked when loaded.

A template is a folder `templates/<name>/` with `template.yaml` (`required`, `optional`, `noise`) and one Jinja2 file
per part, `<channel>.<part>.j2`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from .errors import CatalogError, Problem
from .rules import Channel
from .sections import Name
from .trial import find_json_fault
from .yaml_file import Lines, load_yaml, read_text

HEAD_FILE = "template.yaml"
_SUFFIX = ".j2"
_CHANNELS: Mapping[str, Channel] = MappingProxyType({channel.value: channel for channel in Channel})
# Which parts a channel can have; it is served when one of its sets of needed parts is there.
_PARTS: Mapping[Channel, frozenset[str]] = MappingProxyType(
    {
        Channel.EMAIL: frozenset({"subject", "text", "html"}),
        Channel.SMS: frozenset({"text"}),
        Channel.WEBHOOK: frozenset({"json", "text"}),
        Channel.INBOX: frozenset({"subject", "text"}),
        Channel.CHAT: frozenset({"text"}),
    }
)
_NEEDED: Mapping[Channel, tuple[frozenset[str], ...]] = MappingProxyType(
    {
        Channel.EMAIL: (frozenset({"subject", "text"}),),
        Channel.SMS: (frozenset({"text"}),),
        Channel.WEBHOOK: (frozenset({"json"}), frozenset({"text"})),
        Channel.INBOX: (frozenset({"text"}),),
        Channel.CHAT: (frozenset({"text"}),),
    }
)

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class HeadSection(BaseModel):
    """The whole of `template.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    required: tuple[Variable, ...] = Field(default=(), description="Variables without which an intent is refused.")
    optional: tuple[Variable, ...] = Field(default=(), description="Variables that may be left out.")
    noise: tuple[Variable, ...] = Field(
        default=(), description="Variables that do not make a message another one (a time, a random code)."
    )


@dataclass(frozen=True, slots=True)
class TemplateHead:
    """A template, ready to be rendered. Immutable.

    Attributes:
        name: its folder.
        version: SHA-256 (hex) of all its files.
        required: variables that an intent must carry.
        optional: variables that it may carry.
        noise: variables whose values do not distinguish two messages.
        parts: Jinja2 source by channel and part, for example `("email", "subject")`.
        channels: the channels it can serve.
    """

    name: str
    version: str
    required: frozenset[str]
    optional: frozenset[str]
    noise: frozenset[str]
    parts: Mapping[tuple[str, str], str]
    channels: frozenset[Channel]

    def missing(self, variables: Mapping[str, object]) -> list[str]:
        """Returns the required variables that are not there (or null), sorted."""
        return sorted(name for name in self.required if variables.get(name) is None)

    def context(self, variables: Mapping[str, object]) -> dict[str, object]:
        """Returns the variables to render with: an optional one that is not there is undefined, not an error."""
        absent = {name: Undefined(name=name) for name in self.optional if variables.get(name) is None}
        return {**variables, **absent}


def part_environment(part: str) -> ImmutableSandboxedEnvironment:
    """Returns the Jinja2 environment in which a part is checked and rendered: sandboxed, undefined is an error.

    Args:
        part: `html` escapes what it prints; the others do not.
    """
    return ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=part == "html", trim_blocks=True, lstrip_blocks=True
    )


def load_templates(folder: Path) -> Mapping[str, TemplateHead]:
    """Reads and checks every template below a folder; a folder that is not there holds none.

    Raises:
        CatalogError: every fault of every template with file, line and reason.
    """
    heads: dict[str, TemplateHead] = {}
    problems: list[Problem] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith("."):
            continue
        try:
            heads[path.name] = load_template(path)
        except CatalogError as error:
            problems += error.problems
    if problems:
        raise CatalogError(problems)
    return MappingProxyType(heads)


def load_template(folder: Path) -> TemplateHead:
    """Reads and checks one template.

    Raises:
        CatalogError: every fault with file, line and reason.
    """
    if not folder.is_dir():
        raise CatalogError([Problem(folder, None, "is no folder; a template is a folder with template.yaml in it")])
    _check_name(folder)
    head, lines = load_yaml(folder / HEAD_FILE, HeadSection)
    problems = _contradictions(head, lines)
    known = {*head.required, *head.optional}
    parts: dict[tuple[str, str], str] = {}
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") or file.name.endswith("~"):  # editors' own files
            continue
        source = read_text(file)
        for field in (file.name, source):
            digest.update(len(field.encode()).to_bytes(8, "big") + field.encode())
        if file.name == HEAD_FILE:
            continue
        key = _part_of(file.name)
        if key is None:
            problems.append(Problem(file, None, "is no part of a template; parts are named like email.subject.j2"))
            continue
        parts[key] = source
        problems += _check_part(file, key[1], source, known)
    channels, missing = _served(folder, parts)
    problems += missing
    if problems:
        raise CatalogError(problems)
    made = TemplateHead(
        name=folder.name,
        version=digest.hexdigest(),
        required=frozenset(head.required),
        optional=frozenset(head.optional),
        noise=frozenset(head.noise),
        parts=MappingProxyType(parts),
        channels=channels,
    )
    for (channel, part), source in parts.items():
        if part == "json" and (reason := find_json_fault(part_environment(part), source, made)):
            raise CatalogError([Problem(folder / f"{channel}.{part}{_SUFFIX}", None, reason)])
    return made


def _check_name(folder: Path) -> None:
    class Named(BaseModel):
        name: Name

    try:
        Named(name=folder.name)
    except ValueError as error:
        reason = "a template's name has at most 64 characters of [a-z0-9_.-]"
        raise CatalogError([Problem(folder, None, reason)]) from error


def _contradictions(head: HeadSection, lines: Lines) -> list[Problem]:
    required, optional = set(head.required), set(head.optional)
    problems = [lines.problem(("optional",), f"{name} is required as well") for name in sorted(required & optional)]
    problems += [
        lines.problem(("noise",), f"{name} is neither required nor optional")
        for name in sorted(set(head.noise) - required - optional)
    ]
    return problems


def _part_of(file_name: str) -> tuple[Channel, str] | None:
    pieces = file_name.removesuffix(_SUFFIX).split(".")
    if not file_name.endswith(_SUFFIX) or len(pieces) != 2:
        return None
    owner, part = pieces
    channel = _CHANNELS.get(owner)
    return (channel, part) if channel is not None and part in _PARTS[channel] else None


def _check_part(file: Path, part: str, source: str, known: set[str]) -> list[Problem]:
    """Checks syntax, filters, and that every variable is declared."""
    environment = part_environment(part)
    try:
        tree = environment.parse(source)
        environment.compile(source)
    except TemplateSyntaxError as error:
        return [Problem(file, error.lineno, error.message or "is no valid Jinja2")]
    except RecursionError:
        return [Problem(file, None, "is nested too deep")]
    problems = [
        Problem(file, node.lineno, "a part stands for itself: include, import and extends are not available")
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends))
    ]
    unknown = meta.find_undeclared_variables(tree) - known - environment.globals.keys()
    lines = {node.name: node.lineno for node in reversed(list(tree.find_all(nodes.Name)))}
    problems += [
        Problem(file, lines.get(name), f"uses {name}, which {HEAD_FILE} lists neither as required nor as optional")
        for name in sorted(unknown)
    ]
    return problems


def _served(folder: Path, parts: Mapping[tuple[str, str], str]) -> tuple[frozenset[Channel], list[Problem]]:
    channels: set[Channel] = set()
    problems: list[Problem] = []
    for channel, ways in _NEEDED.items():
        present = {part for owner, part in parts if owner == channel}
        fitting = [way for way in ways if way <= present]
        if len(fitting) > 1:
            problems.append(Problem(folder, None, f"{channel.value} has both json and text; one of them is sent"))
        elif fitting:
            channels.add(channel)
        elif present:
            missing = ", ".join(f"{channel.value}.{part}{_SUFFIX}" for part in sorted(ways[0] - present))
            problems.append(Problem(folder, None, f"{missing} is missing"))
    if not channels and not problems:
        problems.append(Problem(folder, None, "has no part, for example email.subject.j2 and email.text.j2"))
    return frozenset(channels), problems
