"""The one screen of `reach up`."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from .stack import LocalStack


class Screen:
    """Tells what is going on: how the start gets on, where everything is, what happens later.

    Args:
        console: where it is printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def starting(self, part: str) -> None:
        """Says what is being started."""
        self._console.print(Text.assemble(("starting ", "dim"), part))

    def serving(self, stack: LocalStack, mail: str) -> None:
        """Says that everything serves: where, with which key, and what to do next."""
        endpoints = stack.endpoints
        facts = [
            *((f"{role} (gRPC)", target) for role, target in endpoints.targets.items()),
            ("receipts (HTTP)", endpoints.receipts_url),
            *((f"{role} (metrics)", url) for role, url in endpoints.metrics.items()),
            ("API key", endpoints.api_key),
            ("operator key", f"in {stack.data.keys_file}"),
            ("e-mail", mail),
            ("webhooks", "go to public addresses (REACH_WEBHOOK_ALLOWED_NETWORKS allows more)"),
            ("sms, inbox, chat", "no provider yet; those in REACH_NULL_CHANNELS are taken and thrown away"),
            ("configuration", str(stack.config)),
            ("data", f"{stack.data.path} (kept)"),
            ("logs", str(stack.data.logs)),
        ]
        self._console.print(Rule("Agent-Reach is up", align="left"))
        for name, value in facts:
            # No wrapping: keys and addresses are there to be copied.
            self._console.print(Text.assemble((f"{name:<21}", "bold"), value), soft_wrap=True)
        self._console.print(Rule())
        self._console.print(
            f"Try it:  {_command()} submit --address ada@example.com --scene order_shipped --var order_id=A-1",
            soft_wrap=True,
        )
        self._console.print("Ctrl-C drains and stops everything.", style="dim")

    def event(self, text: str) -> None:
        """Says what happened to a part."""
        self._console.print(Text.assemble((f"{datetime.now().astimezone():%H:%M:%S}  ", "dim"), text), soft_wrap=True)

    def stopping(self) -> None:
        """Says that everything is being stopped."""
        self._console.print("draining …", style="dim")

    def stopped(self) -> None:
        """Says that nothing runs any more."""
        self._console.print("Everything is stopped; the data is kept.")


def _command() -> str:
    """Returns how the command is called here: by its name only where a shell would find this one."""
    found = shutil.which("reach")
    return "reach" if found is not None and found == sys.argv[0] else sys.argv[0]
