"""What users choose: stored once per category and channel, heeded to the last moment, and no key to a suppression."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc
import pytest

from agent_reach.v1 import (
    dispatcher_pb2,
    message_pb2,
    policy_pb2,
    policy_pb2_grpc,
    preference_pb2,
    preference_pb2_grpc,
    profile_pb2,
    suppression_pb2,
    suppression_pb2_grpc,
)
from services.catalog.rules import Category, Channel
from services.policy.decision import Preference, UserKey
from services.policy.lookup import Lookup
from services.policy.preference_store import PreferenceStore
from services.policy.records import Choice, Profile
from services.policy.store import PolicyStore

from .support import SERVICE_KEY, Served
from .test_server import AGENT, OPERATOR, STRANGER, evaluate, evaluation, profile, upsert, violations

ANN = UserKey("acme", "ann")
OUT, IN, NONE = preference_pb2.CHOICE_OPT_OUT, preference_pb2.CHOICE_OPT_IN, preference_pb2.CHOICE_NONE
MARKETING, EMAIL = message_pb2.CATEGORY_MARKETING, message_pb2.CHANNEL_EMAIL


@pytest.fixture
def preferences(store: PolicyStore) -> PreferenceStore:
    return PreferenceStore(store._api)


def chosen(user_id: str = "ann", choice: Any = OUT, **limits: Any) -> preference_pb2.Preference:
    return preference_pb2.Preference(user_id=user_id, choice=choice, **limits)


async def choose(
    served: Served, *choices: preference_pb2.Preference, key: str = AGENT
) -> preference_pb2.SetPreferencesResponse:
    stub = preference_pb2_grpc.PreferenceServiceStub(served.channel)
    request = preference_pb2.SetPreferencesRequest(preferences=choices)
    response: preference_pb2.SetPreferencesResponse = await stub.SetPreferences(
        request, metadata=served.metadata(key), timeout=10
    )
    return response


async def stored(served: Served, *users: str, key: str = AGENT) -> list[preference_pb2.Preference]:
    stub = preference_pb2_grpc.PreferenceServiceStub(served.channel)
    request = preference_pb2.GetPreferencesRequest(user_ids=users)
    return list((await stub.GetPreferences(request, metadata=served.metadata(key))).preferences)


async def last_look(served: Served, *items: policy_pb2.CheckSuppressedItem) -> list[str]:
    stub = policy_pb2_grpc.PolicyServiceStub(served.channel)
    request = policy_pb2.CheckSuppressedRequest(items=items)
    call = stub.CheckSuppressed(iter([request]), metadata=served.metadata(SERVICE_KEY))
    (response,) = [response async for response in call]
    return list(response.reasons)


def leaving(user_id: str = "ann", **changes: Any) -> policy_pb2.CheckSuppressedItem:
    values: dict[str, Any] = {
        "tenant": "acme",
        "category": MARKETING,
        "address": message_pb2.Address(channel=EMAIL, value=f"{user_id}@example.com"),
        **changes,
    }
    return policy_pb2.CheckSuppressedItem(user_id=user_id, **values)


async def test_a_choice_replaces_the_one_about_the_same_and_no_other(served: Served) -> None:
    await choose(served, chosen(choice=IN), chosen(choice=IN, category=MARKETING), chosen("bob"))
    await choose(served, chosen(choice=OUT, category=MARKETING), key=OPERATOR)
    own = await stored(served, "ann", "nobody")
    assert [(each.category, each.choice, each.updated_by) for each in own] == [
        (0, IN, AGENT),
        (MARKETING, OUT, OPERATOR),
    ]
    assert not await stored(served, "ann", "bob", key=STRANGER)


async def test_a_choice_that_is_taken_back_is_as_if_it_had_never_been_made(
    preferences: PreferenceStore, directory: Lookup
) -> None:
    made = Choice("ann", Category.MARKETING, None, opt_in=False)
    await preferences.set("acme", [made], "ann")
    assert (await directory.known([ANN], ()))[ANN].preferences == (Preference(Category.MARKETING, None, opt_in=False),)
    (taken,) = await preferences.set("acme", [Choice("ann", Category.MARKETING, None, opt_in=None)], "operator")
    assert (taken.choice.opt_in, taken.updated_by) == (None, "operator")
    assert await directory.known([ANN], ()) == {}
    assert await preferences.get("acme", ["ann"]) == []


async def test_who_opted_out_of_marketing_but_by_text_after_all_gets_it_by_text(served: Served) -> None:
    text = message_pb2.Address(channel=message_pb2.CHANNEL_SMS, value="+41446681800")
    mail = message_pb2.Address(channel=EMAIL, value="ann@example.com")
    await upsert(served, profile_pb2.Profile(user_id="ann", addresses=[mail, text]))
    await choose(served, chosen(category=MARKETING))
    assert (await evaluate(served, evaluation(scene="marketing"))).decisions[0].reason == "preference_opted_out"
    await choose(served, chosen(choice=IN, category=MARKETING, channel=message_pb2.CHANNEL_SMS))
    decision = (await evaluate(served, evaluation(scene="marketing"))).decisions[0]
    assert (decision.reason, decision.address) == ("", "+41446681800")
    told = {entry.gate: entry.inputs for entry in decision.trace}[message_pb2.GATE_SUPPRESSION]
    assert (told["channel"], told["refused_email"]) == ("sms", "preference_opted_out")


async def test_choices_are_looked_up_for_many_tenants_at_once_and_kept_apart(
    preferences: PreferenceStore, directory: Lookup
) -> None:
    await preferences.set("acme", [Choice("ann", None, Channel.SMS, opt_in=False)], "x")
    await preferences.set("globex", [Choice("ann", None, None, opt_in=True)], "x")
    users = [ANN, UserKey("globex", "ann"), UserKey("initech", "ann")]
    found = await directory.known(users, ())
    assert {user: known.preferences for user, known in found.items()} == {
        ANN: (Preference(None, Channel.SMS, opt_in=False),),
        UserKey("globex", "ann"): (Preference(None, None, opt_in=True),),
    }


async def test_overlapping_batches_of_choices_do_not_deadlock(preferences: PreferenceStore) -> None:
    users = [f"u{number}" for number in range(100)]

    async def write(seed: int) -> None:
        source = random.Random(seed)
        shuffled = source.sample(users, len(users))
        for _ in range(5):
            await preferences.set(
                "acme", [Choice(user, None, None, source.choice([True, False, None])) for user in shuffled], f"w{seed}"
            )

    await asyncio.gather(*(write(seed) for seed in range(6)))


async def test_saving_a_profile_touches_no_choice(preferences: PreferenceStore, store: PolicyStore) -> None:
    made = Choice("ann", None, None, opt_in=False)
    await preferences.set("acme", [made], "ann")
    await store.upsert_profiles("acme", [Profile("ann", {Channel.EMAIL: "ann@example.com"}, "", "")])
    assert [entry.choice for entry in await preferences.get("acme", ["ann"])] == [made]


async def test_every_wrong_choice_is_named_and_nothing_is_stored(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await choose(
            served,
            chosen("fine"),
            chosen(""),
            chosen(choice=9),
            chosen("bob", category=99),
            chosen("carol", channel=99),
            chosen("fine", choice=IN),
            chosen("fine", category=MARKETING),
        )
    assert set(violations(caught.value)) == {
        "preferences[1].user_id",
        "preferences[2].choice",
        "preferences[3].category",
        "preferences[4].channel",
        "preferences[5].user_id",
    }
    assert not await stored(served, "fine")


async def test_a_request_that_says_no_choice_takes_none_back(served: Served) -> None:
    await choose(served, chosen())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await choose(served, preference_pb2.Preference(user_id="ann"))
    assert violations(caught.value) == {"preferences[0].choice": "is required"}
    assert [each.choice for each in await stored(served, "ann")] == [OUT]
    taken = await choose(served, chosen(choice=NONE))
    assert [each.choice for each in taken.preferences] == [NONE]
    assert not await stored(served, "ann")


async def test_a_decision_heeds_what_the_user_chose(served: Served) -> None:
    await upsert(served, profile("ann"), profile("bob"))
    await choose(served, chosen("ann", category=MARKETING), chosen("bob", choice=IN, category=MARKETING))
    items = [("ann", "sale"), ("ann", "newsletter"), ("bob", "newsletter"), ("ann", "order_shipped")]
    response = await evaluate(
        served, *(evaluation(f"i{number}", user_id=user, scene=scene) for number, (user, scene) in enumerate(items))
    )
    assert [decision.reason for decision in response.decisions] == [
        "preference_opted_out",
        "preference_opted_out",
        "",
        "",
    ]
    await choose(served, chosen("bob", choice=NONE, category=MARKETING))
    again = await evaluate(served, evaluation("i9", user_id="bob", scene="newsletter"))
    assert again.decisions[0].reason == "opt_in_missing"


async def test_an_opt_out_after_the_decision_holds(served: Served) -> None:
    assert await last_look(served, leaving()) == [""]
    await choose(served, chosen(category=MARKETING))
    assert await last_look(
        served,
        leaving(),
        leaving(category=message_pb2.CATEGORY_ALERT),
        leaving("bob"),
        leaving(tenant="globex"),
    ) == ["preference_opted_out", "", "", ""]


async def test_an_opting_in_that_is_taken_back_withholds_what_needs_it(served: Served) -> None:
    newsletter = leaving(scene="newsletter")
    assert await last_look(served, newsletter, leaving(scene="order_shipped")) == ["opt_in_missing", ""]
    await choose(served, chosen(choice=IN, category=MARKETING))
    assert await last_look(served, newsletter) == [""]
    await choose(served, chosen(choice=NONE, category=MARKETING))
    assert await last_look(served, newsletter) == ["opt_in_missing"]


async def test_opting_out_waits_for_what_is_just_leaving_and_opting_in_need_not(served: Served) -> None:
    served.dispatcher.in_flight = 2
    answer = await choose(served, chosen("ann"), chosen("bob", choice=IN), chosen("carol", choice=NONE))
    assert answer.in_flight == 2
    assert served.dispatcher.awaited == [dispatcher_pb2.AwaitSendingRequest(tenant="acme", user_ids=["ann", "carol"])]
    assert (await choose(served, chosen("ann", choice=IN))).in_flight == 0
    assert len(served.dispatcher.awaited) == 1


async def test_opting_in_lifts_no_suppression(served: Served) -> None:
    source = suppression_pb2.SUPPRESSION_SOURCE_UNSUBSCRIBE
    request = suppression_pb2.SuppressRequest(suppressions=[suppression_pb2.Suppression(user_id="ann", source=source)])
    stub = suppression_pb2_grpc.SuppressionServiceStub(served.channel)
    await stub.Suppress(request, metadata=served.metadata(AGENT))
    await choose(served, chosen(choice=IN, category=MARKETING, channel=EMAIL))
    assert await last_look(served, leaving()) == ["user_unsubscribed"]
