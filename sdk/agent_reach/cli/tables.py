"""Files of records, as CSV or JSON lines: read and written row by row, however long they are."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import sys
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TextIO

from . import outfile
from .failures import CommandError

FORMATS = ("csv", "jsonl")
_SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
# What stands beside the values where refused rows are written; ignored when such a file is read after mending it. `raw`
# holds the record of a row of which no values could be read.
NOTES = ("line", "reason", "raw")
# How files begin that were packed by gzip, zip (spreadsheets too), bzip2, xz and zstd: as read by us.
_PACKED = ("\x1f\udc8b", "PK\x03\x04", "BZh", "\udcfd7zXZ", "(\udcb5/\udcfd")
_UNMENDED = "is not mended: write what stands in `raw` into the other columns"


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file.

    Attributes:
        line: number of the line on which it begins, from 1.
        values: its texts by column; missing ones are empty.
        fault: why it cannot be read; empty where it could.
        raw: what stands there instead of values that could be read.
    """

    line: int
    values: Mapping[str, str]
    fault: str = ""
    raw: str = ""


class RowWriter(Protocol):
    """Writes rows."""

    def write(self, values: Mapping[str, str]) -> None:
        """Writes one row; a missing column is empty."""
        ...


def format_of(path: str, chosen: str | None) -> str:
    """Returns the format of a file: the chosen one, else by its name's end, and CSV where that has none.

    Raises:
        CommandError: the end of the name says that it is something else.
    """
    suffix = Path(path).suffix.lower()
    if chosen or not suffix:
        return chosen or "csv"
    if suffix not in _SUFFIXES:
        advice = f"end the name with {', '.join(_SUFFIXES)}, or give --format {' or '.join(FORMATS)}"
        raise CommandError("file", f"{path}: {suffix} is no format of ours", advice)
    return _SUFFIXES[suffix]


def read_rows(
    file: IO[bytes],
    kind: str,
    columns: Sequence[str],
    ignored: Sequence[str] = (),
    verbatim: Collection[str] = (),
) -> Generator[Row, None, None]:
    """Yields the rows of a file, one in memory at a time. One that cannot be read says so and stops no other.

    Args:
        file: UTF-8; bytes that are none spoil only their own row.
        kind: `csv`, with a header, or `jsonl`, one flat object of texts per line.
        columns: the columns that may be there.
        ignored: further columns that may be there and are left out.
        verbatim: the columns of which blanks at the ends are a part; of the others CSV loses them.

    Raises:
        CommandError: it is no text in UTF-8, or the header of a CSV file names a column that nobody knows, or twice.
    """
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    known = {*columns, *ignored, *NOTES}
    try:
        first = text.readline()
        _check_is_text(first)
        lines = itertools.chain([first] if first else [], text)
        if kind == "csv":
            yield from _csv_rows(_Lines(lines), columns, known, verbatim)
        else:
            yield from _json_rows(lines, columns, known)
    finally:
        text.detach()  # the file belongs to the caller


def _check_is_text(first: str) -> None:
    if first.startswith(_PACKED):
        raise CommandError("file", "it is compressed", "unpack it first; save a spreadsheet as CSV")
    if "\0" in first or first.startswith(("\udcff\udcfe", "\udcfe\udcff")):
        raise CommandError("file", "it is not UTF-8 (it looks like UTF-16)", "save it as UTF-8")


class _Lines:
    """The lines of a file. Those that a record took in wrongly can be given back, to be read by themselves."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._given_back: deque[str] = deque()
        self._number = 0
        self._record: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._given_back.popleft() if self._given_back else next(self._lines)
        self._record.append(line)
        self._number += 1
        return line

    def begin(self) -> int:
        """Begins a record; returns the number of its first line."""
        self._record.clear()
        return self._number + 1

    def refuse(self, reason: str) -> Row:
        """Returns the first line of the record as one that cannot be read; those behind it are read again.

        So a quote that is never closed costs its own line, and not all that it takes in.
        """
        first, *others = self._record
        self._given_back.extendleft(reversed(others))
        self._number -= len(others)
        if others:
            reason += "; a quote opens here and does not close where a field ends"
        return Row(self._number, {}, reason, first.rstrip("\r\n"))


def _csv_rows(lines: _Lines, columns: Sequence[str], known: set[str], verbatim: Collection[str]) -> Iterator[Row]:
    reader = csv.reader(lines, strict=True)
    header = _read_header(reader, columns, known)
    wanted = [(index, name, name in verbatim) for index, name in enumerate(header) if name in columns]
    note = header.index("raw") if "raw" in header else None
    while True:
        line = lines.begin()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield lines.refuse(f"is no CSV: {error}")
            continue
        if not fields:
            continue
        if len(fields) != len(header):
            yield lines.refuse(f"has {len(fields)} fields, the header has {len(header)}")
            continue
        values = {name: fields[index] if as_it_is else fields[index].strip() for index, name, as_it_is in wanted}
        yield _row(line, values, "" if note is None else fields[note])


def _read_header(reader: Iterator[list[str]], columns: Sequence[str], known: set[str]) -> list[str]:
    advice = f"name the columns in the first line; there are {', '.join(columns)}"
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise CommandError("header", f"it is no CSV: {error}", advice) from error
    if unknown := next((name for name in header if name not in known), None):
        raise CommandError("header", f"there is no column {unknown!r}", advice)
    if (repeated := _repeated(header)) is not None:
        raise CommandError("header", f"column {repeated!r} stands there twice", "leave one of them out")
    if not set(header) & set(columns):
        raise CommandError("header", "it is empty", advice)
    return header


def _json_rows(lines: Iterable[str], columns: Sequence[str], known: set[str]) -> Iterator[Row]:
    for line, record in enumerate(lines, 1):
        if not record.strip():
            continue
        values, fault = _read_object(record, columns, known)
        if fault:
            yield Row(line, {}, fault, record.rstrip("\r\n"))
        else:
            yield _row(line, {name: values[name] for name in columns if name in values}, values.get("raw", ""))


def _read_object(record: str, columns: Sequence[str], known: set[str]) -> tuple[dict[str, str], str]:
    """Returns the texts of a JSON line by name, and why it cannot be read; nulls are left out."""
    try:
        values = _JSON.decode(record)
    except _RepeatedNameError as error:
        return {}, f"names {error.args[0]!r} twice"
    except (ValueError, RecursionError):
        return {}, "is no JSON"
    if not isinstance(values, dict):
        return {}, "is no JSON object"
    if unknown := next((name for name in values if name not in known), None):
        return {}, f"{unknown!r}: is none of {', '.join(columns)}"
    own = {name: values[name] for name in (*columns, "raw") if values.get(name) is not None}
    wrong = next((name for name, value in own.items() if not isinstance(value, str)), None)
    return ({}, f"{wrong}: is not text") if wrong else (own, "")


class _RepeatedNameError(ValueError):
    """A JSON object has two values of one name."""


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if (repeated := _repeated([name for name, _ in pairs])) is not None:
        raise _RepeatedNameError(repeated)
    return dict(pairs)


_JSON = json.JSONDecoder(object_pairs_hook=_object)


def _repeated(names: Sequence[str]) -> str | None:
    """Returns the first name that comes a second time."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _row(line: int, values: Mapping[str, str], raw: str) -> Row:
    """Returns a row that could be read; one of a file of refused rows that nobody has mended yet is refused again."""
    if raw and not any(values.values()):
        return Row(line, {}, _UNMENDED, raw)
    return Row(line, values)


@contextmanager
def write_rows(path: str, kind: str, columns: Sequence[str]) -> Iterator[RowWriter]:
    """Opens a file for rows, readable for its owner only; `-` is standard output.

    It appears under its name when the body has ended well: half a file is never taken for a whole one.
    """
    if path == "-":
        yield _writer(sys.stdout, kind, columns)
        sys.stdout.flush()
        return
    part = Path(f"{path}.part")
    descriptor = outfile.create(part, path)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="", errors="surrogateescape") as file:
            yield _writer(file, kind, columns)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _writer(file: TextIO, kind: str, columns: Sequence[str]) -> RowWriter:
    return _CsvWriter(file, columns) if kind == "csv" else _JsonWriter(file)


class _CsvWriter:
    def __init__(self, file: TextIO, columns: Sequence[str]) -> None:
        self._columns = columns
        self._writer = csv.writer(file)  # ends lines as RFC 4180 says; else a lone carriage return stays unquoted
        self._writer.writerow(columns)

    def write(self, values: Mapping[str, str]) -> None:
        self._writer.writerow([values.get(column, "") for column in self._columns])


class _JsonWriter:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, values: Mapping[str, str]) -> None:
        known = {name: value for name, value in values.items() if value}
        self._file.write(json.dumps(known, ensure_ascii=False, separators=(",", ":")) + "\n")
