"""`reach status`: which services answer, and what they have done."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.table import Table

from . import words
from .connection import connect, data_option, local_endpoints
from .failures import CommandError

_DEADLINE_SECONDS = 3.0
_COUNTED = 500


@click.command()
@click.option("--target", help="gRPC target of intake. [env: REACH_TARGET; else a running `reach up`]")
@click.option("--api-key", help="API key. [env: REACH_API_KEY; else that of a running `reach up`]")
@data_option
def status(target: str | None, api_key: str | None, data: Path) -> None:
    """Says which services answer, and how many of the newest intents are in which state."""
    console = Console(highlight=False)
    target = target or os.environ.get("REACH_TARGET")
    local = None if target else local_endpoints(data)
    if not target and local is None:
        raise CommandError(
            "status", f"no local system runs on {data}", "start `reach up`, or set REACH_TARGET and REACH_API_KEY"
        )
    healthy = _print_health(console, local.targets if local is not None else {"intake": target or ""})
    if healthy:
        with connect(target, api_key, data) as reach:
            intents = itertools.islice(reach.list_intents(page_size=_COUNTED), _COUNTED)
            counts = Counter(words.state(intent.state) for intent in intents)
        shown = ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "none yet"
        console.print(f"Newest {_COUNTED} intents: {shown}")
    else:
        raise CommandError(
            "status",
            "not every service answers",
            f"read the logs below {data / 'logs'}" if local else "is it running?",
        )


def _print_health(console: Console, targets: Mapping[str, str]) -> bool:
    table = Table(box=None, header_style="bold")
    for name in ("service", "gRPC", "health"):
        table.add_column(name)
    healthy = True
    for role, target in targets.items():
        answer = _health(target)
        good = answer == "SERVING"
        healthy &= good
        table.add_row(role, target, f"[{'green' if good else 'bold red'}]{answer}")
    console.print(table)
    return healthy


def _health(target: str) -> str:
    with grpc.insecure_channel(target) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_DEADLINE_SECONDS
            )
        except grpc.RpcError as error:
            return str(error.code().name) if isinstance(error, grpc.Call) else "UNKNOWN"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
