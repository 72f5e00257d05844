"""`reach suppressions …`: who must not be written to."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click
from rich.console import Console
from rich.text import Text

from agent_reach.client import people
from agent_reach.client.sync import Reach
from agent_reach.v1 import message_pb2, suppression_pb2

from . import outfile, words
from .connection import connects_as_operator
from .imports import SOME_REFUSED, Importer, import_file
from .tables import FORMATS, format_of, write_rows

SOURCES = ("unsubscribe", "complaint", "bounce", "operator", "import")
_COLUMNS = ("user_id", "address", "channel", "category", "source", "note")
_AUDIT = ("suppression_id", "created_by", "created_at", "lifted_by", "lifted_at")
_MAX_IDS = 1_000
_CATEGORIES = tuple(words.words(name, "CATEGORY_") for name, number in message_pb2.Category.items() if number)

_user = click.option("--user", default="", help="The user.")
_address = click.option("--address", default="", help="An address: ada@example.com, +4179…, or CHANNEL:VALUE.")
_channel = click.option("--channel", default="", help="One channel only, for example sms.")
_category = click.option("--category", default="", help="One category only, for example marketing.")
_format = click.option("--format", "kind", type=click.Choice(FORMATS), help="By default as the file's name says.")
_of_source = click.option("--source", default="", type=click.Choice(["", *SOURCES]), help="Only those from there.")
_include_lifted = click.option("--include-lifted", is_flag=True, help="The lifted ones too.")


@click.group()
def suppressions() -> None:
    """Says who must not be written to, and keeps who said so."""


@suppressions.command()
@_user
@_address
@_channel
@_category
@click.option("--source", default="operator", show_default=True, type=click.Choice(SOURCES), help="Where it is from.")
@click.option("--note", default="", help="Why, in words.")
@connects_as_operator
def add(reach: Reach, user: str, address: str, channel: str, category: str, source: str, note: str) -> None:
    """Sees to it that a user, or an address, is not written to any more."""
    response = reach.suppress(
        user_id=user, address=address, channel=channel, category=category, source=source, note=note
    )
    _print(response.suppressions)
    tell_in_flight(response.in_flight)


@suppressions.command("list")
@_user
@_address
@_of_source
@_include_lifted
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@words.as_json
@connects_as_operator
def list_(
    reach: Reach,
    user: str,
    address: str,
    source: str,
    include_lifted: bool,  # noqa: FBT001 - click passes options by name
    limit: int,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Lists suppressions, newest first."""
    found = itertools.islice(
        reach.list_suppressions(
            user_id=user,
            address=address,
            source=source,
            include_lifted=include_lifted,
            page_size=min(limit, _MAX_IDS),
        ),
        limit,
    )
    if as_json:
        for suppression in found:
            click.echo(words.json_text(suppression, indent=None))
    elif not _print(found):
        click.echo("no such suppressions", err=True)


@suppressions.command()
@_user
@_address
@_channel
@_category
@words.as_json
@connects_as_operator
def check(reach: Reach, user: str, address: str, channel: str, category: str, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Says whether a suppression or an opt-out would withhold a message, and which; by category where none is named.

    Whether the scene needs an opting in, and all other gates: `reach policy ask`.
    """
    categories = [category] if category else list(_CATEGORIES)
    answers = reach.check_suppressions(
        people.suppression_query(user_id=user, address=address, channel=channel, category=each) for each in categories
    )
    if as_json:
        for each, answer in zip(categories, answers, strict=True):
            click.echo(json.dumps({"category": each, **json.loads(words.json_text(answer))}, ensure_ascii=False))
        return
    for each, answer in zip(categories, answers, strict=True):
        told = f"withheld: {answer.reason}" if answer.reason else "no suppression or opt-out withholds it"
        click.echo(told if category else f"{each:<13}{told}")
        if answer.HasField("suppression"):
            _print([answer.suppression])


@suppressions.command()
@click.argument("suppression_ids", metavar="ID...", nargs=-1, required=True)
@connects_as_operator
def lift(reach: Reach, suppression_ids: Sequence[str]) -> None:
    """Lifts suppressions by their ids; `-` reads ids from standard input, one a line. Who did it stays on record."""
    lifted = sum(reach.lift(ids) for ids in _chunks(_read_ids(suppression_ids)))
    click.echo(f"{lifted} lifted")


@suppressions.command("import")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@_format
@click.option(
    "--source", default="import", show_default=True, type=click.Choice(SOURCES), help="Of lines without one."
)
@click.option("--from-line", type=click.IntRange(1), default=1, help="Go on from this line of an earlier try.")
@click.option("--rejects", type=click.Path(dir_okay=False), metavar="FILE", help="Where refused lines go.")
@connects_as_operator
def import_(reach: Reach, path: str, kind: str | None, source: str, from_line: int, rejects: str | None) -> None:
    """Stores the suppressions of a file (- is standard input), CSV with a header or JSON lines.

    Columns: user_id or address (email:ada@example.com), and where wanted channel, category, source, note. A line that
    is refused stops no other; the exit code is then 3. Importing a file again is harmless.
    """
    tally = import_file(_importer(reach, source), path, kind, from_line, rejects)
    left_out = f", {tally.left_out:,} left out (lifted)" if tally.left_out else ""
    click.echo(f"{tally.stored:,} stand, {tally.refused:,} refused{left_out}")
    tell_in_flight(tally.in_flight)
    if tally.refused:
        click.get_current_context().exit(SOME_REFUSED)


@suppressions.command()
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@_format
@_of_source
@_include_lifted
@outfile.force_option
@connects_as_operator
def export(
    reach: Reach,
    path: str,
    kind: str | None,
    source: str,
    include_lifted: bool,  # noqa: FBT001 - click passes options by name
    force: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Writes all suppressions to a file that `import` reads; newest first."""
    outfile.check_free(path, force=force)
    count = 0
    with write_rows(path, format_of(path, kind), (*_COLUMNS, *_AUDIT)) as writer:
        for suppression in reach.list_suppressions(source=source, include_lifted=include_lifted, page_size=1_000):
            writer.write(_values(suppression))
            count += 1
    click.echo(f"{count:,} written", err=True)


def tell_in_flight(in_flight: int) -> None:
    """Says what could not be waited for."""
    if in_flight:
        click.echo(f"{in_flight} messages were just being handed over and may still arrive", err=True)


def _importer(reach: Reach, source: str) -> Importer[suppression_pb2.Suppression]:
    def build(values: Mapping[str, str]) -> suppression_pb2.Suppression | None:
        if values.get("lifted_at"):
            return None  # an export may hold lifted ones: they must not stand again by it
        return people.suppression(
            user_id=values.get("user_id", ""),
            address=values.get("address", ""),
            channel=values.get("channel", ""),
            category=values.get("category", ""),
            source=values.get("source") or source,
            note=values.get("note", ""),
        )

    return Importer(
        columns=(*_COLUMNS, "lifted_at"),
        ignored=_AUDIT,
        verbatim=("user_id", "note"),
        build=build,
        key=lambda _: "",
        send=lambda batch: reach.suppress_many(batch).in_flight,
        field="suppressions",
        column=lambda _, field: field.partition(".")[0] or "line",
    )


def _values(suppression: suppression_pb2.Suppression) -> dict[str, str]:
    return {
        "user_id": suppression.user_id,
        "address": words.address(suppression.address),
        "channel": words.channel(suppression.channel),
        "category": _category_name(suppression),
        "source": _source_name(suppression),
        "note": suppression.note,
        "suppression_id": suppression.suppression_id,
        "created_by": suppression.created_by,
        "created_at": words.iso(suppression.created_at),
        "lifted_by": suppression.lifted_by,
        "lifted_at": words.iso(suppression.lifted_at),
    }


def _print(found: Iterable[suppression_pb2.Suppression]) -> int:
    """Prints suppressions; returns how many."""
    console, count = Console(highlight=False), 0
    for suppression in found:
        count += 1
        limits = [words.channel(suppression.channel), _category_name(suppression)]
        line = Text.assemble(
            f"{suppression.suppression_id}  ",
            (words.moment(suppression.created_at) + "  ", "dim"),
            words.printable(words.recipient(suppression.user_id, suppression.address)),
            (f"  only {' '.join(filter(None, limits))}" if any(limits) else "", "cyan"),
            (f"  {_source_name(suppression)} by {words.printable(suppression.created_by)}", "dim"),
            (f"  {words.printable(suppression.note)}" if suppression.note else "", "italic"),
        )
        if suppression.lifted_by:
            line.append(
                f"  lifted {words.moment(suppression.lifted_at)} by {words.printable(suppression.lifted_by)}", "yellow"
            )
        console.print(line, soft_wrap=True)
    return count


def _category_name(suppression: suppression_pb2.Suppression) -> str:
    return words.words(message_pb2.Category.Name(suppression.category), "CATEGORY_") if suppression.category else ""


def _source_name(suppression: suppression_pb2.Suppression) -> str:
    return words.words(suppression_pb2.SuppressionSource.Name(suppression.source), "SUPPRESSION_SOURCE_")


def _read_ids(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if argument == "-":
            yield from filter(None, map(str.strip, sys.stdin))
        else:
            yield argument


def _chunks(ids: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(itertools.islice(ids, _MAX_IDS)):
        yield chunk
