"""Options that say where to connect, and the client made of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agent_reach.client.operator import PolicyOperator
from agent_reach.client.sync import Reach

from .endpoints import DATA_DIRECTORY, Endpoints
from .failures import CommandError
from .naming import options_named


def connects(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options `--target`, `--api-key`, `--data`, and a connected client as its first argument."""
    return _connected(function, operator=False)


def connects_as_operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Does the same as `connects` for a command of operators: on a local system it uses their key."""
    return _connected(function, operator=True)


def _connected(function: Callable[..., Any], *, operator: bool) -> Callable[..., Any]:
    @click.option("--target", help="gRPC target of intake. [env: REACH_TARGET; else a running `reach up`]")
    @click.option("--api-key", help="API key. [env: REACH_API_KEY; else that of a running `reach up`]")
    @data_option
    @functools.wraps(function)
    def command(target: str | None, api_key: str | None, data: Path, **arguments: Any) -> Any:
        with options_named(), connect(target, api_key, data, operator=operator) as reach:
            return function(reach, **arguments)

    return command


def operates(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command of operators the options of `connects`, and a client of the policy as its first argument."""

    @click.option("--target", help="gRPC target of policy. [env: REACH_POLICY_TARGET; else a running `reach up`]")
    @click.option("--api-key", help="Key of an operator. [env: REACH_API_KEY; else that of a running `reach up`]")
    @data_option
    @functools.wraps(function)
    def command(target: str | None, api_key: str | None, data: Path, **arguments: Any) -> Any:
        with options_named(), operator_of_policy(target, api_key, data) as operator:
            return function(operator, **arguments)

    return command


def data_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the option `--data`."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=DATA_DIRECTORY,
        envvar="REACH_DATA",
        show_default=True,
        show_envvar=True,
        help="Data directory of a local system.",
    )(function)


def connect(target: str | None, api_key: str | None, data: Path, *, operator: bool = False) -> Reach:
    """Returns a client of the named target, else of the local system that runs on `data`.

    Raises:
        CommandError: neither is there.
    """
    target = target or os.environ.get("REACH_TARGET")
    if target:
        return Reach(target, api_key=api_key)
    local = _local(data)
    return Reach(
        local.targets["intake"],
        api_key=api_key or os.environ.get("REACH_API_KEY") or (local.operator_key if operator else local.api_key),
        policy_target=local.targets["policy"],
        sandbox_target=local.targets["sandbox"],
    )


def operator_of_policy(target: str | None, api_key: str | None, data: Path) -> PolicyOperator:
    """Returns an operator's client of the named policy, else of the local system that runs on `data`.

    Raises:
        CommandError: neither is there.
    """
    target = target or os.environ.get("REACH_POLICY_TARGET") or os.environ.get("REACH_TARGET")
    if target:
        return PolicyOperator(target, api_key=api_key, policy_target=target)
    local = _local(data)
    return PolicyOperator(
        local.targets["policy"], api_key=api_key or os.environ.get("REACH_API_KEY") or local.operator_key
    )


def local_endpoints(data: Path) -> Endpoints | None:
    """Returns where the local system on `data` listens; None where none runs.

    Raises:
        CommandError: its file cannot be read.
    """
    try:
        return Endpoints.load(data)
    except (OSError, ValueError, TypeError) as error:
        raise CommandError("connection", f"{data} cannot be read: {error}", "start `reach up` again") from error


def _local(data: Path) -> Endpoints:
    """Returns where the local system on `data` listens.

    Raises:
        CommandError: none runs.
    """
    local = local_endpoints(data)
    if local is None:
        raise CommandError(
            "connection",
            f"no target is named and no local system runs on {data}",
            "start `reach up`, or set REACH_TARGET and REACH_API_KEY",
        )
    return local
