"""`reach profiles …`: what is known of users."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click
from rich.console import Console

from agent_reach.client import people, requests
from agent_reach.client.sync import Reach
from agent_reach.v1 import message_pb2, profile_pb2

from . import outfile, words
from .connection import connects_as_operator
from .failures import CommandError
from .imports import SOME_REFUSED, Importer, import_file
from .tables import FORMATS, format_of, write_rows

_CHANNELS = ("email", "sms", "webhook", "inbox", "chat")
_COLUMNS = ("user_id", *_CHANNELS, "locale", "time_zone")
_ADDRESS = re.compile(r"addresses\[(\d+)\]")

_format = click.option("--format", "kind", type=click.Choice(FORMATS), help="By default as the file's name says.")


@click.group()
def profiles() -> None:
    """Keeps users' addresses, languages and time zones."""


@profiles.command()
@click.argument("user")
@words.as_json
@connects_as_operator
def show(reach: Reach, user: str, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Shows what is known of a user."""
    found = reach.get_profiles([user])
    if not found:
        raise CommandError("profile", "there is none of this user", "check the user id, and the API key's tenant")
    (profile,) = found
    if as_json:
        click.echo(words.json_text(profile))
        return
    console = Console(highlight=False)
    for name, value in _values(profile).items():
        if value:
            console.print(f"{name:<10} {words.printable(value)}", soft_wrap=True, markup=False)


@profiles.command("import")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@_format
@click.option("--from-line", type=click.IntRange(1), default=1, help="Go on from this line of an earlier try.")
@click.option("--rejects", type=click.Path(dir_okay=False), metavar="FILE", help="Where refused lines go.")
@connects_as_operator
def import_(reach: Reach, path: str, kind: str | None, from_line: int, rejects: str | None) -> None:
    """Creates or replaces the profiles of a file (- is standard input), CSV with a header or JSON lines.

    Columns: user_id, email, sms, webhook, inbox, chat, locale, time_zone. A line that is refused stops no other; the
    exit code is then 3. Of two lines of one user the later one counts. Importing a file again is harmless.
    """
    tally = import_file(_importer(reach), path, kind, from_line, rejects)
    click.echo(f"{tally.stored:,} stored, {tally.refused:,} refused")
    if tally.refused:
        click.get_current_context().exit(SOME_REFUSED)


@profiles.command()
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@_format
@outfile.force_option
@connects_as_operator
def export(reach: Reach, path: str, kind: str | None, force: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Writes all profiles to a file that `import` reads, by user."""
    outfile.check_free(path, force=force)
    count = 0
    with write_rows(path, format_of(path, kind), _COLUMNS) as writer:
        for profile in reach.list_profiles():
            writer.write(_values(profile))
            count += 1
    click.echo(f"{count:,} written", err=True)


def _importer(reach: Reach) -> Importer[profile_pb2.Profile]:
    def send(batch: Sequence[profile_pb2.Profile]) -> int:
        reach.upsert_profiles(batch)
        return 0

    return Importer(
        columns=_COLUMNS,
        ignored=(),
        verbatim=("user_id",),
        build=_build,
        key=lambda profile: profile.user_id,
        send=send,
        field="profiles",
        column=_column,
    )


def _build(values: Mapping[str, str]) -> profile_pb2.Profile:
    addresses = [
        requests.build(message_pb2.Address, channel=requests.channel(name), value=values[name])
        for name in _CHANNELS
        if values.get(name)
    ]
    return people.profile(
        values.get("user_id", ""),
        addresses=addresses,
        locale=values.get("locale", ""),
        time_zone=values.get("time_zone", ""),
    )


def _column(profile: profile_pb2.Profile, field: str) -> str:
    found = _ADDRESS.match(field)
    return words.channel(profile.addresses[int(found[1])].channel) if found else field


def _values(profile: profile_pb2.Profile) -> dict[str, str]:
    values = {words.channel(address.channel): address.value for address in profile.addresses}
    values |= {"user_id": profile.user_id, "locale": profile.locale, "time_zone": profile.time_zone}
    return {column: values.get(column, "") for column in _COLUMNS}
