"""Tables: an id stays whole, and a row that goes through a pipe is one line."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from agent_reach.cli.grid import print_grid

ID = "0198c2f4-7a1b-7c3d-8e5f-0123456789ab"
NAMES = ("intent", "user", "judged", "was", "messages")
ROWS: Sequence[Sequence[str | Text]] = (
    (ID, "ada", "2026-03-08 23:30:00 UTC", "dropped: user_daily_cap", "12"),
    (ID, "Grüße, 世界", "", "sent", "3,000"),
)


def printed(*, width: int, terminal: bool, rows: Sequence[Sequence[str | Text]] = ROWS) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=terminal, color_system=None)
    print_grid(console, NAMES, rows, right=("messages",))
    return output.getvalue().splitlines()


def test_in_a_pipe_a_row_is_one_line_however_narrow_somebody_says_it_is() -> None:
    assert printed(width=20, terminal=False) == [
        "intent                                user         judged                   was                      messages",
        f"{ID}  ada          2026-03-08 23:30:00 UTC  dropped: user_daily_cap        12",
        f"{ID}  Grüße, 世界                           sent                        3,000",
    ]


def test_on_a_terminal_that_is_too_narrow_each_row_becomes_short_lines_and_nothing_is_cut() -> None:
    assert printed(width=60, terminal=True) == [
        ID,
        "    user ada  judged 2026-03-08 23:30:00 UTC",
        "    was dropped: user_daily_cap  messages 12",
        ID,
        "    user Grüße, 世界  was sent  messages 3,000",
    ]
    assert printed(width=200, terminal=True) == printed(width=20, terminal=False)


def test_what_somebody_stored_does_not_steer_the_terminal() -> None:
    (_, line) = printed(width=20, terminal=False, rows=[("\x1b[31m", "a\nb\r", "", "", "")])
    assert line == "\\x1b[31m  a\\nb\\x0d"


def test_a_table_without_rows_still_names_its_columns() -> None:
    assert printed(width=80, terminal=True, rows=[]) == ["intent  user  judged  was  messages"]
