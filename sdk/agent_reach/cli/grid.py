"""Tables for people, `grep` and `cut` alike: one line for each row, and whatever stands in a cell stays whole."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from . import words

_GAP = "  "
_INDENT = "    "


def print_grid(
    console: Console,
    names: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    right: Sequence[str] = (),
) -> None:
    """Prints rows under the names of their columns.

    Nothing is cut and nothing is wrapped: an id can be copied, and a row that goes through a pipe is one line. On a
    terminal that is too narrow each row becomes a block of short lines: its first cell, then the others by name.

    Args:
        console: where it is printed.
        names: the columns; the first one says what a row is about.
        rows: their cells, in that order. Control characters are made visible.
        right: the columns that are set to the right, such as numbers.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(cell_len(name), *(cell.cell_len for cell in column)) for name, column in _columns(names, cells)]
    if console.is_terminal and sum(widths) + len(_GAP) * (len(widths) - 1) > console.width:
        for row in cells:
            _print_block(console, names, row)
        return
    to_right = [name in right for name in names]
    _print_line(console, [Text(name, "bold") for name in names], widths, to_right)
    for row in cells:
        _print_line(console, row, widths, to_right)


def _columns(names: Sequence[str], rows: Sequence[Sequence[Text]]) -> list[tuple[str, list[Text]]]:
    return [(name, [row[index] for row in rows] or [Text()]) for index, name in enumerate(names)]


def _cell(cell: str | Text) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text(words.printable(cell).replace("\n", "\\n").replace("\t", "\\t"))


def _print_line(console: Console, row: Sequence[Text], widths: Sequence[int], to_right: Sequence[bool]) -> None:
    line = Text()
    for cell, width, is_right in zip(row, widths, to_right, strict=True):
        blank = " " * (width - cell.cell_len)
        line.append_text(Text.assemble(blank, cell) if is_right else Text.assemble(cell, blank)).append(_GAP)
    line.rstrip()
    _print(console, line)


def _print_block(console: Console, names: Sequence[str], row: Sequence[Text]) -> None:
    _print(console, Text.assemble(row[0], style="bold"))
    line = Text(_INDENT)
    for name, cell in zip(names[1:], row[1:], strict=True):
        if not cell.plain:
            continue
        fact = Text.assemble((f"{name} ", "dim"), cell)
        if line.plain.strip() and line.cell_len + len(_GAP) + fact.cell_len > console.width:
            _print(console, line)
            line = Text(_INDENT)
        if line.plain.strip():
            line.append(_GAP)
        line.append_text(fact)
    if line.plain.strip():
        _print(console, line)


def _print(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=True, highlight=False)
