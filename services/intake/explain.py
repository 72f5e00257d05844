"""Tells an intent's story in order: asked, decided by which gate, sent, reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent_reach.v1 import dispatcher_pb2, message_pb2, reach_pb2, timeline_pb2

_SENTENCES = {
    message_pb2.ACTION_SEND_NOW: "send now by {channel}",
    message_pb2.ACTION_DEFER: "wait until {until} ({reason})",
    message_pb2.ACTION_FALL_BACK: "send now by {channel} instead ({reason})",
    message_pb2.ACTION_DROP: "do not send ({reason})",
}
# Receipts by which a provider says that somebody must not be written to any more.
_SILENCES = {
    timeline_pb2.RECEIPT_KIND_COMPLAINED: ", which suppresses the address",
    timeline_pb2.RECEIPT_KIND_UNSUBSCRIBED: ", which suppresses the address",
    timeline_pb2.RECEIPT_KIND_BOUNCED: ", which suppresses the address unless it bounced for now only",
}


def tell(intent: reach_pb2.Intent, timeline: dispatcher_pb2.GetTimelineResponse) -> list[timeline_pb2.TimelineEntry]:
    """Returns everything that happened to an intent, oldest first."""
    entries = [
        timeline_pb2.TimelineEntry(
            occurred_at=intent.created_at,
            kind="submitted",
            summary=f"submitted by {intent.agent} for scene {intent.spec.scene}{_send_time(intent.spec)}",
        )
    ]
    for task in timeline.tasks:
        entries += _decisions(task)
        entries += _attempts(task)
        entries += _receipts(task)
    entries += (
        timeline_pb2.TimelineEntry(
            occurred_at=outcome.occurred_at,
            kind="state",
            hop=outcome.hop,
            summary=_state(outcome.state, outcome.reason),
        )
        for outcome in timeline.outcomes
    )
    # Sorting is stable: what happened in one instant stays in the order of cause and effect.
    return sorted(entries, key=lambda entry: entry.occurred_at.ToNanoseconds())


def _send_time(spec: reach_pb2.IntentSpec) -> str:
    if spec.HasField("send_at"):
        return f", to leave at {spec.send_at.ToJsonString()}"
    if spec.HasField("send_at_local"):
        local = spec.send_at_local
        day = local.date or (_name(message_pb2.Weekday.Name(local.weekday), "WEEKDAY_") if local.weekday else "")
        return f", to leave at {f'{day} {local.time}'.strip()} by the recipient's clock"
    return ""


def _decisions(task: timeline_pb2.Task) -> Iterator[timeline_pb2.TimelineEntry]:
    for decision in task.decisions:
        sentence = _SENTENCES.get(decision.action, "undecided").format(
            channel=_name(message_pb2.Channel.Name(decision.channel), "CHANNEL_"),
            until=decision.until.ToJsonString(),
            reason=decision.reason,
        )
        yield timeline_pb2.TimelineEntry(
            occurred_at=decision.decided_at,
            kind="decision",
            hop=task.hop,
            summary=f"policy: {sentence}{_gates(decision.trace)}",
        )


def _gates(trace: Sequence[message_pb2.GateTrace]) -> str:
    names = [
        f"{_name(message_pb2.Gate.Name(gate.gate), 'GATE_')} {_name(message_pb2.GateOutcome.Name(gate.outcome), 'GATE_OUTCOME_')}"
        for gate in trace
    ]
    return f"; gates: {', '.join(names)}" if names else ""


def _attempts(task: timeline_pb2.Task) -> Iterator[timeline_pb2.TimelineEntry]:
    for attempt in task.attempts:
        result = _name(timeline_pb2.AttemptResult.Name(attempt.result), "ATTEMPT_RESULT_")
        yield timeline_pb2.TimelineEntry(
            occurred_at=attempt.started_at,
            kind="attempt",
            hop=task.hop,
            summary=f"attempt {attempt.number} by {attempt.provider}: {result} ({attempt.code})",
        )


def _receipts(task: timeline_pb2.Task) -> Iterator[timeline_pb2.TimelineEntry]:
    for receipt in task.receipts:
        kind = _name(timeline_pb2.ReceiptKind.Name(receipt.kind), "RECEIPT_KIND_")
        effect = _SILENCES.get(receipt.kind, "") + ("" if receipt.changed_state else "; the state stays")
        yield timeline_pb2.TimelineEntry(
            occurred_at=receipt.applied_at, kind="receipt", hop=task.hop, summary=f"provider says {kind}{effect}"
        )


def _state(state: message_pb2.State.ValueType, reason: str) -> str:
    name = message_pb2.State.Name(state).removeprefix("STATE_")
    return f"{name} ({reason})" if reason else name


def _name(text: str, prefix: str) -> str:
    return text.removeprefix(prefix).lower().replace("_", " ")
