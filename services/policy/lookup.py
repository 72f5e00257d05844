"""All that is known of the recipients of a batch, in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from agent_reach.durable import Recordset
from services.catalog.rules import Category, Channel
from services.chassis.postgres import Pool

from .decision import Address, Known, Person, Preference, Suppression, SuppressionSource, UserKey

_USERS = Recordset({"number": "int", "tenant": "text", "user_id": "text"})
_BARE = Recordset({"number": "int", "tenant": "text", "channel": "text", "address": "text"})

# Named one by one, and not by `jsonb_each_text`: the planner takes that for a hundred rows a user, and would rather read
# a million suppressions than look so many up.
_OWN = ", ".join(f"('{channel}', profile.addresses ->> '{channel}')" for channel in Channel)

# Three values, each the JSON of all rows: rows, columns and parameters would cost more here than all the rest of it.
_KNOWN = f"""
WITH asked AS MATERIALIZED (SELECT number, tenant, user_id FROM {_USERS.source("users")}),
located AS (
    SELECT asked.number, asked.tenant, own.channel, own.address
    FROM asked JOIN policy.profiles profile USING (tenant, user_id), LATERAL (VALUES {_OWN}) AS own (channel, address)
    WHERE own.address IS NOT NULL
    UNION ALL SELECT number, tenant, 'inbox', user_id FROM asked
    UNION ALL SELECT number, tenant, channel, address FROM {_BARE.source("bare")}
),
standing AS (
    SELECT asked.number, found.* FROM asked
    JOIN policy.suppressions found ON found.tenant = asked.tenant AND found.user_id = asked.user_id
    WHERE found.lifted_at IS NULL AND found.user_id <> ''
    UNION ALL
    SELECT located.number, found.* FROM located
    JOIN policy.suppressions found ON found.tenant = located.tenant
        AND found.address_channel = located.channel AND found.address = located.address
    WHERE found.lifted_at IS NULL AND found.address <> ''
)
SELECT
    (SELECT json_agg(json_build_array(
        asked.number, profile.locale, profile.time_zone, activity.time_zone, extract(epoch FROM activity.seen_at),
        profile.addresses
    ))::text
    FROM asked
    LEFT JOIN policy.profiles profile USING (tenant, user_id)
    LEFT JOIN policy.activity activity USING (tenant, user_id)
    WHERE profile.user_id IS NOT NULL OR activity.user_id IS NOT NULL),
    (SELECT json_agg(json_build_array(number, id, source, user_id, address_channel, address, channel, category))::text
     FROM standing),
    (SELECT json_agg(json_build_array(asked.number, chosen.category, chosen.channel, chosen.opt_in))::text
     FROM asked JOIN policy.preferences chosen USING (tenant, user_id)
     WHERE chosen.opt_in IS NOT NULL)
"""  # noqa: S608 - the names are this module's own

_CHANNELS = {channel.value: channel for channel in Channel}
_NOBODY = Person()


class Lookup:
    """What stands in PostgreSQL about recipients.

    Args:
        engine: pool of the role engine, for batches across tenants.
    """

    def __init__(self, engine: Pool) -> None:
        self._engine = engine

    async def known(self, users: Sequence[UserKey], bare: Iterable[tuple[UserKey, Address]]) -> dict[UserKey, Known]:
        """Returns what is known of users, of any tenants: people, standing suppressions, choices.

        Args:
            users: each once.
            bare: further addresses at which they would be written to, beside those of the profile and the inbox.

        Returns:
            By user; those of whom nothing is known are left out.
        """
        numbers = {user: number for number, user in enumerate(users)}
        values = {
            "users": _USERS.encode((number, *user) for user, number in numbers.items()),
            "bare": _BARE.encode((numbers[user], user.tenant, *address) for user, address in bare),
        }
        async with self._engine.connection() as connection:
            cursor = await connection.execute(_KNOWN, values)
            row = await cursor.fetchone()
        assert row is not None, "a SELECT without FROM has one row"
        people, suppressions, preferences = ([] if text is None else orjson.loads(text) for text in row)
        known = {users[entry[0]]: Known(_person(*entry[1:])) for entry in people}
        if suppressions or preferences:
            _add(known, users, suppressions, preferences)
        return known


def _add(
    known: dict[UserKey, Known], users: Sequence[UserKey], suppressions: list[list[Any]], preferences: list[list[Any]]
) -> None:
    """Adds what stands about few of the users."""
    standing: dict[UserKey, list[Suppression]] = {}
    for number, *values in suppressions:
        standing.setdefault(users[number], []).append(_suppression(*values))
    chosen: dict[UserKey, list[Preference]] = {}
    for number, category, channel, opt_in in preferences:
        preference = Preference(
            Category(category) if category else None, _CHANNELS[channel] if channel else None, opt_in
        )
        chosen.setdefault(users[number], []).append(preference)
    for user in standing.keys() | chosen.keys():
        person = known[user].person if user in known else _NOBODY
        known[user] = Known(person, tuple(standing.get(user, ())), tuple(chosen.get(user, ())))


def _person(
    locale: str | None,
    time_zone: str | None,
    active_zone: str | None,
    active_at: float | None,
    addresses: dict[str, str] | None,
) -> Person:
    return Person(
        {_CHANNELS[channel]: value for channel, value in addresses.items()} if addresses else {},
        locale or "",
        time_zone or "",
        active_zone or "",
        None if active_at is None else datetime.fromtimestamp(active_at, UTC),
    )


def _suppression(  # the columns in their order
    suppression_id: str, source: str, user_id: str, address_channel: str, address: str, channel: str, category: str
) -> Suppression:
    return Suppression(
        suppression_id=suppression_id,
        source=SuppressionSource(source),
        user_id=user_id,
        address=Address(_CHANNELS[address_channel], address) if address else None,
        channel=_CHANNELS[channel] if channel else None,
        category=Category(category) if category else None,
    )
