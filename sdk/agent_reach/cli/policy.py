"""`reach policy …`: which policy is in force, what it would do, and what another one would have done."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from agent_reach.client.operator import PolicyOperator
from agent_reach.v1 import message_pb2, policy_admin_pb2

from . import words
from .changes import Changes
from .connection import operates
from .decisions import VERSION_DIGITS, print_decision
from .failures import CommandError
from .grid import print_grid
from .tables import write_rows

_MAX_FILE_BYTES = 1024 * 1024


@click.group()
def policy() -> None:
    """Shows and tries the policy that decides who may be told what, and when."""


@policy.command()
@words.as_json
@operates
def show(operator: PolicyOperator, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Shows which version is in force in which process."""
    processes = operator.show()
    if as_json:
        for process in processes:
            click.echo(words.json_text(process, indent=None))
        return
    rows = [
        (
            process.process,
            process.role,
            process.policy_version[:VERSION_DIGITS],
            str(process.revision),
            words.moment(process.loaded_at),
        )
        for process in processes
    ]
    console = Console(highlight=False)
    print_grid(console, ("process", "role", "hash", "version", "loaded"), rows)
    for process in processes:
        if process.error:
            fault = f"{process.process}: the files as they are now are refused: {words.printable(process.error)}"
            console.print(Text(fault, "bold red"), soft_wrap=True)
    hashes = {process.policy_version for process in processes}
    if len(hashes) > 1:
        console.print(f"{len(hashes)} policies are in force at once.", style="yellow")


@policy.command()
@click.option("--user", default="", help="The user; either this or --address.")
@click.option("--address", default="", help="A bare address: ada@example.com, +4179…, https://…, or CHANNEL:VALUE.")
@click.option("--scene", required=True, help="Why it would be written, for example order_shipped.")
@click.option("--template", default="", help="The template; by default the scene's.")
@click.option("--channel", "channels", multiple=True, help="A wish for a channel; the best first.")
@click.option("--at", type=words.Moment(), help="When it would be judged: 2026-03-08T23:30, in UTC unless it says.")
@click.option("--expires-at", type=words.Moment(), help="When it would be worthless; by default the scene's.")
@click.option("--send-at", type=words.Moment(), help="Not before: 2030-03-08T08:00, in UTC unless it says.")
@click.option(
    "--send-at-local",
    default="",
    help="Not before, by the recipient's clock: '08:00', 'monday 09:00', '2030-03-08 08:00'.",
)
@words.as_json
@operates
def ask(
    operator: PolicyOperator,
    user: str,
    address: str,
    scene: str,
    template: str,
    channels: Sequence[str],
    at: datetime | None,
    expires_at: datetime | None,
    send_at: datetime | None,
    send_at_local: str,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Answers what would happen to a message. Nothing is sent or counted."""
    if bool(user) == bool(address):
        raise click.UsageError("name either --user or --address")
    if send_at is not None and send_at_local:
        raise click.UsageError("name either --send-at or --send-at-local")
    decision = operator.ask(
        scene,
        user_id=user,
        address=address,
        template=template,
        channels=channels,
        at=at,
        expires_at=expires_at,
        send_at=send_at,
        send_at_local=send_at_local,
    )
    if as_json:
        click.echo(words.json_text(decision))
    else:
        print_decision(Console(), decision)


@policy.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--since", type=words.Duration(), default="7d", show_default=True, help="How far back, at most 31d.")
@click.option("--scene", default="", help="Only messages of this scene.")
@click.option("--csv", "csv_path", metavar="FILE", help="Write all changes here as CSV; - prints them.")
@click.option("--rows", type=click.IntRange(0), default=20, show_default=True, help="How many changes to print.")
@operates
def simulate(
    operator: PolicyOperator, file: Path, since: timedelta, scene: str, csv_path: str | None, rows: int
) -> None:
    """Judges what was sent by another policies.yaml, and says whose decision would change. Nothing is sent."""
    content = _read(file)
    changes = Changes(rows)
    with ExitStack() as stack:
        writer = None if csv_path is None else stack.enter_context(write_rows(csv_path, "csv", Changes.COLUMNS))
        status = stack.enter_context(Console(stderr=True).status("replaying"))
        for response in operator.simulate(content, since=datetime.now(UTC) - since, scene=scene):
            changes.add(response.changes)
            changes.replayed, changes.changed = response.replayed, response.changed
            status.update(f"{response.replayed:,} messages replayed, {response.changed:,} decided otherwise")
            if writer is not None:
                for change in response.changes:
                    writer.write(changes.row(change))
    # Where the changes themselves go to standard output, the sums must not stand among them.
    changes.print(Console(stderr=csv_path == "-"))


@policy.command()
@click.option("--scene", default="", help="Only messages of this scene.")
@click.option("--since", type=words.Duration(), help="Only those of the last 90s, 10m, 2h, 1d.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@words.as_json
@operates
def shadow(
    operator: PolicyOperator,
    scene: str,
    since: timedelta | None,
    limit: int,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Lists messages about which the policy in shadow decided otherwise, newest first."""
    found = operator.shadow_decisions(
        scene=scene, since=None if since is None else datetime.now(UTC) - since, page_size=min(limit, 500)
    )
    listed = list(itertools.islice(found, limit))
    if as_json:
        for change in listed:
            click.echo(words.json_text(change, indent=None))
        return
    if not listed:
        click.echo("No decision of a policy in shadow differs.")
        return
    changes = Changes(limit)
    changes.add(listed)
    changes.print_rows(Console())


@policy.command()
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@click.option("--clear", is_flag=True, help="Have nothing count that was sent so far; needs --reason.")
@click.option("--reason", default="", help="Why, for the audit.")
@words.as_json
@operates
def counters(
    operator: PolicyOperator,
    users: Sequence[str],
    clear: bool,  # noqa: FBT001 - click passes options by name
    reason: str,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Shows which messages count on the caps of users, or has them count no more.

    A bare address is a user of its own: email:ada@example.com.
    """
    if clear != bool(reason):
        raise click.UsageError("--clear and --reason go together")
    if clear:
        cleared = {user: operator.clear_counters(user, reason) for user in users}
        if as_json:
            click.echo(json.dumps(cleared, ensure_ascii=False))
        else:
            for user, count in cleared.items():
                click.echo(f"{words.printable(user)}: {count} messages count no more.")
        return
    messages = operator.counters(users)
    if as_json:
        for message in messages:
            click.echo(words.json_text(message, indent=None))
        return
    _print_counted(Console(), users, messages)


def _read(file: Path) -> bytes:
    content = file.read_bytes()
    if len(content) > _MAX_FILE_BYTES:
        raise CommandError("simulation", f"{file} has {len(content):,} bytes", "give a policies.yaml of at most 1 MiB")
    return content


def _print_counted(
    console: Console, users: Iterable[str], messages: Sequence[policy_admin_pb2.CountedMessage]
) -> None:
    rows = [
        (
            f"{message.intent_id} (hop {message.hop})" if message.hop else message.intent_id,
            message.user_id,
            message.cap_date,
            words.moment(message.counted_at),
            words.channel(message.channel),
            words.words(message_pb2.Category.Name(message.category), "CATEGORY_"),
            "reserved, has not left yet" if message.pending else "",
        )
        for message in messages
    ]
    if rows:
        print_grid(console, ("intent", "user", "counts on", "since", "channel", "category", "note"), rows)
    counted = {message.user_id for message in messages}
    for user in users:
        if user not in counted:
            console.print(f"Nothing counts on the caps of {words.printable(user)}.", highlight=False, markup=False)
