"""Two ways to write one address are one address."""

from __future__ import annotations

import pytest
from email_validator import EmailNotValidError, validate_email
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from services.catalog.addresses import AddressError, _fold, normalise
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
        (Channel.WEBHOOK, "https://straße.de/", "https://xn--strae-oqa.de/"),
        (Channel.WEBHOOK, "https://XN--STRAE-OQA.de.:443", "https://xn--strae-oqa.de/"),
        (Channel.WEBHOOK, "https://a_b.example.com/", "https://a_b.example.com/"),
        (Channel.WEBHOOK, "https://example.com/%7Eann/%2f/ä?x=%3d", "https://example.com/~ann/%2F/%C3%A4?x=%3D"),
        (Channel.WEBHOOK, "https://example.com/a/./b/../c/", "https://example.com/a/c/"),
        (Channel.WEBHOOK, "http://\uff11\uff12\uff17\u30020.0.1./", "http://127.0.0.1/"),
        (Channel.WEBHOOK, "http://[0:0::1]/", "http://[::1]/"),
        (Channel.EMAIL, "ΟΔΟΣ.Δ@example.com", "οδοσ.δ@example.com"),
        (Channel.EMAIL, "οδος.δ@example.com", "οδοσ.δ@example.com"),
        (Channel.EMAIL, "Straße@οδος.gr", "straße@οδος.gr"),
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
        (Channel.WEBHOOK, "http://127.1/"),
        (Channel.WEBHOOK, "http://2130706433/"),
        (Channel.WEBHOOK, "http://0x7f.1/"),
        (Channel.WEBHOOK, "http://0177.0.0.1/"),
        (Channel.WEBHOOK, "http://\uff11\uff12\uff17.1/"),
        (Channel.WEBHOOK, "https://example..com/"),
        (Channel.WEBHOOK, "https://ß_x.de/"),
        (Channel.INBOX, ""),
        (Channel.CHAT, "a" * 3_000),
        (Channel.CHAT, "a\ud800"),
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(channel: Channel, written: str) -> None:
    with pytest.raises(AddressError) as caught:
        normalise(channel, written)
    assert not written or written not in str(caught.value)


@given(st.text("aäß%2fF7e./?#=&+:@[]\\;", max_size=30))
def test_a_url_is_posted_to_as_its_normal_form_says(rest: str) -> None:
    try:
        normal = normalise(Channel.WEBHOOK, f"http://example.com/{rest}")
    except AddressError:
        return
    assert str(URL(normal)) == normal == normalise(Channel.WEBHOOK, normal)


@given(st.sampled_from(Channel), st.text(max_size=60))
def test_any_text_is_refused_or_gets_a_form_that_stays(channel: Channel, written: str) -> None:
    try:
        normal = normalise(channel, written)
    except AddressError:
        return
    assert normalise(channel, normal) == normal


_LETTERS = "aZß.@-_'\"<>()[] +0\u0338\u0301\u03a3münchénxn--"
_LOCALS = st.text(_LETTERS, max_size=8) | st.text("ab.", min_size=1, max_size=260)
_DOMAINS = st.sampled_from(
    [
        "Example.com",
        "MÜNCHEN.example.de",
        "xn--mnchen-3ya.de",
        "localhost",
        "demo.test",
        "x.invalid",
        "Σς.gr",
        "\uff21\uff22\uff0ecom",
    ]
)
_LONG_DOMAINS = st.integers(1, 62).map(lambda length: ".".join(["a" * length] * 4) + ".com")
_ANY_DOMAINS = st.text(_LETTERS, max_size=12)


@given(_LOCALS, _DOMAINS | _LONG_DOMAINS | _ANY_DOMAINS)
def test_that_domains_are_remembered_changes_no_answer(local: str, domain: str) -> None:
    written = f"{local}@{domain}".strip()
    try:
        email = validate_email(written, check_deliverability=False, test_environment=True)
        normal_form = f"{_fold(email.local_part)}@{email.domain}"
        expected = normal_form if "." in email.domain and written.isprintable() else None
    except EmailNotValidError:
        expected = None
    for _ in range(2):  # met for the first time, and remembered
        try:
            normal = normalise(Channel.EMAIL, written)
        except AddressError:
            normal = None
        assert normal == expected


def test_an_address_is_too_long_as_a_whole_though_its_domain_is_known() -> None:
    assert normalise(Channel.EMAIL, f"{'a' * 242}@example.com")
    with pytest.raises(AddressError):
        normalise(Channel.EMAIL, f"{'a' * 243}@example.com")
