"""A whole system with the world around it: mail server, webhook receiver, provider. For the demo and the tests."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from agent_reach import AsyncReach
from agent_reach.local.postgres import THROWAWAY_SETTINGS
from services.local.data import PACKAGED_CONFIG, DataDirectory
from services.local.mailbox import TAKEN, Mail, Mailbox
from services.local.ports import Ports
from services.local.stack import LocalStack

from .provider import Provider
from .receiver import WebhookReceiver


class World:
    """Runs for as long as the `async with` body runs, in a directory that is thrown away afterwards.

    Args:
        directory: an empty directory with a short path.
        environment: further settings of the roles.
        config: folder of policies.yaml and templates/.
        on_progress: is told what is being started.

    Attributes:
        mails: every mail that the mail server took.
        before_taking: is awaited with each mail before its sender is answered; a test may put its own here.
        receiver: where webhooks go.
        stack: the system.
        reach: a client of the agent.
        operator: a client of the operator.
        provider: reports what became of messages.
    """

    receiver: WebhookReceiver
    stack: LocalStack
    reach: AsyncReach
    operator: AsyncReach
    provider: Provider

    def __init__(
        self,
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        config: Path = PACKAGED_CONFIG,
        on_progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.mails: list[Mail] = []
        self.before_taking: Callable[[Mail], Awaitable[None]] = _at_once
        self._directory = directory
        self._environment = environment or {}
        self._config = config
        self._on_progress = on_progress
        self._parts = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as parts:
            data = DataDirectory(self._directory)
            parts.enter_context(data.held())
            self.receiver = await parts.enter_async_context(WebhookReceiver())
            mailbox = await parts.enter_async_context(Mailbox(self._take))
            self.stack = LocalStack(
                data,
                Ports.choose(0),
                config=self._config,
                environment={
                    # Nothing that is set for another system on this machine reaches this one.
                    **{name: value for name, value in os.environ.items() if not name.startswith("REACH_")},
                    **mailbox.settings,
                    "REACH_WEBHOOK_ALLOWED_NETWORKS": json.dumps(["127.0.0.0/8"]),
                    **self._environment,
                },
                postgres_settings=THROWAWAY_SETTINGS,
                on_progress=self._on_progress,
            )
            await parts.enter_async_context(self.stack)
            self.reach = await parts.enter_async_context(self.stack.client())
            self.operator = await parts.enter_async_context(self.stack.client(self.stack.keys.operator))
            self.provider = await parts.enter_async_context(
                Provider(self.stack.endpoints.receipts_url, self.stack.keys.receipts)
            )
            self._parts = parts.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._parts.aclose()

    def mails_to(self, address: str) -> list[Mail]:
        """Returns the mails that an address got."""
        return [mail for mail in self.mails if address in mail.recipients]

    async def _take(self, mail: Mail) -> str:
        await self.before_taking(mail)
        self.mails.append(mail)
        return TAKEN


async def _at_once(_mail: Mail) -> None:
    """Has nothing to wait for."""
