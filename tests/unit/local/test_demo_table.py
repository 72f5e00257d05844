"""What the demo prints where nobody looks at a live table: one line per change, and no word that another one belies."""

from __future__ import annotations

import io

from rich.console import Console

from agent_reach.v1 import message_pb2, reach_pb2, timeline_pb2
from services.demo.scenarios import Line
from services.demo.table import Progress


def line(title: str, answer: str, state: message_pb2.State.ValueType) -> Line:
    task = timeline_pb2.Task(state=state, attempts=[timeline_pb2.Attempt(number=1)])
    explanation = reach_pb2.ExplainIntentResponse(tasks=[task])
    return Line(
        title, "ada@example.com", {"scene": "s"}, lambda _: "", answer=answer, explanation=explanation, fault=""
    )


def test_a_refused_line_is_never_told_as_sent_and_no_line_ends_in_blanks() -> None:
    output = io.StringIO()
    progress = Progress(Console(file=output, width=40))
    sent = line("a notice", "stored", message_pb2.STATE_SENT)
    refused = line("same key, other content", "ALREADY_EXISTS: the first stands", message_pb2.STATE_SENT)
    progress.start([sent, refused])
    for each in (sent, refused, refused):
        progress.change(each)
    progress.stop()
    lines = output.getvalue().splitlines()
    assert lines[:2] == ["a notice: SENT, attempts 1, receipts 0", "same key, other content: ALREADY_EXISTS"]
    assert len(lines) == 2 + 3, "a line that did not change is told once, and the table has a line for each"
    assert [each for each in lines if each != each.rstrip()] == []
