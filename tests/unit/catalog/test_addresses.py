"""Two ways to write one address are one address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.addresses import AddressError, normalise
from services.catalog.rules import Channel


@pytest.mark.parametrize(
    ("channel", "written", "normal"),
    [
        (Channel.EMAIL, " Ann@Example.COM ", "ann@example.com"),
        (Channel.EMAIL, "ann@demo.test", "ann@demo.test"),
        (Channel.SMS, "+41 44 668 18 00", "+41446681800"),
        (Channel.SMS, "+1 (650) 253-0000", "+16502530000"),
        (Channel.WEBHOOK, "HTTPS://Hooks.Example.com:443", "https://hooks.example.com/"),
        (Channel.WEBHOOK, "http://127.0.0.1:8080/a?b=c#d", "http://127.0.0.1:8080/a?b=c"),
        (Channel.WEBHOOK, "http://[::1]:8080/a", "http://[::1]:8080/a"),
        (Channel.WEBHOOK, "http://localhost:9/x", "http://localhost:9/x"),
        (Channel.CHAT, " @ann ", "@ann"),
    ],
)
def test_normal_forms(channel: Channel, written: str, normal: str) -> None:
    assert normalise(channel, written) == normal
    assert normalise(channel, normal) == normal


@pytest.mark.parametrize(
    ("channel", "written"),
    [
        (Channel.EMAIL, "ann"),
        (Channel.EMAIL, "ann@localhost"),
        (Channel.EMAIL, "ann@example.com\r\nBcc: bob@example.com"),
        (Channel.EMAIL, "ann\x00@example.com"),
        (Channel.SMS, "044 668 18 00"),
        (Channel.SMS, "+1"),
        (Channel.SMS, "call me"),
        (Channel.WEBHOOK, "ftp://example.com/"),
        (Channel.WEBHOOK, "https://"),
        (Channel.WEBHOOK, "https://user:secret@example.com/"),
        (Channel.WEBHOOK, "https://exa mple.com/"),
        (Channel.WEBHOOK, "https://example.com:99999/"),
        (Channel.WEBHOOK, "https://-bad-.com/"),
        (Channel.WEBHOOK, "https://[::zz]/"),
        (Channel.INBOX, ""),
        (Channel.CHAT, "a" * 3_000),
        (Channel.CHAT, "a\ud800"),
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(channel: Channel, written: str) -> None:
    with pytest.raises(AddressError) as caught:
        normalise(channel, written)
    assert not written or written not in str(caught.value)


@given(st.sampled_from(Channel), st.text(max_size=60))
def test_any_text_is_refused_or_gets_a_form_that_stays(channel: Channel, written: str) -> None:
    try:
        normal = normalise(channel, written)
    except AddressError:
        return
    assert normalise(channel, normal) == normal
