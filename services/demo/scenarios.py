"""What the demo shows, line by line: what is asked, what must come of it, and whether it did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from agent_reach import AlreadyExistsError, IntentFields, InvalidArgumentError, profile
from agent_reach.v1 import message_pb2, reach_pb2, timeline_pb2
from services.local.mailbox import Mail

from .world import World
from .zones import day_zone, night_zone

# Longest time that the mail server waits for its own receipt to be applied before it says that it took the mail.
_RECEIPT_SECONDS = 10.0
_QUIET_END_HOUR = 8
_SPREAD = timedelta(minutes=30)


@dataclass(slots=True)
class Line:
    """One line of the demo.

    Attributes:
        title: what is shown.
        to: whom the message is for.
        intent: what is submitted.
        judge: says what is wrong with the explanation so far; empty when all is as it must be.
        intent_id: the stored intent; empty where the submission is refused.
        answer: what the submission was answered.
        explanation: the newest one.
        delivered: how often the outcome DELIVERED came.
        fault: what is not as it must be; empty when the line ended well.
    """

    title: str
    to: str
    intent: IntentFields
    judge: Callable[[Line], str]
    intent_id: str = ""
    answer: str = ""
    explanation: reach_pb2.ExplainIntentResponse = field(default_factory=reach_pb2.ExplainIntentResponse)
    delivered: int = 0
    fault: str = "not submitted yet"

    @property
    def task(self) -> timeline_pb2.Task:
        """The newest task; an empty one before there is any."""
        return self.explanation.tasks[-1] if self.explanation.tasks else timeline_pb2.Task()

    def rejudge(self) -> None:
        """Notes whether the line is as it must be."""
        self.fault = self.judge(self)


class Scenarios:
    """Plays every line in a world, and follows what becomes of them.

    Args:
        world: the running system.
        on_change: is called whenever a line changed.

    Attributes:
        lines: the lines, in the order in which they are played.
    """

    def __init__(self, world: World, on_change: Callable[[Line], None] = lambda _line: None) -> None:
        self._world = world
        self._on_change = on_change
        self._early_receipt = asyncio.Event()
        self._all_well = asyncio.Event()
        now = datetime.now(UTC)
        self._day, self._night = day_zone(now), night_zone(now)
        order: IntentFields = {
            "scene": "order_shipped",
            "user_id": "grace",
            "variables": {"order_id": "G-1906", "carrier": "Parcel Post", "expected_on": "Tuesday"},
            "intent_key": "order-G-1906",
        }
        alert = {"title": "Disk almost full", "detail": "/var has 3 % left", "severity": "critical"}
        self.verification = Line(
            "code by e-mail",
            "ada@example.com",
            {"scene": "verify_code", "user_id": "ada", "variables": {"code": "481516"}, "intent_key": "login-ada-1"},
            self._sent_by_mail,
        )
        self.order = Line("order notice by e-mail", "grace@example.com", order, self._sent_by_mail)
        self.alert = Line(
            "alert by webhook",
            "hook:ops",
            {"scene": "alert", "user_id": "ops", "variables": alert},
            lambda line: self._sent_by_webhook(line, "ops", attempts=1),
        )
        self.repeated = Line("same notice, same key", "grace@example.com", order, self._is_the_first)
        self.reused_key = Line(
            "same key, other content",
            "grace@example.com",
            {**order, "variables": {"order_id": "G-1907"}},
            self._first_is_untouched,
        )
        self.missing_variable = Line(
            "a variable is missing",
            "grace@example.com",
            {"scene": "order_shipped", "user_id": "grace", "variables": {"carrier": "Parcel Post"}},
            _names_the_variable,
        )
        self.unsubscribed = Line(
            "marketing, unsubscribed",
            "linus@example.com",
            {
                "scene": "spring_sale",
                "user_id": "linus",
                "variables": {"first_name": "Linus", "percent": 20, "ends_on": "Sunday"},
            },
            self._suppressed,
        )
        self.asleep = Line(
            "notice at night",
            "yuki@example.com",
            {"scene": "order_shipped", "user_id": "yuki", "variables": {"order_id": "Y-7"}},
            self._scheduled_for_the_morning,
        )
        self.flaky = Line(
            "webhook: 503, 503, 200",
            "hook:pager",
            {"scene": "alert", "user_id": "pager", "variables": {**alert, "title": "Queue is growing"}},
            lambda line: self._sent_by_webhook(line, "pager", attempts=3),
        )
        self.early_receipt = Line(
            "receipt early and twice",
            "hedy@example.com",
            {"scene": "order_shipped", "user_id": "hedy", "variables": {"order_id": "H-1914"}},
            self._delivered_once,
        )
        self.lines = (
            self.verification,
            self.order,
            self.alert,
            self.repeated,
            self.reused_key,
            self.missing_variable,
            self.unsubscribed,
            self.asleep,
            self.flaky,
            self.early_receipt,
        )

    async def play(self, timeout_seconds: float) -> bool:
        """Submits every line and follows them until all are as they must be; says whether they are."""
        await self._prepare()
        following = asyncio.create_task(self._follow())
        try:
            for line in self.lines:
                await self._submit(line)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._all_well.wait()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        # Once more, on everything that is known at the end.
        for line in self.lines:
            await self._refresh(line)
        return not any(line.fault for line in self.lines) and not self.sent_twice()

    def sent_twice(self) -> list[str]:
        """Returns the recipients that got a message more than once."""
        mails = Counter((mail.recipients, mail.message_id) for mail in self._world.mails)
        posts = Counter((post.name, post.idempotency_key) for post in self._world.receiver.posts if post.status == 200)
        return [str(to) for (to, _key), times in [*mails.items(), *posts.items()] if times > 1]

    async def _prepare(self) -> None:
        """Tells the system who the users are, and the mail server what to do."""
        receiver, reach = self._world.receiver, self._world.reach
        self._world.before_taking = self._report_early
        addresses = {
            "ada": "ada@example.com",
            "grace": "grace@example.com",
            "linus": "linus@example.com",
            "yuki": "yuki@example.com",
            "hedy": "hedy@example.com",
            "ops": receiver.url("ops"),
            "pager": receiver.url("pager", first_answers=(503, 503)),
        }
        await reach.upsert_profiles(
            profile(user, addresses=[to], time_zone=self._night if user == "yuki" else self._day)
            for user, to in addresses.items()
        )
        await reach.suppress(user_id="linus", source="unsubscribe", note="followed the link in a newsletter")

    async def _submit(self, line: Line) -> None:
        try:
            submitted = await self._world.reach.submit(**line.intent)
        except (AlreadyExistsError, InvalidArgumentError) as error:
            line.answer = f"{error.code.name}: {error.message}"
            line.intent_id = error.metadata.get("intent_id", "")
        else:
            line.answer = "an earlier intent stands for it" if submitted.duplicate else "stored"
            line.intent_id = submitted.intent_id
        await self._refresh(line)

    async def _follow(self) -> None:
        async for watched in self._world.reach.watch_outcomes():
            outcome = watched.outcome
            for line in self.lines:
                if line.intent_id != outcome.intent_id:
                    continue
                if outcome.state == message_pb2.STATE_DELIVERED:
                    line.delivered += 1
                    if line is self.early_receipt:
                        self._early_receipt.set()
                await self._refresh(line)

    async def _refresh(self, line: Line) -> None:
        if line.intent_id:
            line.explanation = await self._world.reach.explain(line.intent_id)
        line.rejudge()
        self._on_change(line)
        # What one line did shows on others too, as those of the same message.
        if not any(each.judge(each) for each in self.lines):
            self._all_well.set()

    async def _report_early(self, mail: Mail) -> None:
        """Has the provider report the delivery, twice, and be heard, before the mail server says that it took it."""
        if self.early_receipt.to not in mail.recipients:
            return
        key = mail.message_id.strip("<>").partition("@")[0]
        await self._world.provider.report("delivered", key, times=2)
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECEIPT_SECONDS):
                await self._early_receipt.wait()

    def _sent_by_mail(self, line: Line) -> str:
        return _state_fault(line, message_pb2.STATE_SENT) or self._mail_fault(line)

    def _mail_fault(self, line: Line) -> str:
        mails = self._world.mails_to(line.to)
        if len(mails) != 1:
            return f"{len(mails)} mails in the mailbox"
        if mails[0].text.rstrip("\n") != line.task.body.rstrip("\n"):
            return "the mail's text is not the rendered one"
        if mails[0].message["Subject"] != line.task.subject:
            return "the mail's subject is not the rendered one"
        return ""

    def _sent_by_webhook(self, line: Line, name: str, *, attempts: int) -> str:
        if fault := _state_fault(line, message_pb2.STATE_SENT):
            return fault
        if len(line.task.attempts) != attempts:
            return f"{len(line.task.attempts)} attempts"
        taken = self._world.receiver.taken(name)
        if len(taken) != 1:
            return f"{len(taken)} posts taken"
        return "" if taken[0].body.decode() == line.task.body else "the body is not the rendered one"

    def _is_the_first(self, line: Line) -> str:
        if line.intent_id != self.order.intent_id:
            return "it got an id of its own"
        return self._mail_fault(self.order)

    def _first_is_untouched(self, line: Line) -> str:
        if not line.answer.startswith("ALREADY_EXISTS"):
            return f"it was answered: {line.answer or 'nothing yet'}"
        if line.intent_id != self.order.intent_id:
            return "the answer does not name the first intent"
        return "" if '"G-1906"' in line.explanation.intent.spec.variables_json else "the first was touched"

    def _suppressed(self, line: Line) -> str:
        if fault := _state_fault(line, message_pb2.STATE_SUPPRESSED):
            return fault
        if "unsubscribe" not in line.task.reason:
            return f"the reason is {line.task.reason}"
        return "" if not self._world.mails_to(line.to) else "a mail was sent"

    def _scheduled_for_the_morning(self, line: Line) -> str:
        if fault := _state_fault(line, message_pb2.STATE_SCHEDULED):
            return fault
        zone = ZoneInfo(self._night)
        due = line.task.due_at.ToDatetime(UTC).astimezone(zone)
        quiet_end = due.replace(hour=_QUIET_END_HOUR, minute=0, second=0, microsecond=0)
        if not timedelta(0) <= due - quiet_end <= _SPREAD:
            return f"it is due at {due:%H:%M} local time"
        return "" if not self._world.mails_to(line.to) else "a mail was sent"

    def _delivered_once(self, line: Line) -> str:
        if fault := _state_fault(line, message_pb2.STATE_DELIVERED):
            return fault
        if not self._early_receipt.is_set():
            return "the receipt was not applied before the mail was taken"
        if line.delivered != 1:
            return f"{line.delivered} times delivered"
        if [receipt.changed_state for receipt in line.task.receipts].count(True) != 1:
            return f"{len(line.task.receipts)} receipts"
        return self._mail_fault(line)


def _names_the_variable(line: Line) -> str:
    named = line.answer.startswith("INVALID_ARGUMENT") and "order_id" in line.answer
    return "" if named else f"it was answered: {line.answer or 'nothing yet'}"


def _state_fault(line: Line, state: message_pb2.State.ValueType) -> str:
    if line.task.state == state:
        return ""
    return f"it is {message_pb2.State.Name(line.task.state).removeprefix('STATE_')}"
