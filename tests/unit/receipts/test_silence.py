"""Which facts mean that an address must not be written to any more."""

from __future__ import annotations

import pytest

from services.receipts.facts import Kind, Source, silence_wanted


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
