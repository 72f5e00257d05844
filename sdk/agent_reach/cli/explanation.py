"""The full explanation of an intent, for a person."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from agent_reach.v1 import message_pb2, reach_pb2, timeline_pb2

from . import words
from .decisions import VERSION_DIGITS, decision_lines, reason

_DONE = (message_pb2.STATE_SENDING, message_pb2.STATE_SENT, message_pb2.STATE_DELIVERED)
_WITHHELD = (message_pb2.STATE_SUPPRESSED, message_pb2.STATE_EXPIRED)
# Receipts by which a provider says that somebody must not be written to any more.
_SILENCES = {
    timeline_pb2.RECEIPT_KIND_COMPLAINED: "is suppressed by it",
    timeline_pb2.RECEIPT_KIND_UNSUBSCRIBED: "is suppressed by it",
    timeline_pb2.RECEIPT_KIND_BOUNCED: "is suppressed by it, unless it bounced for now only",
}


def print_explanation(console: Console, explanation: reach_pb2.ExplainIntentResponse) -> None:
    """Prints why a person did or did not get a message: everything that is known, in order."""
    for line in _lines(explanation):
        # No wrapping and no markup: what was sent is shown as it was sent.
        console.print(line, soft_wrap=True, highlight=False)


def _lines(explanation: reach_pb2.ExplainIntentResponse) -> Iterator[Text]:
    yield from _intent(explanation.intent)
    for task in explanation.tasks:
        yield Text()
        yield from _task(task)
    yield Text()
    yield Text("Timeline", "bold")
    for entry in explanation.timeline:
        hop = f" (hop {entry.hop})" if entry.HasField("hop") else ""
        yield Text.assemble(
            ("  " + words.moment(entry.occurred_at), "dim"), f"  {entry.kind:<10}{words.printable(entry.summary)}{hop}"
        )


def _intent(intent: reach_pb2.Intent) -> Iterator[Text]:
    spec = intent.spec
    yield Text.assemble(
        ("Intent ", "bold"),
        intent.intent_id,
        "  ",
        _state(intent.state, intent.state_reason),
    )
    category = words.words(message_pb2.Category.Name(intent.category), "CATEGORY_")
    yield _fact("wants", f"{spec.scene} ({category}) to {words.recipient(spec.user_id, spec.address)}")
    yield _fact("asked by", f"{intent.agent} at {words.moment(intent.created_at)}")
    if spec.template:
        yield _fact("template", spec.template)
    if spec.variables_json:
        yield _fact("variables", spec.variables_json)
    if spec.intent_key:
        yield _fact("key", spec.intent_key)
    if spec.HasField("priority"):
        yield _fact("priority", str(spec.priority))
    if spec.channels:
        yield _fact("wishes", ", ".join(words.channel(each) for each in spec.channels))
    if spec.HasField("send_at"):
        yield _fact("not before", words.moment(spec.send_at))
    if spec.HasField("send_at_local"):
        yield _fact("not before", words.local_time(spec.send_at_local))
    if spec.HasField("expires_at"):
        yield _fact("expires", words.moment(spec.expires_at))
    if intent.traceparent:
        yield _fact("trace", intent.traceparent)


def _task(task: timeline_pb2.Task) -> Iterator[Text]:
    to = f" to {task.address}" if task.address else ""
    yield Text.assemble(
        (f"Task {task.hop}", "bold"),
        f"  {words.channel(task.channel) or 'no channel'}{words.printable(to)}  ",
        _state(task.state, task.reason),
    )
    yield _fact("task id", task.task_id)
    if task.HasField("due_at"):
        yield _fact("due", words.moment(task.due_at))
    if task.HasField("expires_at"):
        yield _fact("expires", words.moment(task.expires_at))
    left = bool(task.attempts) or task.state in _DONE
    if task.idempotency_key and task.state not in _WITHHELD:
        yield _fact("sent as" if left else "leaves as", task.idempotency_key)
    for decision in task.decisions:
        yield from decision_lines(decision)
    if task.state in _WITHHELD and not (task.decisions and task.decisions[-1].action == message_pb2.ACTION_DROP):
        # Decided to be sent, or to wait, and overtaken: by what was seen right before it would have left.
        yield Text.assemble(("  Withheld ", "bold yellow"), f"after that: {reason(task.reason)}")
    if task.HasField("same_text"):
        yield _fact(
            "same text", f"as intent {task.same_text.intent_id}, which left {words.moment(task.same_text.left_at)}"
        )
    if task.body or task.subject:
        yield Text(f"  Text ({task.template} {task.template_version[:VERSION_DIGITS]})", "bold")
        if task.subject:
            yield Text(f"    Subject: {words.printable(task.subject)}")
        for line in task.body.splitlines():
            yield Text(f"    │ {words.printable(line)}".rstrip())
    if task.attempts:
        yield Text("  Attempts", "bold")
        for attempt in task.attempts:
            yield Text(_attempt(attempt))
    if task.receipts:
        yield Text("  Receipts", "bold")
        for receipt in task.receipts:
            yield Text(_receipt(receipt))
            if receipt.kind in _SILENCES and task.address:
                address = f"{words.channel(task.channel)}:{task.address}"
                told = f"{address} {_SILENCES[receipt.kind]}: reach suppressions list --address {address}"
                yield Text(f"       {words.printable(told)}")


def _attempt(attempt: timeline_pb2.Attempt) -> str:
    result = words.words(timeline_pb2.AttemptResult.Name(attempt.result), "ATTEMPT_RESULT_")
    message_id = f"  {attempt.provider_message_id}" if attempt.provider_message_id else ""
    return (
        f"    {attempt.number}  {words.moment(attempt.started_at)}  {attempt.provider}: {result} {attempt.code}"
        f" in {attempt.duration_seconds:.3f} s{words.printable(message_id)}"
    )


def _receipt(receipt: timeline_pb2.AppliedReceipt) -> str:
    kind = words.words(timeline_pb2.ReceiptKind.Name(receipt.kind), "RECEIPT_KIND_")
    effect = "moved the state" if receipt.changed_state else "kept, the state stays"
    return f"    {words.moment(receipt.applied_at)}  {kind} (at {words.moment(receipt.occurred_at)}): {effect}"


def _fact(name: str, value: str) -> Text:
    return Text.assemble((f"  {name:<11}", "dim"), words.printable(value))


def _state(number: message_pb2.State.ValueType, reason: str) -> Text:
    name = words.state(number)
    return Text.assemble((name, words.STATE_STYLES.get(name, "bold")), f" ({reason})" if reason else "")
