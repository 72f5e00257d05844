"""A scene that gathers: `order_update`, over a webhook, with a list of what is in it."""

from __future__ import annotations

import json
import uuid
from typing import Any

from agent_reach.v1 import dispatcher_pb2, message_pb2
from tests.support.dispatching import intent, moment
from tests.support.suite import Suite

_PARTS = {
    "template.yaml": "required: [order_id]\noptional: [at, items, count]\nnoise: [at]\n",
    "webhook.json.j2": '{"count": {{ count | tojson }}, "orders": {{ items | map(attribute="order_id") | list | tojson }}}',
    "email.subject.j2": "{{ count }} orders",
    "email.text.j2": "{% for item in items %}{{ item.order_id }} {% endfor %}",
}


def gathers(
    suite: Suite,
    *,
    window_seconds: int = 3_600,
    max_items: int | None = None,
    quiet_exempt: bool = True,
    settings: str = "",
) -> None:
    """Adds the scene and its template to a suite's configuration; it leaves at any hour, unless it is told not to."""
    config = suite.settings["config_dir"]
    folder = config / "templates" / "order_update"
    folder.mkdir()
    for name, text in _PARTS.items():
        (folder / name).write_text(text)
    digest = f"window_seconds: {window_seconds}" + (f", max_items: {max_items}" if max_items else "")
    policies = config / "policies.yaml"
    exempt = f"quiet_exempt: {str(quiet_exempt).lower()}"
    scene = f"  order_update: {{category: notification, {exempt}, digest: {{{digest}}}{settings}}}\n"
    policies.write_text(policies.read_text().replace("  spring_sale:", f"{scene}  spring_sale:"))


def part(order_id: object, url: str, *, due_seconds: float = 3_600, **fields: Any) -> dispatcher_pb2.AcceptItem:
    """Returns an intent that the policy wants gathered; a digest that it opens is due so many seconds from now."""
    decision = message_pb2.Decision(
        action=message_pb2.ACTION_DEFER,
        channel=message_pb2.CHANNEL_WEBHOOK,
        address=url,
        reason="gathered",
        held_by=message_pb2.GATE_DIGEST,
    )
    decision.until.FromDatetime(moment(due_seconds))
    decision.trace.add(gate=message_pb2.GATE_DIGEST, outcome=message_pb2.GATE_OUTCOME_DEFERRED, reason="gathered")
    values: dict[str, Any] = {
        "intent_id": str(uuid.uuid4()),
        "scene": "order_update",
        "template": "order_update",
        "variables_json": json.dumps({"order_id": order_id}),
        "address": message_pb2.Address(channel=message_pb2.CHANNEL_WEBHOOK, value=url),
        **fields,
    }
    return intent(decision, **values)
