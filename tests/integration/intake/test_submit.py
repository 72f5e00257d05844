"""Submitting: once whatever is repeated, each item for itself, and nothing half-written."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agent_reach.v1 import message_pb2, reach_pb2
from services.chassis.clock import ManualClock
from tests.conftest import Dsns
from tests.support.agent import Agent, alert_spec
from tests.support.suite import CONFIG, Suite, bearer, eventually, running_suite
from tests.support.webhooks import receiving


def rows(dsns: Dsns, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsns.engine) as connection:
        return connection.execute(query).fetchall()


def refusal_of(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.BadRequest]:
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in rpc_status.from_call(error).details:
        detail.Unpack(info)
        detail.Unpack(bad)
    return info, bad


async def test_fifty_identical_submits_at_the_same_instant_are_one_message(suite: Suite, migrated: Dsns) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        spec = alert_spec("u1", intent_key="once")
        answers = await asyncio.gather(*(agent.submit(spec) for _ in range(50)))
        assert len({answer.intent_id for answer in answers}) == 1
        assert sum(not answer.duplicate for answer in answers) == 1
        assert (await agent.ended(answers[0].intent_id)).state == message_pb2.STATE_SENT
        assert len(receiver.posts) == 1
        assert rows(migrated, "SELECT count(*) FROM intake.intents") == [(1,)]
        assert rows(migrated, "SELECT count(*) FROM dispatcher.tasks") == [(1,)]


@pytest.mark.parametrize("minutes", [5, 59])
async def test_the_same_content_without_a_key_is_one_message_within_the_window(suite: Suite, minutes: int) -> None:
    """Also over the full hour, where the border between two buckets lies."""
    suite.clock = clock = ManualClock(datetime(2026, 5, 4, 10, 50, tzinfo=UTC))
    async with running_suite(suite):
        agent = Agent(suite)
        first = await agent.submit(alert_spec("u1"))
        clock.advance(minutes * 60)
        again = await agent.submit(alert_spec("u1"))
        assert (again.intent_id, again.duplicate) == (first.intent_id, True)
        other = await agent.submit(alert_spec("u1", title="Disk empty"))
        assert not other.duplicate


async def test_the_same_content_after_the_window_is_a_new_message(suite: Suite) -> None:
    suite.clock = clock = ManualClock(datetime(2026, 5, 4, 10, 50, tzinfo=UTC))
    async with running_suite(suite):
        agent = Agent(suite)
        first = await agent.submit(alert_spec("u1"))
        clock.advance(61 * 60)
        assert (await agent.submit(alert_spec("u1"))).intent_id != first.intent_id


async def test_the_same_key_with_other_content_is_refused_and_the_first_untouched(suite: Suite) -> None:
    async with running_suite(suite):
        agent = Agent(suite)
        first = await agent.submit(alert_spec("u1", intent_key="k"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await agent.submit(alert_spec("u1", title="Other", intent_key="k"))
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        info, _ = refusal_of(refused.value)
        assert (info.reason, info.metadata["intent_id"]) == ("INTENT_KEY_REUSED", first.intent_id)
        assert json.loads((await agent.intent(first.intent_id)).spec.variables_json)["title"] == "Disk full"


async def test_one_key_may_be_used_by_two_tenants(suite: Suite) -> None:
    async with running_suite(suite):
        agent = Agent(suite)
        mine = await agent.submit(alert_spec("u1", intent_key="k"))
        theirs = await agent.reach.Submit(
            reach_pb2.SubmitRequest(intent=alert_spec("u1", title="Theirs", intent_key="k")),
            metadata=bearer(suite.other_tenant_key),
        )
        assert not theirs.duplicate
        assert theirs.intent_id != mine.intent_id


async def test_where_scenes_are_strict_one_that_nobody_declared_is_refused_by_its_field(
    suite: Suite, migrated: Dsns, tmp_path: Path
) -> None:
    folder = tmp_path / "strict"
    shutil.copytree(CONFIG, folder)
    with (folder / "policies.yaml").open("a") as file:
        file.write("strict_scenes: true\ntenants: {other: {strict_scenes: false}}\n")
    suite.settings["config_dir"] = folder
    async with running_suite(suite):
        agent = Agent(suite)
        spec = alert_spec("u1", template="alert")
        await agent.submit(spec)
        spec.scene = "oder_shipped"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await agent.submit(spec)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        _, bad = refusal_of(refused.value)
        assert [(each.field, each.description) for each in bad.field_violations] == [
            ("intent.scene", "is not declared, and this installation is strict about scenes")
        ]
        await agent.reach.Submit(reach_pb2.SubmitRequest(intent=spec), metadata=bearer(suite.other_tenant_key))
        assert rows(migrated, "SELECT tenant, scene FROM intake.intents ORDER BY 1") == [
            ("acme", "alert"),
            ("other", "oder_shipped"),
        ]


async def test_a_missing_variable_is_named(suite: Suite) -> None:
    async with running_suite(suite):
        agent = Agent(suite)
        spec = reach_pb2.IntentSpec(user_id="u1", scene="alert", variables_json='{"title": "x"}')
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await agent.submit(spec)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        info, bad = refusal_of(refused.value)
        assert (info.reason, info.metadata["missing"]) == ("VARIABLE_MISSING", "detail")
        assert bad.field_violations[0].field == "intent.variables_json"
        assert "detail" in bad.field_violations[0].description


_BAD = {
    "NUL character": {"title": "a\x00b"},
    "lone surrogate": {"title": "a\ud800b"},
}


async def test_bad_items_in_a_batch_of_500_are_refused_and_the_others_accepted(suite: Suite) -> None:
    async with running_suite(suite):
        agent = Agent(suite)
        batch = [alert_spec(f"u{number}") for number in range(500)]
        for place, (text, variables) in zip((7, 250), _BAD.items(), strict=True):
            batch[place].variables_json = json.dumps({**variables, "detail": text})
        batch[499].intent_key = "k" * 257
        (answer,) = await agent.submit_batches([batch])
        refused = {place: result.error for place, result in enumerate(answer.results) if result.HasField("error")}
        assert set(refused) == {7, 250, 499}
        assert len({result.accepted.intent_id for result in answer.results if result.HasField("accepted")}) == 497
        assert "NUL character" in refused[7].message
        assert "lone surrogate" in refused[250].message
        assert "intents[499].intent_key" in refused[499].message


async def test_a_text_that_only_postgresql_refuses_spoils_no_other(suite: Suite, migrated: Dsns) -> None:
    """What validation does not know of yet is found by halving."""
    with psycopg.connect(migrated.owner, autocommit=True) as connection:
        connection.execute("ALTER TABLE intake.intents ADD CHECK (user_id <> 'u13')")
    async with running_suite(suite):
        (answer,) = await Agent(suite).submit_batches([[alert_spec(f"u{number}") for number in range(100)]])
        refused = [place for place, result in enumerate(answer.results) if result.HasField("error")]
        assert refused == [13]


async def test_overlapping_batches_of_eight_clients_meet_no_deadlock(suite: Suite, migrated: Dsns) -> None:
    async with running_suite(suite):
        agents = [Agent(suite) for _ in range(8)]
        specs = [alert_spec(f"u{number}", intent_key=f"k{number}") for number in range(200)]
        batches = [
            specs[shift:] + specs[:shift] if turn % 2 else specs[::-1] for turn, shift in enumerate(range(0, 200, 25))
        ]
        answers = await asyncio.gather(
            *(agent.submit_batches([batch] * 3) for agent, batch in zip(agents, batches, strict=True))
        )
        results = [result for answer in answers for page in answer for result in page.results]
        assert all(result.HasField("accepted") for result in results)
        assert len({result.accepted.intent_id for result in results}) == 200
        assert rows(migrated, "SELECT count(*) FROM intake.intents") == [(200,)]


async def test_the_same_key_twice_in_one_batch_is_one_intent(suite: Suite) -> None:
    async with running_suite(suite):
        same, other = alert_spec("u1", intent_key="k"), alert_spec("u1", title="Other", intent_key="k")
        (answer,) = await Agent(suite).submit_batches([[same, same, other]])
        first, second, third = answer.results
        assert (first.accepted.duplicate, second.accepted.duplicate) == (False, True)
        assert first.accepted.intent_id == second.accepted.intent_id
        assert third.error.code == grpc.StatusCode.ALREADY_EXISTS.value[0]


async def test_a_pump_that_died_after_accept_makes_no_second_task(suite: Suite, migrated: Dsns) -> None:
    """Intake goes between Accept and noting it; the clock passes the full hour, policy and template change."""
    suite.clock = clock = ManualClock(datetime.now(UTC).replace(minute=55))
    suite.settings["drain_seconds"] = 0.0
    with psycopg.connect(migrated.owner, autocommit=True) as owner:
        # While the test holds the gate, intake can store the intent but not note that it is done.
        owner.execute(
            """
            CREATE FUNCTION intake.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$;
            CREATE TRIGGER gate BEFORE UPDATE ON intake.intents FOR EACH ROW
            WHEN (NEW.finished_at IS NOT NULL) EXECUTE FUNCTION intake.wait_at_gate()
            """
        )
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        with psycopg.connect(migrated.engine) as blocker:
            blocker.execute("SELECT pg_advisory_xact_lock(4711)")
            intent_id = (await agent.submit(alert_spec("u1"))).intent_id

            async def sent() -> bool:
                return bool(rows(migrated, "SELECT 1 FROM dispatcher.tasks WHERE state = 'SENT'"))

            await eventually(sent)
            await suite.stop("intake")
            assert rows(migrated, "SELECT finished_at FROM intake.intents") == [(None,)]
        clock.advance(3_600)
        config = suite.settings["config_dir"]
        policies = config / "policies.yaml"
        policies.write_text(policies.read_text().replace("user_daily_cap: 3", "user_daily_cap: 2"))
        template = config / "templates" / "alert" / "webhook.json.j2"
        template.write_text(template.read_text().replace('"kind": "alert"', '"kind": "alarm"'))
        await suite.start("intake")

        async def noted() -> bool:
            return rows(migrated, "SELECT finished_at IS NOT NULL FROM intake.intents") == [(True,)]

        await eventually(noted, timeout_seconds=60)
        assert (await agent.ended(intent_id)).state == message_pb2.STATE_SENT
        assert rows(migrated, "SELECT count(*) FROM dispatcher.tasks") == [(1,)]
        assert len(receiver.posts) == 1


async def test_an_intent_without_a_valid_recipient_is_refused_per_field(suite: Suite) -> None:
    async with running_suite(suite):
        agent = Agent(suite)
        spec = reach_pb2.IntentSpec(scene="Bad Scene", variables_json="[1]", channels=[message_pb2.CHANNEL_EMAIL] * 2)
        spec.priority = 10
        spec.expires_at.FromDatetime(datetime.now(UTC) - timedelta(seconds=1))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await agent.submit(spec)
        _, bad = refusal_of(refused.value)
        fields = {violation.field.removeprefix("intent.") for violation in bad.field_violations}
        assert fields == {"user_id", "scene", "variables_json", "channels[1]", "priority", "expires_at"}


async def test_a_bare_address_is_its_own_user_and_does_not_show_in_it(suite: Suite, migrated: Dsns) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        spec = alert_spec("")
        spec.address.channel, spec.address.value = message_pb2.CHANNEL_WEBHOOK, f"{receiver.url}/secret-path"
        intent_id = (await agent.submit(spec)).intent_id
        assert (await agent.ended(intent_id)).state == message_pb2.STATE_SENT
        ((user_id,),) = rows(migrated, "SELECT user_id FROM intake.intents")
        assert user_id.startswith("address:")
        assert "secret-path" not in user_id


async def test_a_cancelled_intent_never_leaves(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher", "intake"):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        # Without a policy the intent waits; the cancellation comes first.
        await suite.stop("policy")
        intent_id = (await agent.submit(alert_spec("u1"))).intent_id
        request = reach_pb2.CancelIntentRequest(intent_id=intent_id)
        assert (await agent.reach.CancelIntent(request, metadata=agent.metadata)).intent.intent_id == intent_id
        await suite.start("policy")
        intent = await agent.ended(intent_id)
        assert (intent.state, intent.state_reason) == (message_pb2.STATE_SUPPRESSED, "cancelled")
        assert not receiver.posts
        sent = (await agent.submit(alert_spec("u1", title="Second"))).intent_id
        await agent.ended(sent)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await agent.reach.CancelIntent(reach_pb2.CancelIntentRequest(intent_id=sent), metadata=agent.metadata)
        assert late.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_intents_are_found_by_user_agent_scene_state_and_time_in_pages(suite: Suite) -> None:
    async with running_suite(suite):
        agent = Agent(suite)
        await agent.submit_batches([[alert_spec(f"u{number % 3}", title=str(number)) for number in range(30)]])

        async def listed(**filters: Any) -> list[str]:
            found, token = [], ""
            while True:
                page = await agent.reach.ListIntents(
                    reach_pb2.ListIntentsRequest(page_size=4, page_token=token, **filters), metadata=agent.metadata
                )
                found += [intent.intent_id for intent in page.intents]
                token = page.next_page_token
                if not token:
                    return found

        assert len(set(await listed())) == len(await listed()) == 30
        assert len(await listed(user_id="u1", agent="the-agent", scene="alert")) == 10
        assert await listed(agent="somebody") == []

        async def all_failed() -> bool:
            return len(await listed(state=message_pb2.STATE_SUPPRESSED)) == 30

        await eventually(all_failed)  # nobody has an address


async def test_outcomes_are_watched_from_a_cursor_over_a_restart_of_the_dispatcher(suite: Suite) -> None:
    async with running_suite(suite):
        agent = Agent(suite)
        stream = agent.reach.WatchOutcomes(reach_pb2.WatchOutcomesRequest(), metadata=agent.metadata)
        first = (await agent.submit(alert_spec("u1"))).intent_id
        seen: list[str] = []
        while first not in seen:
            seen += [outcome.intent_id for outcome in (await stream.read()).outcomes]
        await suite.stop("dispatcher")
        await suite.start("dispatcher")
        second = (await agent.submit(alert_spec("u2"))).intent_id
        while second not in seen:
            seen += [outcome.intent_id for outcome in (await stream.read()).outcomes]
        stream.cancel()
        assert seen.count(first) == 1
        other = agent.reach.WatchOutcomes(
            reach_pb2.WatchOutcomesRequest(), metadata=bearer(suite.other_tenant_key), timeout=7
        )
        assert not (await other.read()).outcomes, "a checkpoint, and nothing of another tenant"
        other.cancel()


async def test_an_intents_own_template_decides_which_channels_can_serve_it(suite: Suite) -> None:
    """The scene's template has no webhook; the one that the intent names has."""
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        variables = json.dumps({"title": "Parcel lost", "detail": "A-1"})
        spec = reach_pb2.IntentSpec(user_id="u1", scene="order_lost", template="alert", variables_json=variables)
        intent_id = (await agent.submit(spec)).intent_id

        async def task_made() -> bool:
            return bool((await agent.explained(intent_id)).tasks)

        await eventually(task_made)
        (task,) = (await agent.explained(intent_id)).tasks
        assert task.channel == message_pb2.CHANNEL_WEBHOOK


async def test_an_integer_of_any_size_reaches_the_person_as_it_is(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite):
        agent = Agent(suite)
        await agent.has_users(["u1"], f"{receiver.url}/hook")
        spec = alert_spec("u1")
        spec.variables_json = json.dumps({"title": "Ledger", "detail": 10**30 + 1})
        assert (await agent.ended((await agent.submit(spec)).intent_id)).state == message_pb2.STATE_SENT
        assert json.loads(receiver.posts[0].body)["detail"] == 10**30 + 1


def _raw_batch(*specs: bytes) -> bytes:
    """A batch as it stands on the wire, whatever stands in its intents."""
    batch = reach_pb2.SubmitStreamRequest(sequence=7).SerializeToString()
    for raw in specs:
        assert len(raw) < 128
        batch += b"\x12" + bytes([len(raw)]) + raw
    return batch


async def test_a_text_that_is_not_utf_8_spoils_no_other_intent_of_its_batch(suite: Suite) -> None:
    """As a client writes it that does not check: half a surrogate pair, encoded."""
    good = reach_pb2.IntentSpec(user_id="u1", scene="alert", variables_json='{"title": "t", "detail": "d"}')
    raw = good.SerializeToString()
    bad = raw.replace(b"u1", b"\xed\xa0")
    async with running_suite(suite):
        method: Any = suite.channel("intake").stream_stream(
            "/agent_reach.v1.ReachService/SubmitStream",
            response_deserializer=reach_pb2.SubmitStreamResponse.FromString,
        )
        call = method(metadata=bearer(suite.agent_key))
        await call.write(_raw_batch(raw, bad, raw))
        answer = await call.read()
        await call.done_writing()
    assert answer.sequence == 7
    assert [result.HasField("accepted") for result in answer.results] == [True, False, True]
    assert "intents[1]" in answer.results[1].error.message
    assert "UTF-8" in answer.results[1].error.message


@pytest.mark.parametrize(("key", "code"), [("", "UNAUTHENTICATED"), ("agent", "INVALID_ARGUMENT")])
async def test_what_is_no_message_is_refused_after_the_key(suite: Suite, key: str, code: str) -> None:
    async with running_suite(suite):
        method: Any = suite.channel("intake").unary_unary("/agent_reach.v1.ReachService/Submit")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(b"\xff\xff", metadata=bearer(suite.agent_key) if key else None)
    assert refused.value.code().name == code
    assert "DecodeError" not in (refused.value.details() or "")


@pytest.mark.parametrize("fields", [{"state": 99}, {"created_from": 2**62}, {"created_before": -(2**40)}])
async def test_a_filter_that_makes_no_sense_is_named(suite: Suite, fields: dict[str, int]) -> None:
    request = reach_pb2.ListIntentsRequest()
    for name, value in fields.items():
        if name == "state":
            request.MergeFromString(b"\x20\x63")
        else:
            getattr(request, name).seconds = value
    async with running_suite(suite):
        agent = Agent(suite)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await agent.reach.ListIntents(request, metadata=agent.metadata)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal_of(refused.value)[1].field_violations[0].field == next(iter(fields))


async def test_every_outcome_carries_the_cursor_right_after_it(suite: Suite) -> None:
    async with running_suite(suite):
        agent = Agent(suite)
        intent_id = (await agent.submit(alert_spec("u1"))).intent_id
        await agent.ended(intent_id)
        stream = agent.reach.WatchOutcomes(reach_pb2.WatchOutcomesRequest(), metadata=agent.metadata)
        outcomes = list((await stream.read()).outcomes)
        await agent.submit(alert_spec("u2"))
        stream.cancel()
        again = agent.reach.WatchOutcomes(
            reach_pb2.WatchOutcomesRequest(cursor=outcomes[0].cursor), metadata=agent.metadata
        )
        resumed = list((await again.read()).outcomes)
        again.cancel()
    assert all(outcome.cursor for outcome in outcomes)
    assert [outcome.intent_id for outcome in resumed].count(intent_id) == len(outcomes) - 1
