"""What tenants store: all or none, one tenant never seeing another's, also when many write at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict

from agent_reach.local import LocalPostgres
from services.catalog.rules import Category, Channel
from services.chassis.migrations import create_roles, migrate
from services.policy.decision import Address, Suppression, SuppressionSource, UserKey
from services.policy.lookup import Lookup
from services.policy.records import Activity, Profile, SuppressionPage, Wish
from services.policy.store import PolicyStore
from tests.conftest import Dsns

ANN = UserKey("acme", "ann")
UNSUBSCRIBED = Wish(SuppressionSource.UNSUBSCRIBE, user_id="ann", note="by link")
BOUNCED = Wish(SuppressionSource.BOUNCE, address=Address(Channel.EMAIL, "ann@example.com"))


async def standing_of(
    store: PolicyStore, users: Sequence[UserKey], address: Address | None = None
) -> list[Suppression]:
    """Looks up what stands about users, at a further address too."""
    known = await Lookup(store._engine).known(users, [(user, address) for user in users] if address else ())
    return [suppression for each in known.values() for suppression in each.suppressions]


async def test_a_profile_is_replaced_as_a_whole(store: PolicyStore) -> None:
    first = Profile("ann", {Channel.EMAIL: "a@example.com", Channel.SMS: "+16502530000"}, "de", "Asia/Tokyo")
    second = Profile("ann", {Channel.EMAIL: "b@example.com"}, "", "")
    await store.upsert_profiles("acme", [first])
    assert await store.get_profiles("acme", ["ann", "bob"]) == [first]
    await store.upsert_profiles("acme", [second])
    assert await store.get_profiles("acme", ["ann"]) == [second]
    assert await store.get_profiles("globex", ["ann"]) == []


async def test_overlapping_batches_of_many_writers_do_not_deadlock(store: PolicyStore) -> None:
    users = [f"u{number}" for number in range(100)]

    async def write(seed: int) -> None:
        shuffled = users.copy()
        random.Random(seed).shuffle(shuffled)
        await store.upsert_profiles("acme", [Profile(user, {Channel.CHAT: f"@{seed}"}, "", "") for user in shuffled])
        await store.suppress("acme", [Wish(SuppressionSource.IMPORT, user_id=user) for user in shuffled], "list")

    await asyncio.gather(*(write(seed) for seed in range(8)))
    profiles = await store.get_profiles("acme", users)
    assert len({profile.addresses[Channel.CHAT] for profile in profiles}) == 1
    standing = await standing_of(store, [UserKey("acme", user) for user in users])
    assert len(standing) == 100


async def test_the_latest_activity_counts_whatever_the_order_of_reports(store: PolicyStore) -> None:
    now = datetime.now(UTC)
    late, early = Activity("ann", "Asia/Tokyo", now), Activity("ann", "UTC", now - timedelta(hours=1))
    await store.report_activity("acme", [early, late, early])
    await store.report_activity("acme", [early])
    person = (await store.people([ANN]))[ANN]
    assert (person.active_zone, person.active_at) == ("Asia/Tokyo", now)


async def test_a_suppression_that_stands_is_left_as_it_is(store: PolicyStore) -> None:
    (first,) = await store.suppress("acme", [UNSUBSCRIBED], "link")
    again = await store.suppress("acme", [UNSUBSCRIBED, BOUNCED, UNSUBSCRIBED], "somebody")
    assert again[0] == again[2] == first
    assert first.created_by == "link"
    assert again[1].wish == BOUNCED


async def test_an_operator_who_lifts_his_own_block_does_not_undo_an_unsubscribe(store: PolicyStore) -> None:
    block = Wish(SuppressionSource.OPERATOR, user_id="ann")
    blocked, unsubscribed = await store.suppress("acme", [block, UNSUBSCRIBED], "operator")
    assert await store.lift("acme", [UUID(blocked.suppression_id)], "operator") == 1
    standing = await standing_of(store, [ANN])
    assert [suppression.suppression_id for suppression in standing] == [unsubscribed.suppression_id]


async def test_a_lifted_suppression_can_be_stored_anew_and_is_lifted_once(store: PolicyStore) -> None:
    (first,) = await store.suppress("acme", [UNSUBSCRIBED], "link")
    identity = [UUID(first.suppression_id)]
    assert await store.lift("globex", identity, "stranger") == 0
    assert await store.lift("acme", identity, "operator") == 1
    assert await store.lift("acme", identity, "operator") == 0
    (second,) = await store.suppress("acme", [UNSUBSCRIBED], "link")
    assert second.suppression_id != first.suppression_id


async def test_saving_a_profile_lifts_no_suppression(store: PolicyStore) -> None:
    await store.suppress("acme", [UNSUBSCRIBED], "link")
    await store.upsert_profiles("acme", [Profile("ann", {}, "", "")])
    assert len(await standing_of(store, [ANN])) == 1


async def test_suppressions_are_found_by_user_and_by_address_of_their_tenant_only(store: PolicyStore) -> None:
    limited = Wish(SuppressionSource.OPERATOR, user_id="ann", channel=Channel.SMS, category=Category.MARKETING)
    await store.suppress("acme", [limited, BOUNCED], "operator")
    address = Address(Channel.EMAIL, "ann@example.com")
    users = [ANN, UserKey("globex", "ann")]
    assert not await standing_of(store, users[1:], address)
    found = await standing_of(store, users, address)
    by_user = next(entry for entry in found if entry.user_id)
    assert (by_user.channel, by_user.category) == (Channel.SMS, Category.MARKETING)
    assert {entry.address for entry in found} == {None, address}


async def test_suppressions_are_listed_newest_first_page_by_page(store: PolicyStore) -> None:
    for number in range(5):
        await store.suppress("acme", [Wish(SuppressionSource.IMPORT, user_id=f"u{number}")], "list")
    seen: list[str] = []
    page = SuppressionPage()
    while entries := await store.list_suppressions("acme", page, 2):
        seen += [entry.wish.user_id for entry in entries]
        page = replace(page, before=UUID(entries[-1].suppression_id))
    assert seen == ["u4", "u3", "u2", "u1", "u0"]
    only = await store.list_suppressions("acme", SuppressionPage(user_id="u3"), 10)
    assert [entry.wish.user_id for entry in only] == ["u3"]


async def test_addresses_of_an_earlier_version_are_those_of_their_profile(
    postgres: LocalPostgres, migrated: Dsns, store: PolicyStore
) -> None:
    ann = Profile("ann", {Channel.EMAIL: "a@example.com", Channel.SMS: "+16502530000"}, "de", "Asia/Tokyo")
    bob = Profile("bob", {}, "", "")
    with psycopg.connect(migrated.owner) as owner:
        owner.execute(
            """
            ALTER TABLE policy.profiles DROP COLUMN addresses;
            CREATE TABLE policy.addresses (tenant text, user_id text, channel text, value text);
            INSERT INTO policy.profiles (tenant, user_id, locale, time_zone)
            VALUES ('acme', 'ann', 'de', 'Asia/Tokyo'), ('acme', 'bob', '', '');
            INSERT INTO policy.addresses VALUES
                ('acme', 'ann', 'email', 'a@example.com'), ('acme', 'ann', 'sms', '+16502530000');
            UPDATE policy.alembic_version SET version_num = '0003';
            """
        )
    # A copy of a database has its tables, and not the right to add to it.
    create_roles(postgres.dsn(str(conninfo_to_dict(migrated.owner)["dbname"])))
    await asyncio.to_thread(migrate, migrated.owner, ["policy"])
    assert await store.get_profiles("acme", ["ann", "bob"]) == [ann, bob]
    assert dict((await store.people([ANN]))[ANN].addresses) == ann.addresses
