"""Files of records, as CSV or JSON lines: read and written row by row, however long they are."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TextIO

from .failures import CommandError

FORMATS = ("csv", "jsonl")
_SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
# What stands beside the values where refused rows are written; ignored when such a file is read after mending it.
NOTES = ("line", "reason")


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file.

    Attributes:
        line: number of the line on which it begins, from 1.
        values: its texts by column; missing ones are empty.
        fault: why it cannot be read; empty where it could.
    """

    line: int
    values: Mapping[str, str]
    fault: str = ""


class RowWriter(Protocol):
    """Writes rows."""

    def write(self, values: Mapping[str, str]) -> None:
        """Writes one row; a missing column is empty."""
        ...


def format_of(path: str, chosen: str | None) -> str:
    """Returns the format of a file: the chosen one, else by its name's end, else CSV."""
    return chosen or _SUFFIXES.get(Path(path).suffix.lower(), "csv")


def read_rows(
    file: IO[bytes], kind: str, columns: Sequence[str], ignored: Sequence[str] = ()
) -> Generator[Row, None, None]:
    """Yields the rows of a file, one in memory at a time. One that cannot be read says so and stops no other.

    Args:
        file: UTF-8; bytes that are none spoil only their own row.
        kind: `csv`, with a header, or `jsonl`, one flat object of texts per line.
        columns: the columns that may be there.
        ignored: further columns that may be there and are left out.

    Raises:
        CommandError: the header of a CSV file names a column that nobody knows.
    """
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    known = {*columns, *ignored, *NOTES}
    rows = _csv_rows(text, columns, known) if kind == "csv" else _json_rows(text, columns, known)
    try:
        yield from rows
    finally:
        text.detach()  # the file belongs to the caller


def _csv_rows(text: TextIO, columns: Sequence[str], known: set[str]) -> Iterator[Row]:
    reader = csv.reader(text)
    header = [name.strip() for name in next(reader, [])]
    if unknown := [name for name in header if name not in known]:
        raise CommandError(
            "header",
            f"there is no column {unknown[0]!r}",
            f"name the columns in the first line; there are {', '.join(columns)}",
        )
    if not set(header) & set(columns):
        raise CommandError("header", "it is empty", f"name the columns in the first line: {', '.join(columns)}")
    wanted = [(index, name) for index, name in enumerate(header) if name in columns]
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(line, {}, f"is no CSV up to line {reader.line_num}: {error}")
            continue
        if not fields:
            continue
        if len(fields) != len(header):
            yield Row(line, {}, f"has {len(fields)} fields, the header has {len(header)}")
        else:
            yield Row(line, {name: fields[index].strip() for index, name in wanted})


def _json_rows(text: TextIO, columns: Sequence[str], known: set[str]) -> Iterator[Row]:
    for line, record in enumerate(text, 1):
        if not record.strip():
            continue
        try:
            values = json.loads(record)
        except (ValueError, RecursionError):
            yield Row(line, {}, "is no JSON")
            continue
        if not isinstance(values, dict):
            yield Row(line, {}, "is no JSON object")
        elif unknown := [name for name in values if name not in known]:
            yield Row(line, {}, f"{unknown[0]!r}: is none of {', '.join(columns)}")
        else:
            own = {name: value for name, value in values.items() if name in columns and value is not None}
            wrong = next((name for name, value in own.items() if not isinstance(value, str)), None)
            yield Row(line, {}, f"{wrong}: is not text") if wrong else Row(line, own)


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
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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
