"""`reach status`: which services answer, and what they have done."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.text import Text

from agent_reach.v1 import policy_admin_pb2

from . import words
from .connection import connect, data_option, local_endpoints, operator_of_policy
from .decisions import VERSION_DIGITS
from .failures import CommandError
from .grid import print_grid

_DEADLINE_SECONDS = 3.0
_COUNTED = 500
_GOOD = "SERVING"


@click.command()
@click.option("--target", help="gRPC target of intake. [env: REACH_TARGET; else a running `reach up`]")
@click.option("--api-key", help="API key. [env: REACH_API_KEY; else that of a running `reach up`]")
@data_option
def status(target: str | None, api_key: str | None, data: Path) -> None:
    """Says which services answer, how many of the newest intents are in which state, and which policy is in force.

    Exits with 1 where a service does not answer, or a local system refuses its configuration.
    """
    console = Console(highlight=False)
    target = target or os.environ.get("REACH_TARGET")
    local = None if target else local_endpoints(data)
    if not target and local is None:
        raise CommandError(
            "status", f"no local system runs on {data}", "start `reach up`, or set REACH_TARGET and REACH_API_KEY"
        )
    health = _print_health(console, local.targets if local is not None else {"intake": target or ""})
    if silent := [f"{role} at {where}: {answer}" for role, (where, answer) in health.items() if answer != _GOOD]:
        raise CommandError(
            "status",
            f"not every service answers ({'; '.join(silent)})",
            f"read the logs below {data / 'logs'}"
            if local
            else "check --target (REACH_TARGET), and that it runs there",
        )
    with connect(target, api_key, data) as reach:
        intents = itertools.islice(reach.list_intents(page_size=_COUNTED), _COUNTED)
        counts = Counter(words.state(intent.state) for intent in intents)
    shown = ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "none yet"
    console.print(f"Newest {_COUNTED} intents: {shown}")
    if local is not None:
        with operator_of_policy(local.targets["policy"], local.operator_key, data) as operator:
            _print_configuration(console, operator.show())


def _print_health(console: Console, targets: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
    """Prints how each service is; returns its target and its answer by role."""
    health = {role: (target, _health(target)) for role, target in targets.items()}
    rows = [
        (role, target, Text(answer, "green" if answer == _GOOD else "bold red"))
        for role, (target, answer) in health.items()
    ]
    print_grid(console, ("service", "gRPC", "health"), rows)
    return health


def _print_configuration(console: Console, processes: Sequence[policy_admin_pb2.ProcessPolicy]) -> None:
    """Prints which configuration is in force.

    Raises:
        CommandError: the files as they are now are refused.
    """
    known = {(process.revision, process.policy_version[:VERSION_DIGITS]) for process in processes}
    shown = "; ".join(f"version {version}, hash {digest}" for version, digest in sorted(known))
    console.print(f"Configuration: {shown or 'not told yet'}")
    if faults := {process.error for process in processes if process.error}:
        raise CommandError(
            "configuration",
            f"the files as they are now are refused; what is in force stays so\n{min(faults)}",
            "mend the named lines; `reach policy check` says when all is good",
        )


def _health(target: str) -> str:
    with grpc.insecure_channel(target) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_DEADLINE_SECONDS
            )
        except grpc.RpcError as error:
            return str(error.code().name) if isinstance(error, grpc.Call) else "UNKNOWN"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
