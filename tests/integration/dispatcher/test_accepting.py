"""Accepting, cancelling and ending: an intent has one task, and everything that never leaves says why."""

from __future__ import annotations

import asyncio
import json

from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import dispatcher_pb2, message_pb2, policy_pb2, policy_pb2_grpc, reach_pb2
from services.chassis.batch_stream import BatchClient
from services.chassis.runtime import Runtime
from services.chassis.settings import ChassisSettings
from services.dispatcher.judging import EvaluateClient
from tests.integration.dispatcher.test_receipts import posted
from tests.support.agent import Agent
from tests.support.dispatching import TENANT, Dispatching, alert, defer, drop, intent, moment, send_now, short
from tests.support.suite import SERVICE_KEY, Suite, eventually, running_suite
from tests.support.webhooks import receiving

EMAIL, SMS, WEBHOOK = message_pb2.CHANNEL_EMAIL, message_pb2.CHANNEL_SMS, message_pb2.CHANNEL_WEBHOOK


def order(address: str, variables: object, **fields: str) -> dispatcher_pb2.AcceptItem:
    return intent(
        send_now(EMAIL, address, cap_date="2026-01-01"),
        scene="order_shipped",
        template="order_shipped",
        variables_json=json.dumps(variables),
        **fields,
    )


async def test_an_intent_that_is_accepted_again_and_again_has_one_task_and_one_post(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
        answers = await asyncio.gather(*(line.accept(item, item) for _ in range(10)))
        results = [result for answer in answers for result in answer]
        assert len({result.task_id for result in results}) == 1
        assert [result.existed for result in results].count(False) == 1
        await line.reaches(item, "SENT")
        (again,) = await line.accept(alert("http://203.0.113.1/other", intent_id=item.intent_id))
        assert again.existed
        assert (await line.task(item)).address == f"{receiver.url}/hook", "the first decision stands"
        assert len(receiver.posts) == 1


async def test_overlapping_batches_in_any_order_never_deadlock(suite: Suite) -> None:
    suite.own["dispatcher"] = {"null_channels": ("email",)}
    async with running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        items = [intent(send_now(EMAIL, f"u{n}@example.com"), user_id=f"u{n}") for n in range(60)]
        batches = [items[::1] if n % 2 else items[::-1] for n in range(8)]
        answers = await asyncio.gather(*(line.accept(*batch) for batch in batches))
        fresh = [result.task_id for answer in answers for result in answer if not result.existed]
        assert len(fresh) == len(set(fresh)) == 60


async def test_each_item_of_a_batch_ends_by_its_own_decision(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, url = Dispatching(suite), f"{receiver.url}/hook"
        until = moment(3_000)
        dropped = intent(drop("user_daily_cap"))
        deferred = intent(defer(WEBHOOK, url, until))
        broken = alert(url, variables_json="{}")
        strange = alert(url, template="no_such_template")
        late = alert(url, expires_at=moment(-1))
        good = alert(url)
        await line.accept(dropped, deferred, broken, strange, late, good)
        assert (await line.reaches(good, "SENT")).body.encode() == receiver.posts[0].body
        assert (await line.reaches(dropped, "SUPPRESSED")).reason == "user_daily_cap"
        waiting = await line.reaches(deferred, "SCHEDULED")
        assert waiting.reason == "quiet_hours"
        expected = Timestamp()
        expected.FromDatetime(until)
        assert waiting.due_at == expected
        assert (await line.reaches(broken, "FAILED")).reason == "variable_missing"
        assert (await line.reaches(strange, "FAILED")).reason == "template_unknown"
        assert (await line.reaches(late, "EXPIRED")).reason == "expired"
        assert len(receiver.posts) == 1
        assert await line.told(dropped) == ["SUPPRESSED user_daily_cap"], "nothing vanishes"


async def test_a_batch_with_a_bad_item_names_it_and_stores_nothing(suite: Suite) -> None:
    async with running_suite(suite, "policy", "dispatcher"):
        line, good = Dispatching(suite), alert("http://127.0.0.1:9/")
        response = await line.answer_to([good, alert("http://127.0.0.1:9/", variables_json='{"a": "\\u0000"}')])
        assert response.error.code
        assert "items[1].variables_json" in response.error.message
        assert not (await line.timeline(good.intent_id)).tasks


async def test_what_cannot_be_rendered_gives_its_place_in_the_users_cap_back(suite: Suite) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(policies.read_text().replace("[verify_code, alert]", "[verify_code, alert, order_shipped]"))
    async with running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        settings = ChassisSettings(service_key=SERVICE_KEY, policy_target=f"127.0.0.1:{suite.ports['policy']}")
        runtime = Runtime(settings)
        stub = policy_pb2_grpc.PolicyServiceStub(runtime.channel(settings.policy_target))
        items = [order("zoe@example.com", {}, user_id="u1") for _ in range(9)]
        client: EvaluateClient = BatchClient(stub.Evaluate, service="policy")
        async with client as evaluate:

            async def judge(item: dispatcher_pb2.AcceptItem) -> message_pb2.Decision:
                question = policy_pb2.EvaluateItem(
                    intent_id=item.intent_id,
                    tenant=TENANT,
                    user_id="u1",
                    scene="order_shipped",
                    address=message_pb2.Address(channel=EMAIL, value="zoe@example.com"),
                )
                question.expires_at.FromDatetime(moment(3_600))
                response = await evaluate.call(policy_pb2.EvaluateRequest(items=[question]))
                decision: message_pb2.Decision = response.decisions[0]
                return decision

            # The cap is 3; none of these leaves, so it never fills.
            for item in items:
                decision = await judge(item)
                assert decision.action == message_pb2.ACTION_SEND_NOW, decision.reason
                item.decision.CopyFrom(decision)
                await line.accept(item)
                await line.reaches(item, "FAILED", reason="variable_missing")
        await runtime.close()


# -- cancelling -----------------------------------------------------------------------------------------------------


async def test_an_intent_that_was_cancelled_before_it_had_a_task_never_gets_one(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
        assert await line.cancel(item) == (True, "SUPPRESSED")
        assert await line.cancel(item) == (True, "SUPPRESSED"), "again is harmless"
        assert [result.existed for result in await line.accept(item)] == [True]
        other = alert(f"{receiver.url}/other")
        await line.accept(other)
        await line.reaches(other, "SENT")
        assert [post.path for post in receiver.posts] == ["/other"]
        assert await line.told(item) == ["SUPPRESSED cancelled"]


async def test_what_waits_can_be_cancelled_and_what_is_leaving_cannot(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        waiting = intent(defer(WEBHOOK, f"{receiver.url}/later", moment(3_000)))
        leaving = alert(f"{receiver.url}/now")
        receiver.open.clear()
        await line.accept(waiting, leaving)
        await posted(receiver)
        assert await line.cancel(waiting) == (True, "SUPPRESSED")
        assert await line.cancel(leaving) == (False, "SENDING")
        receiver.open.set()
        await line.reaches(leaving, "SENT")
        assert await line.cancel(leaving) == (False, "SENT")
        assert (await line.task(waiting)).reason == "cancelled"


# -- the second hop -------------------------------------------------------------------------------------------------


async def test_a_channel_without_a_provider_falls_back_and_the_intent_is_sent_by_the_other_one(suite: Suite) -> None:
    policies = suite.settings["config_dir"] / "policies.yaml"
    policies.write_text(
        policies.read_text()
        .replace("[verify_code, alert]", "[verify_code, alert, order_shipped]")
        .replace("channels: [email, sms]}\n  spring", "channels: [sms, email]}\n  spring")
    )
    suite.own["dispatcher"] = {"null_channels": ("email",)}
    async with running_suite(suite):
        agent, line = Agent(suite), Dispatching(suite)
        await agent.has_addresses("u1", {EMAIL: "zoe@example.com", SMS: "+41446681800"})
        spec = reach_pb2.IntentSpec(user_id="u1", scene="order_shipped", variables_json='{"order_id": "7"}')
        intent_id = (await agent.submit(spec)).intent_id
        item = intent(message_pb2.Decision(), intent_id=intent_id)
        second = await line.reaches(item, "SENT", hop=1)
        first = await line.task(item)
        assert (short(first.state), first.reason) == ("FAILED", "no_provider")
        assert (second.channel, second.address) == (EMAIL, "zoe@example.com")
        assert second.idempotency_key != first.idempotency_key

        async def shown() -> bool:
            return (await agent.intent(intent_id)).state == message_pb2.STATE_SENT

        await eventually(shown)
