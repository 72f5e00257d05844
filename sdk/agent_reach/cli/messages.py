"""Commands about intents: submit, get, list, cancel, explain, watch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from agent_reach.client.requests import IntentFields
from agent_reach.client.sync import Reach
from agent_reach.client.watching import Watched
from agent_reach.v1 import reach_pb2

from . import words
from .connection import connects
from .explanation import print_explanation


@click.command()
@click.option("--user", help="The user to tell; either this or --address.")
@click.option("--address", help="A bare address: ada@example.com, +4179…, https://…, or CHANNEL:VALUE.")
@click.option("--scene", required=True, help="Why we write, for example order_shipped.")
@click.option("--template", help="The template; by default the one with the scene's name.")
@click.option(
    "--var", "variables", multiple=True, metavar="NAME=TEXT", help="A variable; NAME:=JSON for one that is no text."
)
@click.option("--vars", "variables_json", metavar="JSON", help="All variables as one JSON object.")
@click.option("--key", help="Makes the call repeatable: one key, one intent.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 to 9, larger first.")
@click.option("--expires-in", type=words.Duration(), help="How long the message is good for: 90s, 10m, 2h, 1d.")
@click.option("--channel", "channels", multiple=True, help="A wish for a channel; the best first.")
@click.option("--send-at", type=words.Moment(), help="Not before: 2030-03-08T08:00, in UTC unless it says.")
@click.option(
    "--send-at-local", help="Not before, by the recipient's clock: '08:00', 'monday 09:00', '2030-03-08 08:00'."
)
@words.as_json
@connects
def submit(
    reach: Reach,
    user: str | None,
    address: str | None,
    scene: str,
    template: str | None,
    variables: Sequence[str],
    variables_json: str | None,
    key: str | None,
    priority: int | None,
    expires_in: timedelta | None,
    channels: Sequence[str],
    send_at: datetime | None,
    send_at_local: str | None,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Has a person be told something."""
    if bool(user) == bool(address):
        raise click.UsageError("name either --user or --address")
    if send_at is not None and send_at_local:
        raise click.UsageError("name either --send-at or --send-at-local")
    fields: IntentFields = {"scene": scene, "variables": _variables(variables, variables_json), "channels": channels}
    if user:
        fields["user_id"] = user
    if address:
        fields["address"] = address
    if template:
        fields["template"] = template
    if key:
        fields["intent_key"] = key
    if priority is not None:
        fields["priority"] = priority
    if expires_in is not None:
        fields["expires_at"] = expires_in
    if send_at is not None:
        fields["send_at"] = send_at
    if send_at_local:
        fields["send_at_local"] = send_at_local
    submitted = reach.submit(**fields)
    if as_json:
        click.echo(json.dumps({"intent_id": submitted.intent_id, "duplicate": submitted.duplicate}))
        return
    note = "  (an earlier intent with the same key or content)" if submitted.duplicate else ""
    click.echo(f"{submitted.intent_id}{note}")
    click.echo(f"reach explain {submitted.intent_id}", err=True)


@click.command()
@click.argument("intent_id", metavar="ID")
@words.as_json
@connects
def explain(reach: Reach, intent_id: str, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Explains why a person did or did not get a message."""
    explanation = reach.explain(intent_id)
    if as_json:
        click.echo(words.json_text(explanation))
    else:
        print_explanation(Console(), explanation)


@click.command()
@click.argument("intent_id", metavar="ID")
@words.as_json
@connects
def get(reach: Reach, intent_id: str, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Shows an intent."""
    intent = reach.get_intent(intent_id)
    if as_json:
        click.echo(words.json_text(intent))
    else:
        _print(Console(), [intent])


@click.command("list")
@click.option("--user", default="", help="Only this user's.")
@click.option("--agent", default="", help="Only this agent's.")
@click.option("--scene", default="", help="Only this scene's.")
@click.option("--state", default="", help="Only those in this state, for example SENT.")
@click.option("--since", type=words.Duration(), help="Only those of the last 90s, 10m, 2h, 1d.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@words.as_json
@connects
def list_(
    reach: Reach,
    user: str,
    agent: str,
    scene: str,
    state: str,
    since: timedelta | None,
    limit: int,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Lists intents, newest first."""
    found = reach.list_intents(
        user_id=user,
        agent=agent,
        scene=scene,
        state=state,
        created_from=datetime.now(UTC) - since if since is not None else None,
        page_size=min(limit, 500),
    )
    intents = list(itertools.islice(found, limit))
    if as_json:
        for intent in intents:
            click.echo(words.json_text(intent, indent=None))
    elif intents:
        _print(Console(), intents)
    else:
        click.echo("no such intents", err=True)


@click.command()
@click.argument("intent_id", metavar="ID")
@connects
def cancel(reach: Reach, intent_id: str) -> None:
    """Cancels a message that has not left yet."""
    _print(Console(), [reach.cancel(intent_id)])


@click.command()
@click.option("--intent", "intent_ids", multiple=True, metavar="ID", help="Only this intent's; may be repeated.")
@click.option("--cursor", default="", help="Go on after this cursor.")
@click.option("--from-start", is_flag=True, help="Begin with the oldest outcome that is kept.")
@words.as_json
@connects
def watch(
    reach: Reach,
    intent_ids: Sequence[str],
    cursor: str,
    from_start: bool,  # noqa: FBT001 - click passes options by name
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Shows what becomes of messages, as it happens. Ctrl-C ends it."""
    from_now = not (cursor or from_start or intent_ids)
    with suppress(KeyboardInterrupt):
        for watched in reach.watch_outcomes(cursor=cursor, intent_ids=intent_ids, from_now=from_now):
            _print_outcome(watched, as_json=as_json)


commands = (submit, explain, get, list_, cancel, watch)


def _print_outcome(watched: Watched, *, as_json: bool) -> None:
    outcome = watched.outcome
    if as_json:
        click.echo(json.dumps({"cursor": watched.cursor, "outcome": json.loads(words.json_text(outcome))}))
        return
    name = words.state(outcome.state)
    line = Text.assemble(
        (words.moment(outcome.occurred_at) + "  ", "dim"),
        f"{outcome.intent_id}  ",
        (f"{name:<10}", words.STATE_STYLES.get(name, "bold")),
        f" {words.printable(outcome.scene)} to {words.printable(outcome.user_id)}",
        (f"  {words.channel(outcome.channel)} {outcome.reason}".rstrip(), "dim"),
    )
    Console().print(line, soft_wrap=True, highlight=False)


def _variables(pairs: Sequence[str], whole: str | None) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    if whole:
        variables = _parsed("--vars", whole)
        if not isinstance(variables, dict):
            raise click.BadParameter("is not a JSON object", param_hint="--vars")
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.removesuffix(":"):
            raise click.BadParameter(f"{pair!r} is not NAME=TEXT or NAME:=JSON", param_hint="--var")
        if name.endswith(":"):
            variables[name[:-1]] = _parsed("--var", text)
        else:
            variables[name] = text
    return variables


def _parsed(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint=option) from error


def _print(console: Console, intents: Sequence[reach_pb2.Intent]) -> None:
    for intent in intents:
        state = words.state(intent.state)
        to = words.recipient(intent.spec.user_id, intent.spec.address)
        line = Text.assemble(
            f"{intent.intent_id}  ",
            (words.moment(intent.created_at) + "  ", "dim"),
            (f"{state:<10}", words.STATE_STYLES.get(state, "")),
            f" {words.printable(intent.spec.scene)} to {words.printable(to)}",
            (f"  {intent.state_reason}" if intent.state_reason else "", "dim"),
        )
        console.print(line, soft_wrap=True, highlight=False)
