"""Faults in the words of the command line: the options that were given, and not the contract's fields they became."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import click
from click.core import ParameterSource

from agent_reach.client.errors import InvalidArgumentError, Violation

# The parameters of commands that become a field, where they are not called as it is. Of several the one that was given
# counts, else the first.
_PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "user_id": ("user", "users"),
        "user_ids": ("users", "user"),
        "suppression_ids": ("suppression_ids",),
        "variables": ("variables", "variables_json"),
        "variables_json": ("variables", "variables_json"),
        "intent_key": ("key",),
        "expires_at": ("expires_in", "expires_at"),
        "created_from": ("since",),
        "policies_yaml": ("file",),
    }
)


@contextmanager
def options_named() -> Iterator[None]:
    """Names options in place of fields, in what is refused while a command runs.

    Raises:
        InvalidArgumentError: as it came, in other words.
    """
    try:
        yield
    except InvalidArgumentError as error:
        context = click.get_current_context(silent=True)
        if context is None or not error.violations:
            raise
        told = [Violation(_option(context, each.field), each.description) for each in error.violations]
        message = error.message
        for old, new in zip(error.violations, told, strict=True):
            message = message.replace(f"{old.field}: {old.description}", f"{new.field}: {new.description}")
        renamed = InvalidArgumentError(message, reason=error.reason, metadata=error.metadata, violations=told)
        raise renamed from error


def _option(context: click.Context, field: str) -> str:
    """Returns the option, or the argument's value, that became a field; the field where there is none."""
    name = re.split(r"[.\[]", field.removeprefix("intent."), maxsplit=1)[0]
    wanted = _PARAMETERS.get(name, (name, f"{name}s", name.removesuffix("s")))
    found = [parameter for parameter in context.command.params if parameter.name in wanted]
    given = [each for each in found if context.get_parameter_source(str(each.name)) is ParameterSource.COMMANDLINE]
    for parameter in (*given, *found):
        if isinstance(parameter, click.Option):
            return parameter.opts[0]
        value = context.params.get(str(parameter.name))
        return str(value) if isinstance(parameter.type, click.Path) else parameter.make_metavar(context)
    return field
