"""Suppressions: by user, address, channel and category, heeded by both looks; listed, checked and lifted with an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import grpc
import psycopg
import pytest
from psycopg.rows import dict_row

from agent_reach.v1 import (
    message_pb2,
    policy_pb2,
    profile_pb2,
    suppression_pb2,
    suppression_pb2_grpc,
)
from services.catalog.rules import Channel
from services.policy import lookup
from services.policy import store as statements
from services.policy.decision import Address, SuppressionSource
from services.policy.records import SuppressionPage, Wish
from services.policy.store import PolicyStore

from .support import Served
from .test_preferences import choose, chosen, last_look
from .test_server import AGENT, OPERATOR, STRANGER, address, evaluate, evaluation, suppress, upsert, violations

EMAIL, SMS = message_pb2.CHANNEL_EMAIL, message_pb2.CHANNEL_SMS
MARKETING, NOTIFICATION = message_pb2.CATEGORY_MARKETING, message_pb2.CATEGORY_NOTIFICATION
VERIFICATION = message_pb2.CATEGORY_VERIFICATION
IMPORTED = suppression_pb2.SUPPRESSION_SOURCE_IMPORT
MAIL, TEXT = "ann@example.com", "+41446681800"

# What is judged: scene, its category, the channel that it takes, and the address there.
MESSAGES = {
    "notification by mail": ("order_shipped", NOTIFICATION, EMAIL, MAIL),
    "notification by text": ("text", NOTIFICATION, SMS, TEXT),
    "marketing by mail": ("sale", MARKETING, EMAIL, MAIL),
    "code by mail": ("code", VERIFICATION, EMAIL, MAIL),
}


def about(**fields: Any) -> suppression_pb2.Suppression:
    return suppression_pb2.Suppression(source=IMPORTED, **fields)


@pytest.mark.parametrize(
    ("suppression", "withheld"),
    [
        pytest.param(
            about(user_id="ann"),
            {"notification by mail", "notification by text", "marketing by mail"},
            id="a user",
        ),
        pytest.param(about(user_id="ann", channel=SMS), {"notification by text"}, id="a user on one channel"),
        pytest.param(about(user_id="ann", category=MARKETING), {"marketing by mail"}, id="a user's category"),
        pytest.param(about(user_id="ann", category=VERIFICATION), {"code by mail"}, id="verification by its name"),
        pytest.param(
            about(user_id="ann", category=MARKETING, channel=SMS), set[str](), id="a category on another channel"
        ),
        pytest.param(
            about(address=address("ANN@example.com")),
            {"notification by mail", "marketing by mail"},
            id="an address, however it is written",
        ),
        pytest.param(
            about(address=address(MAIL), category=MARKETING), {"marketing by mail"}, id="an address' category"
        ),
        pytest.param(about(address=address("+41 44 668 18 00", SMS)), {"notification by text"}, id="a phone number"),
        pytest.param(about(user_id="bob"), set[str](), id="somebody else"),
    ],
)
async def test_a_suppression_is_heeded_by_the_decision_and_by_the_last_look(
    served: Served, suppression: suppression_pb2.Suppression, withheld: set[str]
) -> None:
    await upsert(
        served, profile_pb2.Profile(user_id="ann", addresses=[address(MAIL), address(TEXT, SMS)], time_zone="UTC")
    )
    await suppress(served, suppression)
    decisions = (
        await evaluate(
            served,
            *(
                evaluation(f"i{number}", scene=scene, channels=[channel])
                for number, (scene, _, channel, _) in enumerate(MESSAGES.values())
            ),
        )
    ).decisions
    last = await last_look(
        served,
        *(
            policy_pb2.CheckSuppressedItem(
                tenant="acme", user_id="ann", category=category, scene=scene, address=address(value, channel)
            )
            for scene, category, channel, value in MESSAGES.values()
        ),
    )
    kind = "user" if suppression.user_id else "address"
    for name, decision, reason in zip(MESSAGES, decisions, last, strict=True):
        expected = f"{kind}_suppressed" if name in withheld else ""
        assert (decision.reason, reason) == (expected, expected), name


async def test_an_address_that_is_suppressed_is_withheld_from_its_users_and_from_nobody_in_particular(
    served: Served,
) -> None:
    await upsert(served, profile_pb2.Profile(user_id="ann", addresses=[address(MAIL)]))
    await suppress(served, about(address=address(MAIL)))
    bare = evaluation("i2", user_id="email:some-pseudonym", address=address("Ann@Example.com "))
    other = evaluation("i3", user_id="email:other-pseudonym", address=address("bob@example.com"))
    decisions = (await evaluate(served, evaluation("i1"), bare, other)).decisions
    assert [decision.reason for decision in decisions] == ["address_suppressed", "address_suppressed", ""]
    looks = await last_look(
        served,
        *(
            policy_pb2.CheckSuppressedItem(
                tenant="acme", user_id=user, category=NOTIFICATION, address=address("ANN@EXAMPLE.COM")
            )
            for user in ("ann", "email:some-pseudonym", "")
        ),
    )
    assert looks == ["address_suppressed"] * 3


# -- questions ------------------------------------------------------------------------------------------------------


async def ask(served: Served, *queries: suppression_pb2.SuppressionQuery, key: str = AGENT) -> list[tuple[str, str]]:
    """Asks; returns reasons, each with the user or the address that the suppression names."""
    stub = suppression_pb2_grpc.SuppressionServiceStub(served.channel)
    request = suppression_pb2.CheckSuppressionsRequest(queries=queries)
    response = await stub.CheckSuppressions(request, metadata=served.metadata(key))
    return [
        (answer.reason, answer.suppression.user_id or answer.suppression.address.value) for answer in response.answers
    ]


def question(user_id: str = "", **fields: Any) -> suppression_pb2.SuppressionQuery:
    return suppression_pb2.SuppressionQuery(user_id=user_id, **fields)


async def test_questions_are_answered_by_what_would_withhold_and_change_nothing(served: Served) -> None:
    await upsert(
        served,
        profile_pb2.Profile(user_id="ann", addresses=[address(MAIL), address(TEXT, SMS)]),
        profile_pb2.Profile(user_id="bob", addresses=[address("bob@example.com")]),
    )
    await suppress(
        served,
        about(address=address(TEXT, SMS)),
        about(user_id="bob", category=MARKETING),
        about(user_id="carol", channel=EMAIL),
    )
    await choose(served, chosen("dora", category=NOTIFICATION, channel=EMAIL))
    assert await ask(
        served,
        question("ann"),
        question("ann", channel=EMAIL),
        question("ann", channel=SMS),
        question("ann", channel=SMS, category=VERIFICATION),
        question("bob"),
        question("bob", category=MARKETING),
        question("carol"),
        question("carol", channel=EMAIL),
        question("carol", channel=SMS),
        question("dora"),
        question("dora", channel=SMS),
        question(address=address("+41 44 668 18 00", SMS)),
        question(address=address("nobody@example.com")),
        question("bob", address=address(TEXT, SMS)),
    ) == [
        ("address_suppressed", TEXT),
        ("", ""),
        ("address_suppressed", TEXT),
        ("", ""),
        ("", ""),
        ("user_suppressed", "bob"),
        ("user_suppressed", "carol"),
        ("user_suppressed", "carol"),
        ("", ""),
        ("preference_opted_out", ""),
        ("", ""),
        ("address_suppressed", TEXT),
        ("", ""),
        ("address_suppressed", TEXT),
    ]
    assert await ask(served, question("carol"), key=STRANGER) == [("", "")]
    assert not served.dispatcher.awaited[2:], "questions wait for nothing"


async def test_wrong_questions_are_named(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(
            served,
            question(),
            question("ann", category=99),
            question("ann", address=address("no address")),
            question("ann", address=address(MAIL), channel=SMS),
        )
    assert set(violations(caught.value)) == {
        "queries[0].user_id",
        "queries[1].category",
        "queries[2].address.value",
        "queries[3].channel",
    }


# -- lists and the audit --------------------------------------------------------------------------------------------


async def test_the_audit_keeps_who_lifted_what_and_when(served: Served) -> None:
    await suppress(served, about(user_id="ann"), about(user_id="bob"))
    stub = suppression_pb2_grpc.SuppressionServiceStub(served.channel)

    async def listed(**filters: Any) -> list[suppression_pb2.Suppression]:
        request = suppression_pb2.ListSuppressionsRequest(**filters)
        return list((await stub.ListSuppressions(request, metadata=served.metadata(AGENT))).suppressions)

    (ann,) = await listed(user_id="ann")
    assert not ann.HasField("lifted_at")
    request = suppression_pb2.LiftSuppressionsRequest(suppression_ids=[ann.suppression_id])
    await stub.LiftSuppressions(request, metadata=served.metadata(OPERATOR))
    assert [entry.user_id for entry in await listed()] == ["bob"]
    assert not await listed(user_id="ann")
    assert {entry.user_id for entry in await listed(include_lifted=True)} == {"ann", "bob"}
    (lifted,) = await listed(user_id="ann", include_lifted=True)
    assert (lifted.created_by, lifted.lifted_by) == (AGENT, OPERATOR)
    assert lifted.lifted_at.ToMicroseconds() >= lifted.created_at.ToMicroseconds()
    await suppress(served, about(user_id="ann"))
    assert [entry.lifted_by for entry in await listed(user_id="ann", include_lifted=True)] == ["", OPERATOR]


async def test_lists_are_filtered_by_source_and_address(store: PolicyStore) -> None:
    mail = Address(Channel.EMAIL, MAIL)
    await store.suppress(
        "acme",
        [
            Wish(SuppressionSource.BOUNCE, address=mail),
            Wish(SuppressionSource.IMPORT, address=mail),
            Wish(SuppressionSource.IMPORT, user_id="ann"),
        ],
        "list",
    )
    by_source = await store.list_suppressions("acme", SuppressionPage(source=SuppressionSource.IMPORT), 10)
    assert {entry.wish.user_id for entry in by_source} == {"", "ann"}
    both = SuppressionPage(source=SuppressionSource.IMPORT, address=mail)
    (entry,) = await store.list_suppressions("acme", both, 10)
    assert (entry.wish.source, entry.wish.address) == (SuppressionSource.IMPORT, mail)
    await store.lift("acme", [UUID(entry.suppression_id)], "operator")
    assert await store.list_suppressions("acme", both, 10) == []
    (lifted,) = await store.list_suppressions("acme", replace(both, include_lifted=True), 10)
    assert lifted.lifted_by == "operator"


async def test_pages_have_a_size_and_tokens_of_ours(served: Served) -> None:
    stub = suppression_pb2_grpc.SuppressionServiceStub(served.channel)
    for wrong, field in (
        ({"page_size": 1_001}, "page_size"),
        ({"page_token": "x"}, "page_token"),
        ({"source": 99}, "source"),
    ):
        request = suppression_pb2.ListSuppressionsRequest(**wrong)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListSuppressions(request, metadata=served.metadata(AGENT))
        assert set(violations(caught.value)) == {field}


# -- at size --------------------------------------------------------------------------------------------------------


def test_among_fifty_thousand_every_lookup_goes_by_an_index(migrated: Any) -> None:
    with psycopg.connect(migrated.engine, autocommit=True) as connection:
        connection.execute(
            """
            INSERT INTO policy.suppressions (id, tenant, user_id, address_channel, address, source, created_by)
            SELECT gen_random_uuid(), 'acme', CASE WHEN n % 2 = 0 THEN 'u' || n ELSE '' END,
                   CASE WHEN n % 2 = 1 THEN 'email' ELSE '' END,
                   CASE WHEN n % 2 = 1 THEN 'u' || n || '@example.com' ELSE '' END, 'import', 'list'
            FROM generate_series(1, 50_000) AS n
            """
        )
        connection.execute(
            "INSERT INTO policy.preferences (tenant, user_id, opt_in, updated_by)"
            " SELECT 'acme', 'u' || n, false, 'list' FROM generate_series(1, 50_000) AS n"
        )
    with psycopg.connect(migrated.owner, autocommit=True) as connection:
        connection.execute("ANALYZE policy.suppressions, policy.preferences")
    numbers = range(1, 101)
    looked_up = {
        "users": lookup._USERS.encode((number, "acme", f"u{number}") for number in numbers),
        "bare": lookup._BARE.encode((number, "acme", "email", f"u{number}@example.com") for number in numbers),
    }
    wishes = statements._WISHES.encode(
        (UUID(int=number), f"u{number}", "", "", "", "", "import", "") for number in numbers
    )
    page = {
        "tenant": "acme", "user_id": "", "address": "", "address_channel": "", "source": "", "include_lifted": False,
        "before": None, "limit": 1_001,
    }  # fmt: skip
    with psycopg.connect(migrated.engine, autocommit=True, row_factory=dict_row) as connection:
        # As the planner would with more entries than these.
        connection.execute("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0")
        for name, statement, values in (
            ("both looks at a message", lookup._KNOWN, looked_up),
            ("what stands already", statements._READ_WISHES, {"tenant": "acme", "wishes": wishes}),
            ("all, newest first", statements._LIST_SUPPRESSIONS, page),
            ("all with the lifted ones", statements._LIST_SUPPRESSIONS, page | {"include_lifted": True}),
            ("of a user", statements._LIST_SUPPRESSIONS, page | {"user_id": "u2"}),
            (
                "of an address with the lifted ones",
                statements._LIST_SUPPRESSIONS,
                page | {"address_channel": "email", "address": "u1@example.com", "include_lifted": True},
            ),
        ):
            row = connection.execute(f"EXPLAIN (FORMAT JSON) {statement}", values).fetchone()
            assert row is not None
            nodes = list(_nodes(row["QUERY PLAN"][0]["Plan"]))
            scans = {
                node["Node Type"] for node in nodes if node.get("Relation Name") in {"suppressions", "preferences"}
            }
            assert scans, name
            assert scans <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, f"{name}: {scans}"
            # Starting workers takes longer than the lookups themselves.
            assert not {"Gather", "Gather Merge"} & {node["Node Type"] for node in nodes}, name


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
