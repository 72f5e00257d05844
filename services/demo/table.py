"""What the demo shows while it runs: a live table on a terminal, a line per change elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agent_reach.cli import words
from agent_reach.cli.grid import print_grid
from agent_reach.v1 import message_pb2, timeline_pb2

from .scenarios import Line

_LET_THROUGH = frozenset({message_pb2.GATE_OUTCOME_PASSED, message_pb2.GATE_OUTCOME_EXEMPT})

# From this width on there is room for the reasons.
_WIDE = 110
_RIGHT = ("try", "receipts")
_LAST = "why"


class Progress:
    """Shows lines as they change.

    Args:
        console: where they are shown.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: Sequence[Line] = ()
        self._shown: dict[str, str] = {}
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def start(self, lines: Sequence[Line]) -> None:
        """Begins to show the lines."""
        self._lines = lines
        if self._live is not None:
            self._live.start()

    def stop(self) -> None:
        """Shows the lines as they are at the end."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()
        else:
            print_grid(
                self._console, _names(wide=True), [_cells(line, wide=True) for line in self._lines], right=_RIGHT
            )

    def change(self, line: Line) -> None:
        """Shows a line that changed."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            return
        text = f"{line.title}: {_state(line).plain}"
        if not _is_refused(line):
            text += f", attempts {len(line.task.attempts)}, receipts {len(line.task.receipts)}"
        if self._shown.get(line.title) != text:
            self._shown[line.title] = text
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        return _table(self._lines, wide=self._console.width >= _WIDE)


def _table(lines: Sequence[Line], *, wide: bool) -> Table:
    # Narrow enough for 80 columns.
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for name in _names(wide=wide):
        table.add_column(
            name,
            justify="right" if name in _RIGHT else "left",
            no_wrap=name != _LAST,
            overflow="fold" if name == _LAST else "ellipsis",
        )
    for line in lines:
        table.add_row(*_cells(line, wide=wide))
    return table


def _names(*, wide: bool) -> tuple[str, ...]:
    names = ("", "line", "id", "gate", "channel", "state", *_RIGHT)
    return (*names, _LAST) if wide else names


def _cells(line: Line, *, wide: bool) -> tuple[str | Text, ...]:
    task = line.task
    cells = (
        Text("…", "yellow") if line.fault else Text("✓", "green"),
        line.title,
        # The end of a UUID of version 7 is random: enough to tell ten intents apart.
        line.intent_id[-4:],
        deciding_gate(task),
        words.channel(task.channel),
        _state(line),
        str(len(task.attempts) or ""),
        str(len(task.receipts) or ""),
    )
    return (*cells, _why(line)) if wide else cells


def _why(line: Line) -> Text:
    return Text(line.fault, "yellow") if line.fault else Text(line.task.reason or line.answer, "dim")


def deciding_gate(task: timeline_pb2.Task) -> str:
    """Returns the gate that decided last, or that all let the message pass."""
    if not task.decisions:
        return ""
    for gate in task.decisions[-1].trace:
        if gate.outcome not in _LET_THROUGH:
            return words.words(message_pb2.Gate.Name(gate.gate), "GATE_")
    return "all passed"


def _state(line: Line) -> Text:
    if _is_refused(line):
        return Text(line.answer.partition(":")[0], "magenta")
    state = words.state(line.task.state) if line.explanation.tasks else line.answer
    return Text(state, words.STATE_STYLES.get(state, ""))


def _is_refused(line: Line) -> bool:
    """Says whether the submission was answered by an error; its code stands first in the answer."""
    return line.answer.partition(":")[0].isupper()
