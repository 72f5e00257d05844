"""The composition root: the only module that knows all five services, and runs one of them.

`python -m services.main ROLE` is what `reach up` starts five times; `reach serve ROLE` is the same for operators.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from pydantic import ValidationError

from services.chassis.server import Endpoints, serve_until_signal
from services.chassis.settings import ChassisSettings
from services.chassis.startup import StartupError


@dataclass(frozen=True, slots=True)
class Role:
    """One service, imported only in the process that runs it.

    Attributes:
        name: what it is called everywhere.
        settings: ``module:class`` of its settings.
        opener: ``module:function`` that opens it.
    """

    name: str
    settings: str
    opener: str


# In the order in which they drain: nothing new comes in, then what is decided leaves, then the judge goes.
ROLES: tuple[Role, ...] = (
    Role("receipts", "services.receipts.settings:ReceiptsSettings", "services.receipts.app:open_receipts"),
    Role("intake", "services.intake.settings:IntakeSettings", "services.intake.app:open_intake"),
    Role("dispatcher", "services.dispatcher.settings:DispatcherSettings", "services.dispatcher.app:open_dispatcher"),
    Role("policy", "services.policy.settings:PolicySettings", "services.policy.app:open_policy"),
    Role("sandbox", "services.sandbox.settings:SandboxSettings", "services.sandbox.app:open_sandbox"),
)
ROLE_NAMES = tuple(role.name for role in ROLES)


class Report(TypedDict, total=False):
    """The one JSON line by which a role tells its parent that it serves, or why it does not.

    Attributes:
        grpc_port: where it serves gRPC.
        admin_port: where it serves /metrics.
        part: the part that could not be started; the ports are missing then.
        why: what happened.
        advice: what the user can do.
    """

    grpc_port: int
    admin_port: int
    part: str
    why: str
    advice: str


def serve(role_name: str, on_ready: Callable[[Endpoints], None] | None = None) -> None:
    """Runs one role until SIGTERM or SIGINT, with its settings from the environment.

    Args:
        role_name: which one.
        on_ready: is told where it serves. Where nobody is, the address must be set.

    Raises:
        StartupError: a part of it could not be started.
    """
    role = next(role for role in ROLES if role.name == role_name)
    read_settings: Callable[[], ChassisSettings] = _load(role.settings)
    try:
        settings = read_settings()
    except ValidationError as error:
        raise StartupError("settings", _first_fault(error), "correct the variable in the environment") from error
    _check_reachable(settings, told=on_ready is not None)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            ready = on_ready or (lambda _endpoints: None)
            runner.run(serve_until_signal(role.name, settings, _load(role.opener), ready))
    except BaseExceptionGroup as errors:
        # Task groups that a service has open wrap what fails beside them.
        if startup_errors := errors.subgroup(StartupError):
            raise _first(startup_errors) from errors
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one role as the child of a supervisor; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m services.main", description="Runs one of the five services.")
    parser.add_argument("role", choices=ROLE_NAMES)
    parser.add_argument("--report-fd", type=int, help="file descriptor that gets one JSON line: ports, or the failure")
    parser.add_argument(
        "--with-parent", action="store_true", help="drain when standard input ends, as it does when the parent dies"
    )
    options = parser.parse_args(arguments)
    report = functools.partial(_report, options.report_fd)
    if options.with_parent:
        threading.Thread(target=_follow_parent, daemon=True, name="parent").start()
    try:
        serve(options.role, lambda ready: report(Report(grpc_port=ready.grpc_port, admin_port=ready.admin_port)))
    except StartupError as error:
        why = str(error).removeprefix(f"{error.part}: ")
        report(Report(part=error.part, why=why, advice=error.advice))
        print(f"{options.role} did not start. {error.part}: {why}. {error.advice}.", file=sys.stderr)  # noqa: T201 - the answer of a command
        return 1
    return 0


def _report(descriptor: int | None, report: Report) -> None:
    if descriptor is not None:
        with os.fdopen(descriptor, "w") as pipe:
            json.dump(report, pipe)
            pipe.write("\n")


def _follow_parent() -> None:
    """Ends this process in order when its parent has gone, however the parent went."""
    # The bare descriptor: a buffered reader's lock, held by this thread, would spoil the interpreter's own end.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _check_reachable(settings: ChassisSettings, *, told: bool) -> None:
    """Checks that somebody can find this role, and may call it.

    Args:
        settings: its settings.
        told: whether somebody is told which free port it takes.

    Raises:
        StartupError: it would serve nobody.
    """
    if not told and "grpc_address" not in settings.model_fields_set:
        raise StartupError("gRPC server", "its address is not set", "set REACH_GRPC_ADDRESS to HOST:PORT")
    if settings.api_keys_file is None and not settings.service_key.get_secret_value():
        raise StartupError(
            "API keys",
            "there are none, so every call would be refused",
            "set REACH_API_KEYS_FILE, and REACH_SERVICE_KEY where the services call each other",
        )


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def _first(errors: BaseExceptionGroup[StartupError]) -> StartupError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_url=False)[0]
    name = "_".join(str(part) for part in fault["loc"])
    return f"REACH_{name.upper()}: {fault['msg']}"


if __name__ == "__main__":
    sys.exit(main())
