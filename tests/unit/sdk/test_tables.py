"""Files of records: what is wrong with one row is told with its line, and spoils no other row."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_reach.cli.failures import CommandError
from agent_reach.cli.tables import Row, format_of, read_rows, write_rows

COLUMNS = ("user_id", "note")


def rows(content: bytes, kind: str = "csv", ignored: Sequence[str] = (), verbatim: Sequence[str] = ()) -> list[Row]:
    return list(read_rows(io.BytesIO(content), kind, COLUMNS, ignored, verbatim))


def test_rows_know_the_line_on_which_they_begin() -> None:
    content = b'note,user_id\r\n"two\nlines",ann\n\n  b , bob \n'
    assert rows(content) == [
        Row(2, {"note": "two\nlines", "user_id": "ann"}),
        Row(5, {"note": "b", "user_id": "bob"}),
    ]


@pytest.mark.parametrize(
    ("content", "refused", "read"),
    [
        pytest.param('u2,,"bad quote\nu3,,ok\nu4,,ok\n', {2: 'u2,,"bad quote'}, ["u3", "u4"], id="never closed"),
        pytest.param(
            'u2,,"bad\nu3,,ok\nu4,,"fine"\n', {2: 'u2,,"bad'}, ["u3", "u4"], id="closed by a later line's quote"
        ),
        pytest.param(
            'u2,"bad\r\nu3,,ok\r\n,"\r\nu4,,ok\r\n',
            {2: 'u2,"bad', 4: ',"'},
            ["u3", "u4"],
            id="closed where a field ends, with another number of fields",
        ),
        pytest.param('u2,,"bad" quote\nu3,,ok\n', {2: 'u2,,"bad" quote'}, ["u3"], id="closed too early"),
        pytest.param("".join(f'u{n},,"x\n' for n in range(9)), {n + 2: f'u{n},,"x' for n in range(9)}, [], id="all"),
        pytest.param(
            'u2,,"bad\n' + "".join(f"v{n},,{'x' * 50}\n" for n in range(30_000)),
            {2: 'u2,,"bad'},
            [f"v{n}" for n in range(30_000)],
            id="more than fits into a field",
        ),
    ],
)
def test_a_stray_quote_costs_its_own_line_and_swallows_none(
    content: str, refused: dict[int, str], read: list[str]
) -> None:
    found = list(read_rows(io.BytesIO(f"user_id,address,note\n{content}".encode()), "csv", (*COLUMNS, "address")))
    assert {row.line: row.raw for row in found if row.fault} == refused
    assert [row.values["user_id"] for row in found if not row.fault] == read


def test_behind_a_stray_quote_the_lines_keep_their_numbers_and_quoted_ones_their_line_ends() -> None:
    content = b'user_id,note\nann,"x\nbob,"two\nlines"\ncarol,y\n'
    assert [(row.line, row.values) for row in rows(content)] == [
        (2, {}),
        (3, {"user_id": "bob", "note": "two\nlines"}),
        (5, {"user_id": "carol", "note": "y"}),
    ]


@pytest.mark.parametrize(
    ("kind", "content", "faults"),
    [
        ("csv", b"user_id,note\nann,x\nbob\ncarol,y\n", {3: "has 1 fields, the header has 2"}),
        ("csv", b"user_id\n" + b"x" * 200_000 + b"\nann\n", {2: "is no CSV: field larger"}),
        ("jsonl", (b'{"user_id":"ann"}\n{"user_id":\n[1]\n{"note":5}\n{"user":"x"}\n{"user_id":"bob","note":null}\n'
         b'{"user_id":"carol","user_id":"dora"}\n'),
         {2: "is no JSON", 3: "is no JSON object", 4: "note: is not text", 5: "'user': is none of user_id, note",
          7: "names 'user_id' twice"}),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_told_and_the_others_are_read(
    kind: str, content: bytes, faults: dict[int, str]
) -> None:
    read = rows(content, kind)
    wrong = {row.line: row.fault for row in read if row.fault}
    assert wrong.keys() == faults.keys()
    assert all(wrong[line].startswith(fault) for line, fault in faults.items())
    lines = content.decode().splitlines()
    assert {row.line: row.raw for row in read if row.fault} == {line: lines[line - 1] for line in faults}


def test_bytes_that_are_no_text_spoil_their_own_row_only() -> None:
    first, second = rows(b"user_id\nM\xfcller\nann\n")
    assert first.values["user_id"] == "M\udcfcller", "which no request can carry: it is refused there"
    assert second.values["user_id"] == "ann"


def test_a_mark_at_the_start_is_no_part_of_the_first_column() -> None:
    assert rows("\ufeffuser_id\nann\n".encode()) == [Row(2, {"user_id": "ann"})]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"line,reason\n",
        b"user_id,nodes\nann,x\n",
        b"user_id,note,user_id\na,b,c\n",
        b'"user_id,note\na,b\n',
    ],
)
def test_a_header_that_names_no_or_unknown_columns_or_one_twice_is_refused_before_anything_is_read(
    content: bytes,
) -> None:
    with pytest.raises(CommandError, match="header"):
        rows(content)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(b"user_id\nann\n", mtime=0), "compressed"),
        (b"PK\x03\x04\x14\x00", "compressed"),
        ("user_id\nann\n".encode("utf-16"), "not UTF-8"),
        ("user_id\nann\n".encode("utf-16-be"), "not UTF-8"),
    ],
)
def test_a_file_that_is_no_text_in_utf_8_is_refused_in_words(kind: str, content: bytes, told: str) -> None:
    with pytest.raises(CommandError, match=f"file: it is {told}"):
        rows(content, kind)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_refused_row_that_nobody_mended_is_refused_again_and_nothing_of_it_is_lost(kind: str) -> None:
    for unmended in ({"raw": 'x,"', "line": "7"}, {"raw": 'x,"', "user_id": "ann"}):
        record = ("user_id", "note", "line", "reason", "raw")
        if kind == "csv":
            written = io.StringIO()
            csv.writer(written).writerows([record, [unmended.get(name, "") for name in record]])
            content = written.getvalue()
        else:
            content = json.dumps(unmended)
        (row,) = rows(content.encode(), kind)
        assert (row.raw, row.values.get("user_id")) == (('x,"', None) if "line" in unmended else ("", "ann"))
        assert bool(row.fault) == ("line" in unmended)


def test_columns_that_an_export_adds_are_left_out() -> None:
    content = b"user_id,created_by,line,reason\nann,x,7,bad\n"
    assert rows(content, ignored=("created_by",)) == [Row(2, {"user_id": "ann"})]


def test_the_format_is_told_by_the_name() -> None:
    assert [format_of(path, None) for path in ("a.CSV", "a.jsonl", "b.ndjson", "-")] == [
        "csv",
        "jsonl",
        "jsonl",
        "csv",
    ]
    assert format_of("a.csv", "jsonl") == "jsonl"


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "user_id": st.text(min_size=1),
                "note": st.text(),
            }
        )
    ),
    st.sampled_from(["csv", "jsonl"]),
)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, str]], kind: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"records.{kind}"
    with write_rows(str(path), kind, COLUMNS) as writer:
        for record in records:
            writer.write(record)
    assert path.stat().st_mode & 0o077 == 0
    found = rows(path.read_bytes(), kind, verbatim=COLUMNS)
    read = [{column: row.values.get(column, "") for column in COLUMNS} for row in found]
    assert read == records


def test_half_a_file_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("the one of yesterday")

    def breaks_off() -> None:
        with write_rows(str(path), "csv", COLUMNS) as writer:
            writer.write({"user_id": "ann"})
            raise ConnectionError

    with pytest.raises(ConnectionError):
        breaks_off()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.csv"]
    assert path.read_text() == "the one of yesterday"
