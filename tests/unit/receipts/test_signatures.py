"""Whose post is it? Only exact bytes, a known secret and a fresh timestamp count."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook

from services.receipts.signatures import SecretError, Signatures

OLD, NEW, OTHER = (f"whsec_{b64encode(bytes([n] * 24)).decode()}" for n in range(3))
BODY = b'{"event_id": "e-1"}'


def signed(secret: str = NEW, body: bytes = BODY, age: timedelta = timedelta()) -> dict[str, str]:
    moment = datetime.now(UTC) - age
    signature = Webhook(secret).sign("m-1", moment, body.decode())
    return {"webhook-id": "m-1", "webhook-timestamp": str(int(moment.timestamp())), "webhook-signature": signature}


def test_the_exact_bytes_fit() -> None:
    assert Signatures([NEW]).fit(signed(), BODY)


def test_white_space_alone_breaks_it() -> None:
    assert not Signatures([NEW]).fit(signed(), BODY.replace(b" ", b""))
    assert not Signatures([NEW]).fit(signed(), BODY + b"\n")


def test_either_secret_fits_while_they_are_changed() -> None:
    both = Signatures([OLD, NEW])

    assert both.fit(signed(OLD), BODY)
    assert both.fit(signed(NEW), BODY)
    assert not both.fit(signed(OTHER), BODY)


def test_a_replay_after_five_minutes_does_not_fit() -> None:
    assert Signatures([NEW]).fit(signed(age=timedelta(minutes=4)), BODY)
    assert not Signatures([NEW]).fit(signed(age=timedelta(minutes=6)), BODY)
    assert not Signatures([NEW]).fit(signed(age=timedelta(minutes=-6)), BODY)


@pytest.mark.parametrize(
    "changes",
    [
        {"webhook-id": "m-2"},
        {"webhook-id": ""},
        {"webhook-id": "\udcff"},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "nan"},
        {"webhook-timestamp": "1e400"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,not base64!"},
        {"webhook-signature": "v1,é"},
        {"webhook-signature": "v1,a,b"},
    ],
)
def test_malformed_headers_do_not_fit_and_break_nothing(changes: dict[str, str]) -> None:
    assert not Signatures([NEW]).fit({**signed(), **changes}, BODY)


def test_no_headers_and_no_text_do_not_fit() -> None:
    assert not Signatures([NEW]).fit({}, BODY)
    assert not Signatures([NEW]).fit(signed(), b"\xff\xfe")


@pytest.mark.parametrize("secrets", [[], [""], ["whsec_"], ["whsec_é"], [NEW, "whsec_a"]])
def test_a_secret_that_is_none_is_refused_without_being_shown(secrets: list[str]) -> None:
    with pytest.raises(SecretError) as caught:
        Signatures(secrets)

    assert all(secret not in str(caught.value) for secret in secrets if len(secret) > 6)
