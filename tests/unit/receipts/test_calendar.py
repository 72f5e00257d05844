"""A moment at the edge of the calendar is refused at the door: stored, it could not be read back."""

from __future__ import annotations

import json

import pytest

from services.chassis.errors import Violation
from services.receipts.providers.generic import read_post


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_moment_that_has_none_in_utc_is_refused(moment: str) -> None:
    body = {"event_id": "e", "kind": "delivered", "idempotency_key": "k", "occurred_at": moment}
    (read,) = read_post(json.dumps(body).encode())
    assert isinstance(read, list)
    assert isinstance(read[0], Violation)
    assert read[0].field == "occurred_at"
