"""`reach preferences …`: what users want to hear about, and where."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.console import Console
from rich.text import Text

from agent_reach.client import people
from agent_reach.client.sync import Reach
from agent_reach.v1 import message_pb2, preference_pb2

from . import words
from .connection import connects_as_operator
from .suppressions import tell_in_flight

_CHOICES = {"opt-in": True, "opt-out": False, "none": None}
_SHOWN = {
    preference_pb2.CHOICE_OPT_IN: ("opted in", "green"),
    preference_pb2.CHOICE_OPT_OUT: ("opted out", "yellow"),
    preference_pb2.CHOICE_NONE: ("no choice", "dim"),
}


@click.group()
def preferences() -> None:
    """Keeps what users chose to hear about. Opting in never lifts a suppression."""


@preferences.command("set")
@click.argument("user")
@click.argument("choice", type=click.Choice(list(_CHOICES)))
@click.option("--category", default="", help="One category only, for example marketing.")
@click.option("--channel", default="", help="One channel only, for example sms.")
@connects_as_operator
def set_(reach: Reach, user: str, choice: str, category: str, channel: str) -> None:
    """Stores what a user chose; `none` takes an earlier choice back. The narrowest choice counts."""
    preference = people.preference(user, opt_in=_CHOICES[choice], category=category, channel=channel)
    response = reach.set_preferences([preference])
    _print(response.preferences)
    tell_in_flight(response.in_flight)


@preferences.command()
@click.argument("user")
@words.as_json
@connects_as_operator
def show(reach: Reach, user: str, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Shows what a user chose."""
    found = reach.get_preferences([user])
    if as_json:
        for preference in found:
            click.echo(words.json_text(preference, indent=None))
    elif found:
        _print(found)
    else:
        click.echo("no choice is stored")


def _print(found: Iterable[preference_pb2.Preference]) -> None:
    console = Console(highlight=False)
    for preference in found:
        category = words.words(message_pb2.Category.Name(preference.category), "CATEGORY_")
        limits = (category if preference.category else "every category", words.channel(preference.channel))
        line = Text.assemble(
            _SHOWN[preference.choice],
            f"  {limits[0]}, {limits[1] or 'every channel'}",
            (f"  {words.moment(preference.updated_at)} by {words.printable(preference.updated_by)}", "dim"),
        )
        console.print(line, soft_wrap=True)
