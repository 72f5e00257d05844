"""Imports: rows of a file become batches of requests, a few of them under way at once; bad rows stop no good ones."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import click
from google.protobuf.message import Message
from rich.console import Console
from rich.text import Text

from agent_reach.client.errors import InvalidArgumentError, ReachError
from agent_reach.client.resume import Patience

from . import words
from .failures import CommandError, describe
from .tables import NOTES, Row, RowWriter, format_of, read_rows, write_rows

# Exit code of a command that left rows out; those that could be stored are.
SOME_REFUSED = 3
_MAX_BATCH_ROWS = 1_000
_MAX_BATCH_BYTES = 1024 * 1024
_UNDER_WAY = 4
_PATIENCE_SECONDS = 60.0
_SHOWN_REFUSALS = 20
_TELL_SECONDS = 0.2
_TELL_LOG_SECONDS = 10.0

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class Importer(Generic[MessageT]):
    """How one kind of record is imported.

    Attributes:
        columns: the columns of its files.
        ignored: columns that an export writes and that mean nothing here.
        verbatim: columns of which blanks at the ends are a part.
        build: makes the message of a row; None leaves the row out. Raises InvalidArgumentError.
        key: whose record it is, where a later one replaces an earlier one: never are both under way together. Empty
            where their order does not matter.
        send: stores a batch; returns how many messages were being handed over. Repeating it is harmless.
        field: name of the request's list, by which the service names the rows at fault.
        column: tells the column of a field at fault, for example ``address.value`` of a message.
    """

    columns: Sequence[str]
    ignored: Sequence[str]
    verbatim: Sequence[str]
    build: Callable[[Mapping[str, str]], MessageT | None]
    key: Callable[[MessageT], str]
    send: Callable[[Sequence[MessageT]], int]
    field: str
    column: Callable[[MessageT, str], str]


@dataclass(slots=True)
class Tally:
    """What became of the rows so far."""

    stored: int = 0
    left_out: int = 0
    refused: int = 0
    in_flight: int = 0
    line: int = 0


@dataclass(slots=True)
class _Batch(Generic[MessageT]):
    """Rows that are stored together, and those between them that were refused here: both are told in their order."""

    first_line: int
    rows: list[Row] = field(default_factory=list)
    messages: list[MessageT] = field(default_factory=list)
    refused: list[tuple[Row, str]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    size: int = 0

    def fits(self, key: str, size: int) -> bool:
        return (
            key not in self.keys
            and len(self.rows) + len(self.refused) < _MAX_BATCH_ROWS
            and self.size + size <= _MAX_BATCH_BYTES
        )

    def add(self, row: Row, message: MessageT, key: str, size: int) -> None:
        self.rows.append(row)
        self.messages.append(message)
        self.size += size
        if key:
            self.keys.add(key)


@dataclass(frozen=True, slots=True)
class _Sent:
    """What became of a batch: how many rows are stored, and why the others are not."""

    stored: int
    in_flight: int
    refused: Sequence[tuple[Row, str]]


def import_file(
    importer: Importer[MessageT], path: str, kind: str | None, from_line: int, rejects: str | None
) -> Tally:
    """Imports a file, tells on standard error how far it is, and says what was refused.

    Args:
        importer: the kind of record.
        path: the file; `-` is standard input.
        kind: its format; by its name when None.
        from_line: the first line that counts.
        rejects: where refused rows go, with their line, the reason, and what stands there where no values could be
            read; None shows the first few only.

    Returns:
        What became of the rows.

    Raises:
        CommandError: it could not go on; the line from which it can be taken up again is named.
    """
    kind = format_of(path, kind)
    with ExitStack() as stack:
        file = stack.enter_context(click.open_file(path, "rb"))
        writer = (
            stack.enter_context(write_rows(rejects, format_of(rejects, None), (*importer.columns, *NOTES)))
            if rejects
            else None
        )
        refusals = _Refusals(writer)
        rows = stack.enter_context(
            closing(read_rows(file, kind, importer.columns, importer.ignored, importer.verbatim))
        )
        wanted = (row for row in rows if row.line >= from_line)
        tally = Tally()
        broken: CommandError | None = None
        with _telling(tally) as tell:
            try:
                _run(importer, wanted, tally, refusals, tell)
            except CommandError as error:
                broken = error  # what was refused before is kept
    refusals.tell_rest(rejects)
    if broken is not None:
        raise broken
    return tally


def _run(
    importer: Importer[MessageT], rows: Iterable[Row], tally: Tally, refusals: _Refusals, tell: Callable[[], None]
) -> None:
    under_way: deque[tuple[_Batch[MessageT], Future[_Sent]]] = deque()

    def settle() -> None:
        """Waits for the oldest batch. Results are taken in the order of the file."""
        batch, future = under_way[0]
        try:
            sent = future.result()
        except ReachError as error:
            failure = describe(error)
            why = failure.why if failure else str(error)
            raise CommandError("import", f"it stopped: {why}", _go_on(batch.first_line)) from error
        under_way.popleft()
        tally.stored += sent.stored
        tally.in_flight += sent.in_flight
        for row, reason in sent.refused:
            tally.refused += 1
            refusals.add(row, reason)
        tell()

    with ThreadPoolExecutor(_UNDER_WAY) as pool:

        def start(batch: _Batch[MessageT]) -> None:
            while len(under_way) >= _UNDER_WAY or any(other.keys & batch.keys for other, _ in under_way):
                settle()
            under_way.append((batch, pool.submit(_send, importer, batch)))

        batch = _Batch[MessageT](1)
        try:
            for row in rows:
                tally.line = row.line
                tell()
                fault, message = row.fault, None
                if not fault:
                    try:
                        message = importer.build(row.values)
                    except InvalidArgumentError as error:
                        fault = _reasons(error)
                if message is None and not fault:
                    tally.left_out += 1
                    continue
                key, size = (importer.key(message), message.ByteSize()) if message is not None else ("", 0)
                if not batch.fits(key, size):
                    start(batch)
                    batch = _Batch[MessageT](row.line)
                if message is None:
                    batch.refused.append((row, fault))
                else:
                    batch.add(row, message, key, size)
            start(batch)
            while under_way:
                settle()
        except KeyboardInterrupt:
            first = under_way[0][0] if under_way else batch
            raise CommandError("import", "it was interrupted", _go_on(first.first_line)) from None
        finally:
            for _, future in under_way:
                future.cancel()


def _send(importer: Importer[MessageT], batch: _Batch[MessageT]) -> _Sent:
    """Stores a batch without the rows that the service names as faulty. It names as many as fit into an answer."""
    rows = dict(enumerate(batch.rows))
    refused = batch.refused
    patience = Patience(_PATIENCE_SECONDS)
    while rows:
        numbers = list(rows)
        try:
            in_flight = importer.send([batch.messages[number] for number in numbers])
        except InvalidArgumentError as error:
            reasons = _by_index(importer, error, [batch.messages[number] for number in numbers])
            if not reasons:
                raise
            for index, reason in reasons.items():
                refused.append((rows.pop(numbers[index]), reason))
            patience.progress()
        except ReachError as error:
            time.sleep(patience.delay_after(error))
        else:
            return _Sent(len(rows), in_flight, sorted(refused, key=_line))
    return _Sent(0, 0, sorted(refused, key=_line))


def _line(entry: tuple[Row, str]) -> int:
    return entry[0].line


def _by_index(
    importer: Importer[MessageT], error: InvalidArgumentError, messages: Sequence[MessageT]
) -> dict[int, str]:
    """Returns the reasons by the place in the batch that each violation names."""
    path = re.compile(rf"{re.escape(importer.field)}\[(\d+)\]\.?(.*)")
    reasons: dict[int, list[str]] = {}
    for violation in error.violations:
        found = path.fullmatch(violation.field)
        if found is not None and int(found[1]) < len(messages):
            index = int(found[1])
            column = importer.column(messages[index], found[2])
            reasons.setdefault(index, []).append(f"{column}: {violation.description}")
    return {index: "; ".join(each) for index, each in reasons.items()}


def _reasons(error: InvalidArgumentError) -> str:
    return "; ".join(f"{violation.field}: {violation.description}" for violation in error.violations)


def _go_on(line: int) -> str:
    return f"every line before {line} is dealt with; go on with --from-line {line} (repeating lines is harmless)"


class _Refusals:
    """Shows the first refused rows, and writes all where a file is named for them."""

    def __init__(self, writer: RowWriter | None) -> None:
        self._writer = writer
        self._console = Console(stderr=True, highlight=False)
        self._count = 0

    def add(self, row: Row, reason: str) -> None:
        """Takes one row."""
        self._count += 1
        if self._count <= _SHOWN_REFUSALS:
            self._console.print(Text(f"line {row.line}: {words.printable(reason)}", "yellow"), soft_wrap=True)
        if self._writer is not None:
            self._writer.write({**row.values, "line": str(row.line), "reason": reason, "raw": row.raw})

    def tell_rest(self, rejects: str | None) -> None:
        """Says how many were not shown, and where all are."""
        if self._count > _SHOWN_REFUSALS:
            self._console.print(f"… and {self._count - _SHOWN_REFUSALS:,} more lines were refused", soft_wrap=True)
        if self._count:
            where = f"they are in {rejects}" if rejects else "--rejects FILE keeps them"
            self._console.print(f"Refused lines can be mended and imported again; {where}.", soft_wrap=True)


@contextmanager
def _telling(tally: Tally) -> Iterator[Callable[[], None]]:
    """Tells on standard error how far the import is: in place on a terminal, now and then in a log."""
    console = Console(stderr=True, highlight=False)
    began_at = told_at = time.monotonic()
    status = console.status("reading") if console.is_terminal else None
    pause = _TELL_SECONDS if status else _TELL_LOG_SECONDS

    def tell() -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at < pause:
            return
        told_at = now
        rate = tally.stored / (now - began_at)
        line = f"line {tally.line:,}: {tally.stored:,} stored ({rate:,.0f} a second), {tally.refused:,} refused"
        if status:
            status.update(line)
        else:
            console.print(line, soft_wrap=True)

    with ExitStack() as stack:
        if status:
            stack.enter_context(status)
        yield tell
