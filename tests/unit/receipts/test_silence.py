"""Which facts mean that somebody must not be written to any more, and who and about what."""

from __future__ import annotations

import pytest

from services.catalog.addresses import pseudonym
from services.catalog.rules import Category, Channel
from services.receipts.apply import Recipient, wishes_of
from services.receipts.facts import Kind, Source, silence_wanted

ADDRESS = "ann@example.com"


@pytest.mark.parametrize(
    ("kind", "code", "source"),
    [
        (Kind.UNSUBSCRIBED, "", Source.UNSUBSCRIBE),
        (Kind.COMPLAINED, "abuse", Source.COMPLAINT),
        (Kind.BOUNCED, "5.1.1", Source.BOUNCE),
        (Kind.BOUNCED, "", Source.BOUNCE),
        (Kind.BOUNCED, "4.2.2", None),
        (Kind.REJECTED, "5.7.1", None),
        (Kind.DELIVERED, "", None),
    ],
)
def test_silence_is_wanted_after(kind: Kind, code: str, source: Source | None) -> None:
    assert silence_wanted(kind, code) is source


@pytest.mark.parametrize(
    ("source", "category", "user_id", "of_user"),
    [
        (Source.UNSUBSCRIBE, Category.MARKETING, "ann", [False, True]),
        (Source.COMPLAINT, Category.NOTIFICATION, "ann", [False, True]),
        (Source.BOUNCE, Category.MARKETING, "ann", [False]),
        (Source.UNSUBSCRIBE, Category.VERIFICATION, "ann", [False]),
        (Source.UNSUBSCRIBE, None, "ann", [False]),
        (Source.UNSUBSCRIBE, Category.MARKETING, pseudonym(Channel.EMAIL, ADDRESS), [False]),
    ],
)
def test_who_wants_silence_gets_it_at_the_address_and_as_the_user_of_that_category_and_channel(
    source: Source, category: Category | None, user_id: str, of_user: list[bool]
) -> None:
    recipient = Recipient("acme", user_id, Channel.EMAIL, ADDRESS, category)
    assert [wish.of_user for wish in wishes_of(recipient, source)] == of_user
