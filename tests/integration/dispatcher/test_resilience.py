"""When something is away, slow or dead: messages wait, none is lost, and a second send is only where it may be."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from agent_reach.local import LocalRedis
from agent_reach.v1 import message_pb2, suppression_pb2
from services.dispatcher import sending
from tests.conftest import Dsns
from tests.integration.dispatcher.test_receipts import posted
from tests.support.agent import Agent
from tests.support.dispatching import Dispatching, alert, defer, intent, moment
from tests.support.mail import mail_server
from tests.support.suite import Suite, running_suite
from tests.support.webhooks import receiving

EMAIL, WEBHOOK = message_pb2.CHANNEL_EMAIL, message_pb2.CHANNEL_WEBHOOK


async def test_what_fails_again_and_again_is_given_up_after_the_last_attempt(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.answer = lambda _path, _before: 503
        line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
        await line.accept(item)
        task = await line.reaches(item, "FAILED")
        assert task.reason == "http_503"
        assert [attempt.number for attempt in task.attempts] == [1, 2, 3, 4]
        assert {post.headers["idempotency-key"] for post in receiver.posts} == {task.idempotency_key}
        assert await line.told(item) == [
            "PENDING",
            *["SENDING", "SCHEDULED http_503"] * 3,
            "SENDING",
            "FAILED http_503",
        ]


async def test_without_the_policy_messages_wait_at_no_cost_and_go_out_when_it_is_back(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "ASK_SECONDS", 0.5)
    async with receiving() as receiver, running_suite(suite, "dispatcher"):
        line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
        await line.accept(item)
        assert not (await line.reaches(item, "PENDING", reason="waiting")).attempts
        assert await line.told(item) == ["PENDING", "SENDING", "PENDING waiting"]
        await suite.start("policy")
        task = await line.reaches(item, "SENT")
        assert [(attempt.number, attempt.code) for attempt in task.attempts] == [(1, "http_200")]
        assert len(receiver.posts) == 1


async def test_without_redis_messages_wait_at_no_cost_and_go_out_when_it_is_back(suite: Suite, tmp_path: Path) -> None:
    with LocalRedis(tmp_path / "redis") as redis:
        suite.settings["redis_url"] = SecretStr(redis.url)
        async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
            redis.stop()
            line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
            await line.accept(item)
            assert not (await line.reaches(item, "PENDING", reason="waiting")).attempts
            assert await line.told(item) == ["PENDING"], "a wait for something of ours is no news"
            redis.start()
            task = await line.reaches(item, "SENT")
            assert [attempt.number for attempt in task.attempts] == [1]
            assert len(receiver.posts) == 1


async def test_who_is_suppressed_while_a_message_waits_for_its_turn_gets_nothing(suite: Suite) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(
        policies.read_text().replace(
            "webhook: {burst: 100, rate_per_sec: 100,", "webhook: {burst: 1, rate_per_sec: 0.3,"
        )
    )
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, agent = Dispatching(suite), Agent(suite)
        first = alert(f"{receiver.url}/first", user_id="u1", priority=9)
        second = alert(f"{receiver.url}/second", user_id="u2", priority=1)
        await line.accept(first, second)
        await line.reaches(first, "SENT", "DELIVERED")
        # The second is claimed and waits for a token.
        assert (await agent.suppresses("u2")).in_flight == 0
        task = await line.reaches(second, "SUPPRESSED")
        assert (task.reason, len(task.attempts)) == ("user_unsubscribed", 0)
        assert [post.path for post in receiver.posts] == ["/first"]


async def test_suppress_waits_for_what_is_leaving_and_says_what_it_could_not_wait_for(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, agent = Dispatching(suite), Agent(suite)
        url = f"{receiver.url}/hook"
        item = alert(url)
        receiver.open.clear()
        await line.accept(item)
        await posted(receiver)

        async def suppress(suppression: suppression_pb2.Suppression, seconds: float) -> int:
            request = suppression_pb2.SuppressRequest(suppressions=[suppression])
            response = await agent.suppressions.Suppress(request, metadata=agent.metadata, timeout=seconds)
            return int(response.in_flight)

        source = suppression_pb2.SUPPRESSION_SOURCE_UNSUBSCRIBE
        by_user = suppression_pb2.Suppression(user_id="u1", source=source)
        by_address = suppression_pb2.Suppression(
            address=message_pb2.Address(channel=WEBHOOK, value=url), source=source
        )
        assert await suppress(by_user, 1.5) == 1
        assert await suppress(by_address, 1.5) == 1
        waiting = asyncio.create_task(suppress(by_user, 30))
        receiver.open.set()
        assert await waiting == 0
        assert len(receiver.posts) == 1


async def test_what_a_dead_process_was_sending_goes_out_again_only_where_a_second_send_does_no_harm(
    suite: Suite, migrated: Dsns
) -> None:
    async with mail_server() as server, receiving() as receiver:
        suite.own["dispatcher"] = {
            "smtp_host": "127.0.0.1",
            "smtp_port": server.port,
            "smtp_tls": "none",
            "mail_deduplicates": False,
        }
        later = moment(3_000)
        webhook = intent(defer(WEBHOOK, f"{receiver.url}/hook", later))
        notice = intent(
            defer(EMAIL, "notice@example.com", later),
            scene="order_shipped",
            template="order_shipped",
            variables_json='{"order_id": "7"}',
        )
        code = intent(
            defer(EMAIL, "code@example.com", later),
            scene="verify_code",
            template="verify_code",
            variables_json='{"code": "123456"}',
        )
        expired = intent(
            defer(EMAIL, "late@example.com", later),
            scene="order_shipped",
            template="order_shipped",
            variables_json='{"order_id": "8"}',
        )
        async with running_suite(suite, "policy", "dispatcher"):
            line = Dispatching(suite)
            await line.accept(webhook, notice, code, expired)
            # As a process leaves them that is killed in the middle of a send.
            async with await psycopg.AsyncConnection.connect(migrated.engine) as connection:
                await connection.execute(
                    """
                    UPDATE dispatcher.tasks
                    SET owner = %s, claim_no = 1, attempts = 1, started_at = clock_timestamp(), state = 'SENDING',
                        evaluate = false, run_at = clock_timestamp(),
                        expires_at = CASE WHEN address = 'late@example.com' THEN clock_timestamp() ELSE expires_at END
                    """,
                    (uuid.uuid4(),),
                )
            keys = {item.intent_id: (await line.task(item)).idempotency_key for item in (webhook, code)}
            await line.reaches(webhook, "SENT")
            await line.reaches(code, "SENT")
            assert receiver.posts[0].headers["idempotency-key"] == keys[webhook.intent_id]
            assert [mail.recipients for mail in server.mails] == [("code@example.com",)]
            assert keys[code.intent_id] in server.mails[0].message["Message-ID"]
            assert (await line.reaches(notice, "FAILED")).reason == "unknown"
            assert (await line.reaches(expired, "FAILED")).reason == "unknown", "it may have left before it expired"


async def test_a_mail_that_nobody_answered_for_is_sent_again_only_where_the_scene_says_so(suite: Suite) -> None:
    async with mail_server() as server:
        suite.own["dispatcher"] = {
            "smtp_host": "127.0.0.1",
            "smtp_port": server.port,
            "smtp_tls": "none",
            "mail_deduplicates": False,
        }
        server.on_data = lambda _mail: "" if len(server.mails) < 3 else "250 OK"
        decision = message_pb2.Decision(action=message_pb2.ACTION_SEND_NOW, channel=EMAIL, address="zoe@example.com")
        async with running_suite(suite, "policy", "dispatcher"):
            line = Dispatching(suite)
            notice = intent(
                decision, scene="order_shipped", template="order_shipped", variables_json='{"order_id": "7"}'
            )
            await line.accept(notice)
            assert (await line.reaches(notice, "FAILED")).reason == "unknown"
            assert len(server.mails) == 1
            code = intent(decision, scene="verify_code", template="verify_code", variables_json='{"code": "123456"}')
            await line.accept(code)
            task = await line.reaches(code, "SENT")
            assert [attempt.code for attempt in task.attempts] == ["no_answer", "smtp_250"]
            assert len({mail.message["Message-ID"] for mail in server.mails[1:]}) == 1


async def test_only_what_certainly_never_arrived_goes_out_on_another_channel(suite: Suite) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(
        policies.read_text().replace("rate_per_sec: 100, daily_quota: 1000000}", "rate_per_sec: 100, fallback: email}")
    )
    suite.own["dispatcher"] = {"send_timeout_seconds": 0.5}
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.answer = lambda _path, _before: 403
        line = Dispatching(suite)
        refused, doubtful = alert(f"{receiver.url}/refused"), alert(f"{receiver.url}/doubtful")
        await line.accept(refused)
        await line.reaches(refused, "SUPPRESSED", hop=1, reason="no_address")
        receiver.open.clear()
        await line.accept(doubtful)
        await line.reaches(doubtful, "SCHEDULED", reason="no_answer")
        receiver.open.set()
        task = await line.reaches(doubtful, "FAILED")
        assert task.attempts[-1].code == "http_403"
        assert len((await line.timeline(doubtful.intent_id)).tasks) == 1, "the first attempt may have arrived"


async def test_a_send_that_is_cut_off_by_the_end_of_the_drain_is_unknown_and_goes_out_after_the_restart(
    suite: Suite,
) -> None:
    suite.settings["drain_seconds"] = 0.2
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.open.clear()
        line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
        await line.accept(item)
        await posted(receiver)
        await suite.stop("dispatcher")
        receiver.open.set()
        await suite.start("dispatcher")
        task = await line.reaches(item, "SENT")
        assert [attempt.code for attempt in task.attempts] == ["interrupted", "http_200"]
        assert len({post.headers["idempotency-key"] for post in receiver.posts}) == 1


async def test_the_trace_of_the_submitting_call_is_kept_and_given_to_the_tasks_of_both_hops(
    suite: Suite, migrated: Dsns
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        sms = message_pb2.Decision(
            action=message_pb2.ACTION_SEND_NOW, channel=message_pb2.CHANNEL_SMS, address="+41446681800"
        )
        item = intent(
            sms, scene="verify_code", template="verify_code", variables_json='{"code": "1"}', traceparent=trace
        )
        await line.accept(item, alert(f"{receiver.url}/hook", traceparent=trace))
        await line.reaches(item, "SUPPRESSED", "FAILED", hop=1)
        async with await psycopg.AsyncConnection.connect(migrated.engine) as connection:
            rows = await (await connection.execute("SELECT traceparent FROM dispatcher.tasks")).fetchall()
    assert rows == [(trace,)] * 3
