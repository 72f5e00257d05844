"""The demo's lines, each a promise."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import pytest_asyncio

from agent_reach.cli.words import state
from services.demo.scenarios import Line, Scenarios
from services.demo.world import World

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="reach-e2e-"))
    async with World(directory) as running:
        yield running
    shutil.rmtree(directory)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(world: World) -> Scenarios:
    scenarios = Scenarios(world)
    await scenarios.play(timeout_seconds=90)
    return scenarios


def _state(line: Line) -> str:
    return state(line.task.state)


async def test_every_line_ends_as_it_must(played: Scenarios) -> None:
    assert {line.title: line.fault for line in played.lines if line.fault} == {}
    assert played.sent_twice() == []


async def test_a_verification_code_arrives_with_the_exact_text(world: World, played: Scenarios) -> None:
    (mail,) = world.mails_to("ada@example.com")
    assert mail.message["Subject"] == "481516 is your verification code"
    assert mail.text == (
        "Your verification code is:\n\n    481516\n\n"
        "Enter it only where you asked for it, and give it to nobody: we never ask for it by phone or in a message.\n\n"
        "If you did not ask for a code, you can ignore this message.\n"
    )
    assert _state(played.verification) == "SENT"


async def test_an_order_notice_arrives_once_though_it_was_asked_for_twice(world: World, played: Scenarios) -> None:
    (mail,) = world.mails_to("grace@example.com")
    assert mail.text == (
        "Good news: your order G-1906 has left our warehouse with Parcel Post.\nIt should reach you on Tuesday.\n\n"
        "You get this message because you placed this order.\n"
    )
    assert played.repeated.intent_id == played.order.intent_id
    assert played.repeated.answer == "an earlier intent stands for it"


async def test_a_key_with_other_content_is_refused_and_the_first_untouched(played: Scenarios) -> None:
    assert played.reused_key.answer.startswith("ALREADY_EXISTS")
    assert played.reused_key.intent_id == played.order.intent_id
    assert "G-1907" not in played.reused_key.explanation.intent.spec.variables_json


async def test_a_missing_variable_is_named(played: Scenarios) -> None:
    assert played.missing_variable.answer.startswith("INVALID_ARGUMENT")
    assert "order_id" in played.missing_variable.answer


async def test_a_user_who_unsubscribed_gets_nothing_and_the_reason_says_so(world: World, played: Scenarios) -> None:
    assert _state(played.unsubscribed) == "SUPPRESSED"
    assert "unsubscribed" in played.unsubscribed.task.reason
    assert world.mails_to("linus@example.com") == []


async def test_a_notice_at_night_waits_for_the_users_own_morning(world: World, played: Scenarios) -> None:
    task = played.asleep.task
    (profile,) = await world.reach.get_profiles(["yuki"])
    due = task.due_at.ToDatetime(UTC).astimezone(ZoneInfo(profile.time_zone))
    assert _state(played.asleep) == "SCHEDULED"
    assert (due.hour, due.minute // 30) == (8, 0)
    assert world.mails_to("yuki@example.com") == []


async def test_a_webhook_that_fails_twice_is_sent_on_the_third_attempt(world: World, played: Scenarios) -> None:
    posts = [post for post in world.receiver.posts if post.name == "pager"]
    assert [post.status for post in posts] == [503, 503, 200]
    assert len({post.idempotency_key for post in posts}) == 1
    assert [attempt.code for attempt in played.flaky.task.attempts] == ["http_503", "http_503", "http_200"]
    assert _state(played.flaky) == "SENT"


async def test_a_receipt_that_comes_twice_before_sent_delivers_once(played: Scenarios) -> None:
    line = played.early_receipt
    assert (_state(line), line.delivered, len(line.task.receipts)) == ("DELIVERED", 1, 1)
    assert [entry.summary for entry in line.explanation.timeline if entry.kind == "state"][-1] == "DELIVERED"


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="function")
async def test_the_command_itself_says_that_all_is_well_and_leaves_with_0() -> None:
    reach = Path(sys.executable).parent / "reach"
    done = subprocess.run([reach, "demo"], capture_output=True, text=True, check=False, timeout=200)  # noqa: ASYNC221 - nothing else runs
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All 10 lines ended as they must" in done.stdout
