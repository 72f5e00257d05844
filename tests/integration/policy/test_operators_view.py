"""What operators see and try, over the three services on real gRPC, PostgreSQL and Redis, through the command line."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from redis import Redis

from agent_reach.local import LocalRedis
from agent_reach.v1 import message_pb2, profile_pb2, reach_pb2, suppression_pb2
from tests.conftest import Dsns
from tests.support.agent import Agent
from tests.support.suite import Suite, bearer, eventually, running_suite

EMAIL = message_pb2.CHANNEL_EMAIL
REACH = Path(sys.executable).parent / "reach"


def zone_at(hour: int) -> str:
    """Returns a zone in which it is this hour of the day now."""
    offset = (hour - datetime.now(UTC).hour + 12) % 24 - 12
    return f"Etc/GMT{-offset:+d}" if offset else "Etc/GMT"


NOON, NIGHT = zone_at(12), zone_at(2)


class Operator:
    """Runs commands as the operator of a suite, as processes of their own: they print, and so do the services here."""

    def __init__(self, suite: Suite) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
        self.environment = {
            **kept,
            "REACH_POLICY_TARGET": f"127.0.0.1:{suite.ports['policy']}",
            "REACH_API_KEY": suite.operator_key,
            "COLUMNS": "240",
        }

    async def runs(self, *arguments: str, code: int = 0) -> str:
        """Runs `reach policy …`; returns what it printed, or where it fails what it complained of."""
        process = await asyncio.create_subprocess_exec(
            REACH, "policy", *arguments, env=self.environment, stdout=PIPE, stderr=PIPE
        )
        output, complaint = await process.communicate()
        assert process.returncode == code, complaint.decode()
        return (complaint if code else output).decode()

    async def simulates(self, file: Path, *arguments: str) -> list[dict[str, str]]:
        """Runs a simulation; returns the changes."""
        table = file.with_suffix(".csv")
        await self.runs("simulate", str(file), "--since", "1h", "--csv", str(table), *arguments)
        return list(csv.DictReader(io.StringIO(table.read_text())))


class World:
    """A running suite with an agent, an operator and people."""

    def __init__(self, suite: Suite, dsns: Dsns, tmp_path: Path) -> None:
        self.suite = suite
        self.agent = Agent(suite)
        self.operator = Operator(suite)
        self.policies = Path(suite.settings["config_dir"]) / "policies.yaml"
        self._dsns = dsns
        self._tmp_path = tmp_path

    async def has(self, user_id: str, zone: str) -> None:
        profile = profile_pb2.Profile(
            user_id=user_id,
            addresses=[message_pb2.Address(channel=EMAIL, value=f"{user_id}@example.com")],
            time_zone=zone,
        )
        await self.agent.profiles.UpsertProfiles(
            profile_pb2.UpsertProfilesRequest(profiles=[profile]), metadata=self.agent.metadata
        )

    async def tells(self, user_id: str, *numbers: int) -> list[str]:
        """Tells a user so many things; returns the intents when they are judged."""
        specs = [
            reach_pb2.IntentSpec(
                user_id=user_id,
                scene="order_shipped",
                variables_json=json.dumps({"order_id": f"{user_id}-{number}"}),
            )
            for number in numbers
        ]
        intent_ids = [(await self.agent.submit(spec)).intent_id for spec in specs]

        async def judged() -> bool:
            states = [(await self.agent.intent(intent_id)).state for intent_id in intent_ids]
            return message_pb2.STATE_PENDING not in states

        await eventually(judged)
        return intent_ids

    async def lifts(self, *suppressions: suppression_pb2.Suppression) -> None:
        await self.agent.suppressions.LiftSuppressions(
            suppression_pb2.LiftSuppressionsRequest(suppression_ids=[s.suppression_id for s in suppressions]),
            metadata=bearer(self.suite.operator_key),
        )

    def other(self, *changes: tuple[str, str]) -> Path:
        """Returns a file like the policy in force, with another version and these texts replaced."""
        text = self.policies.read_text().replace("version: 3", "version: 4")
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        file = self._tmp_path / "other.yaml"
        file.write_text(text)
        return file

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self._dsns.engine) as connection:
            return await (await connection.execute(query)).fetchall()


@pytest.fixture
async def world(suite: Suite, migrated: Dsns, tmp_path: Path) -> World:
    suite.own["dispatcher"] = {"null_channels": ("email",)}
    return World(suite, migrated, tmp_path)


async def has_a_history(world: World) -> None:
    """Five messages to a user by day (cap 3), one by night, one while a suppression stood, one after it was lifted."""
    for user, zone in (("day", NOON), ("night", NIGHT), ("quiet", NOON)):
        await world.has(user, zone)
    await world.tells("day", *range(5))
    await world.tells("night", 0)
    standing = (await world.agent.suppresses("quiet")).suppressions
    await world.tells("quiet", 0)
    await world.lifts(*standing)
    await world.tells("quiet", 1)


async def test_a_policy_that_equals_the_one_in_force_changes_nothing_whatever_happened_since(
    world: World, redis_server: LocalRedis
) -> None:
    async with running_suite(world.suite):
        await has_a_history(world)
        before = await state_of(world, redis_server.url)
        # Everything that decides is another now.
        await world.has("night", NOON)
        await world.has("day", NIGHT)
        await world.agent.suppresses("day")
        shown = await world.operator.runs("simulate", str(world.other()), "--since", "1h")
        assert "8 messages replayed, 0 would be decided otherwise" in shown
        # Nor does looking change anything.
        assert await state_of(world, redis_server.url) == before


async def test_another_policy_says_whose_decision_would_change_and_why(world: World) -> None:
    async with running_suite(world.suite):
        await has_a_history(world)
        smaller = await world.operator.simulates(world.other(("user_daily_cap: 3", "user_daily_cap: 2")))
        assert [(c["user_id"], c["gate"], c["actual_action"], c["other_reason"]) for c in smaller] == [
            ("day", "frequency", "send_now", "user_daily_cap")
        ]
        # The fourth gets the place that there is now, so the fifth gets none again.
        larger = await world.operator.simulates(world.other(("user_daily_cap: 3", "user_daily_cap: 4")))
        assert [(c["actual_reason"], c["other_action"]) for c in larger] == [("user_daily_cap", "send_now")]
        at_night = world.other(('quiet_hours: ["22:30", "08:00"]', "quiet_hours: null"))
        shown = await world.operator.runs("simulate", str(at_night), "--since", "1h")
        assert "quiet hours deferred: quiet_hours → sent 1" in " ".join(shown.split())
        assert await world.operator.simulates(at_night, "--scene", "alert") == []


async def test_a_message_that_was_withheld_as_a_duplicate_is_none_that_was_sent(world: World) -> None:
    async with running_suite(world.suite):
        await world.has("day", NOON)
        spec = reach_pb2.IntentSpec(user_id="day", scene="order_shipped", variables_json='{"order_id": "A-1"}')
        for key in ("first", "second"):
            spec.intent_key = key
            ended = await world.agent.ended((await world.agent.submit(spec)).intent_id)
        assert ended.state_reason == "duplicate_content"
        smaller = world.other(("user_daily_cap: 3", "user_daily_cap: 1"))
        shown = await world.operator.runs("simulate", str(smaller), "--since", "1h")
        assert "1 messages replayed, 0 would be decided otherwise" in shown


async def test_asking_about_a_scene_that_nobody_declared_says_so(world: World) -> None:
    async with running_suite(world.suite, "policy", "dispatcher"):
        await world.has("ann", NOON)
        asked = ("ask", "--user", "ann", "--scene", "oder_shipped")
        refused = await world.operator.runs(*asked, code=1)
        assert "--scene: is not declared, and has no template of its own" in refused
        shown = await world.operator.runs(*asked, "--template", "order_shipped")
        assert "send now on email" in shown
        assert "scene=not declared, judged as notification (strict_scenes would refuse it)" in shown
        assert "declared" not in await world.operator.runs("ask", "--user", "ann", "--scene", "order_shipped")


async def test_a_file_with_a_fault_is_refused_with_its_line(world: World) -> None:
    async with running_suite(world.suite, "policy", "dispatcher"):
        file = world.other(("user_daily_cap: 3", "user_daily_cap: many"))
        line = 1 + file.read_text().splitlines().index("    user_daily_cap: many")
        shown = await world.operator.runs("simulate", str(file), code=1)
        assert f"{file}: line {line}: policies.default.user_daily_cap" in shown


async def test_asking_answers_every_gate_and_leaves_no_trace(world: World, redis_server: LocalRedis) -> None:
    async with running_suite(world.suite):
        await has_a_history(world)
        before = await state_of(world, redis_server.url)
        now = datetime.now(UTC)
        full = json.loads(await world.operator.runs("ask", "--user", "day", "--scene", "order_shipped", "--json"))
        assert (full["action"], full["reason"]) == ("ACTION_DROP", "user_daily_cap")
        gates = [entry["gate"] for entry in full["trace"]]
        assert gates == ["GATE_CHANNEL", "GATE_SUPPRESSION", "GATE_QUIET_HOURS", "GATE_FREQUENCY"]
        tomorrow = (now + timedelta(days=1)).isoformat()
        free = await world.operator.runs("ask", "--user", "day", "--scene", "order_shipped", "--at", tomorrow)
        assert "send now on email" in free
        midnight = datetime.combine(now.astimezone(ZoneInfo(NOON)).date(), datetime.min.time(), ZoneInfo(NOON))
        night = await world.operator.runs(
            "ask", "--user", "day", "--scene", "order_shipped", "--at", midnight.isoformat()
        )
        assert "it is night where the user is (quiet_hours)" in night
        assert f"zone={NOON}  zone_source=profile" in night
        bare = await world.operator.runs("ask", "--address", "new@example.com", "--scene", "verify_code")
        assert "such messages are not counted (category_exempt)" in bare
        assert await state_of(world, redis_server.url) == before


async def test_a_question_about_a_past_moment_is_answered_by_what_stood_then(world: World) -> None:
    async with running_suite(world.suite):
        await world.has("ann", NOON)
        standing = (await world.agent.suppresses("ann")).suppressions
        await world.lifts(*standing)
        ((created_at, lifted_at),) = await world.rows("SELECT created_at, lifted_at FROM policy.suppressions")
        asked = ("ask", "--user", "ann", "--scene", "order_shipped", "--json", "--at")
        then = json.loads(await world.operator.runs(*asked, (created_at + (lifted_at - created_at) / 2).isoformat()))
        assert then["reason"] == "user_unsubscribed"
        now = json.loads(await world.operator.runs(*asked, datetime.now(UTC).isoformat()))
        assert now["action"] == "ACTION_SEND_NOW"


async def test_counters_are_shown_and_cleared_with_an_audit_and_stay_cleared_when_redis_is_emptied(
    world: World, redis_server: LocalRedis
) -> None:
    async with running_suite(world.suite):
        await world.has("day", NOON)
        sent = await world.tells("day", *range(3))
        for intent_id in sent:
            await world.agent.ended(intent_id)
        shown = await world.operator.runs("counters", "day", "--json")
        counted = [json.loads(line) for line in shown.splitlines()]
        assert {entry["intent_id"] for entry in counted} == set(sent)
        assert {(entry["channel"], entry["category"]) for entry in counted} == {
            ("CHANNEL_EMAIL", "CATEGORY_NOTIFICATION")
        }
        cleared = await world.operator.runs("counters", "day", "--clear", "--reason", "a test sent these")
        assert "day: 3 messages count no more." in cleared
        assert await world.rows("SELECT tenant, user_id, cleared_by, reason, cleared FROM policy.counter_clears") == [
            ("acme", "day", "the-operator", "a test sent these", 3)
        ]
        forget(redis_server.url, world.suite)
        assert "Nothing counts" in await world.operator.runs("counters", "day")
        (again,) = await world.tells("day", 9)
        assert (await world.agent.ended(again)).state == message_pb2.STATE_SENT


async def test_a_bare_address_finds_the_counters_of_the_user_that_it_makes(world: World) -> None:
    async with running_suite(world.suite):
        spec = reach_pb2.IntentSpec(scene="alert", variables_json='{"title": "Disk full", "detail": "db-1"}')
        spec.address.channel, spec.address.value = EMAIL, "ada@example.com"
        intent_id = (await world.agent.submit(spec)).intent_id
        await world.agent.ended(intent_id)
        # However it is written.
        shown = await world.operator.runs("counters", "email:Ada@Example.COM")
        (line,) = [line for line in shown.splitlines() if intent_id in line]
        assert line.split()[:2] == [intent_id, "email:Ada@Example.COM"]
        cleared = await world.operator.runs("counters", "email:ada@example.com", "--clear", "--reason", "a test")
        assert "email:ada@example.com: 1 messages count no more." in cleared
        assert "Nothing counts" in await world.operator.runs("counters", "email:ada@example.com")


async def test_an_agent_may_ask_but_neither_see_nor_clear_counters(world: World) -> None:
    async with running_suite(world.suite, "policy", "dispatcher"):
        await world.has("ann", NOON)
        world.operator.environment["REACH_API_KEY"] = world.suite.agent_key
        await world.operator.runs("ask", "--user", "ann", "--scene", "order_shipped")
        for arguments in (
            ("show",),
            ("counters", "ann"),
            ("counters", "ann", "--clear", "--reason", "x"),
            ("shadow",),
        ):
            assert "permission denied" in await world.operator.runs(*arguments, code=1)


async def test_the_version_in_force_is_shown_for_every_process(world: World) -> None:
    async with running_suite(world.suite):

        async def shown() -> list[dict[str, Any]]:
            lines = (await world.operator.runs("show", "--json")).splitlines()
            return [json.loads(line) for line in lines] if len(lines) == 3 else []

        processes = await eventually(shown)
        assert [process["role"] for process in processes] == ["dispatcher", "intake", "policy"]
        assert len({process["policy_version"] for process in processes}) == 1
        assert {process["revision"] for process in processes} == {3}
        table = await world.operator.runs("show")
        assert processes[0]["policy_version"][:12] in table


async def test_a_policy_in_shadow_decides_beside_and_what_differs_is_listed(world: World) -> None:
    world.other(("user_daily_cap: 3", "user_daily_cap: 1")).rename(world.policies.parent / "shadow.yaml")
    world.policies.write_text(world.policies.read_text() + "\nshadow: {file: shadow.yaml, share: 1}\n")
    async with running_suite(world.suite):
        await world.has("day", NOON)
        sent = await world.tells("day", *range(4))
        states = [(await world.agent.ended(intent_id)).state for intent_id in sent]
        assert Counter(states) == {message_pb2.STATE_SENT: 3, message_pb2.STATE_SUPPRESSED: 1}

        async def recorded() -> list[dict[str, Any]]:
            lines = (await world.operator.runs("shadow", "--json")).splitlines()
            return [json.loads(line) for line in lines] if len(lines) == 2 else []

        changes = await eventually(recorded)
        # Both let one through, and both drop the fourth.
        left = {i for i, state in zip(sent, states, strict=True) if state == message_pb2.STATE_SENT}
        assert {change["intent_id"] for change in changes} < left
        assert {change["gate"] for change in changes} == {"GATE_FREQUENCY"}
        assert {change["other"]["reason"] for change in changes} == {"user_daily_cap"}
        assert changes[0]["other"]["policy_version"] != changes[0]["actual"]["policy_version"]
        assert "dropped: user_daily_cap" in await world.operator.runs("shadow", "--scene", "order_shipped")
        assert (await world.operator.runs("shadow", "--scene", "alert", "--json")) == ""


async def state_of(world: World, redis_url: str) -> dict[str, Any]:
    """Returns all that a judgement could have left behind."""
    state: dict[str, Any] = {}
    for table in ("dispatcher.tasks", "dispatcher.outcomes", "policy.counter_clears", "policy.shadow_decisions"):
        state[table] = (await world.rows(f"SELECT count(*) FROM {table}"))[0][0]
    prefix = f"reach:{world.suite.settings['deployment']}:"
    with Redis.from_url(redis_url) as client:
        for key in client.scan_iter(f"{prefix}*"):
            kind = client.type(key)
            if kind == b"zset":
                state[key] = client.zrange(key, 0, -1, withscores=True)
            elif b"quota" in key or b"tenant" in key:
                state[key] = client.hgetall(key)
    return state


def forget(redis_url: str, suite: Suite) -> None:
    """Empties the part of Redis that is this suite's."""
    with Redis.from_url(redis_url) as client:
        for key in client.scan_iter(f"reach:{suite.settings['deployment']}:*"):
            client.delete(key)
