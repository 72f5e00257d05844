"""The normal form of an address on each channel: two ways to write one address compare equal afterwards."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

import idna
import phonenumbers
from email_validator import EmailNotValidError, ValidatedEmail, validate_email
from yarl import URL

from services.chassis.hashing import hash_parts

from .rules import Channel

MAX_ADDRESS_BYTES = 2_048
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A host whose last label is a number is an IPv4 address to whatever resolves it, however few parts it has.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Nearly every e-mail address: a local part (RFC 5322: dot-atom) on which it does not depend what the domain means.
_ATEXT = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_PLAIN_EMAIL = re.compile(rf"({_ATEXT}(?:\.{_ATEXT})*)@(\w[^@<>\"]{{0,252}})")
_MAX_EMAIL_BYTES = 254
_KNOWN_DOMAINS = 16_384


class AddressError(ValueError):
    """The address is none on this channel; the message says why, without repeating the address."""


def pseudonym(channel: Channel | None, value: str) -> str:
    """Returns the user that a bare address in normal form stands for; the address does not show in it."""
    return f"address:{hash_parts(channel or '', value).hex()[:32]}"


def normalise(channel: Channel, value: str) -> str:
    """Returns an address in normal form; nothing is looked up.

    - email: in lower case, domain in Unicode form. The local part too: mailboxes that tell cases apart are next to
      extinct, and who unsubscribed must not be written to because of a capital letter, nor of a final sigma;
    - sms: E.164, for example ``+41446681800``;
    - webhook: http or https URL, host as IDNA 2008 writes it and without a final dot; percent-encodings, dot segments
      and port as RFC 3986 §6.2.2 and §6.2.3 say; no fragment;
    - inbox, chat: as it is, without spaces around.

    Raises:
        AddressError: why it is no address.
    """
    value = value.strip()
    if not value:
        raise AddressError("is empty")
    if len(value.encode(errors="surrogatepass")) > MAX_ADDRESS_BYTES:
        raise AddressError(f"has more than {MAX_ADDRESS_BYTES} bytes")
    if not value.isprintable():
        raise AddressError("contains control characters")
    match channel:
        case Channel.EMAIL:
            return _normalise_email(value)
        case Channel.SMS:
            return _normalise_phone(value)
        case Channel.WEBHOOK:
            return _normalise_url(value)
        case Channel.INBOX | Channel.CHAT:
            return value


def _normalise_email(value: str) -> str:
    plain = _PLAIN_EMAIL.fullmatch(value)
    if plain is not None and (known := _known_domain(plain[2])) is not None:
        local, (domain, longest) = plain[1], known
        if len(local) + 1 + longest <= _MAX_EMAIL_BYTES:
            return f"{local.lower()}@{domain}"
    email = _check_email(value)
    return f"{_fold(email.local_part)}@{email.domain.lower()}"


def _fold(text: str) -> str:
    """Returns a text without a difference between cases: of Unicode's foldings the simple ones, which keep `ß`.

    `lower` would see by its neighbours which of its two small forms a capital sigma has.
    """
    folded = ((character, character.casefold()) for character in text)
    return unicodedata.normalize("NFC", "".join(new if len(new) == 1 else old.lower() for old, new in folded))


@lru_cache(_KNOWN_DOMAINS)
def _known_domain(domain: str) -> tuple[str, int] | None:
    """Returns a domain's normal form, and how many bytes its longest form has; None where it is none.

    To check a domain costs 50 µs, in Unicode 250, and a few of them have nearly all the users.
    """
    try:
        email = _check_email(f"x@{domain}")
    except AddressError:
        return None
    forms = (domain, email.domain, email.ascii_domain)
    return email.domain.lower(), max(len(form.encode()) for form in forms)


def _check_email(value: str) -> ValidatedEmail:
    try:
        # Syntax only, DNS is not asked. `test_environment` lets the reserved names below .test pass.
        email = validate_email(value, check_deliverability=False, test_environment=True)
    except EmailNotValidError as error:
        raise AddressError("is no e-mail address") from error
    if "." not in email.domain:
        raise AddressError("is an e-mail address without a full domain")
    return email


def _normalise_phone(value: str) -> str:
    try:
        number = phonenumbers.parse(value)
    except phonenumbers.NumberParseException as error:
        raise AddressError("is no phone number in international form, for example +41446681800") from error
    if not phonenumbers.is_possible_number(number):
        raise AddressError("is no possible phone number")
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def _normalise_url(value: str) -> str:
    if any(character.isspace() for character in value):
        raise AddressError("is a URL with spaces")
    try:
        host = _normalise_host(urlsplit(value).hostname or "")
        # By the library that the webhooks are sent with: an address is what its normal form is asked for.
        url = URL(value)
        port = None if url.is_default_port() else url.explicit_port
    except ValueError as error:  # UnicodeError is one
        raise AddressError("is no URL with a valid host") from error
    if url.scheme not in {"http", "https"}:
        raise AddressError("is no http or https URL")
    if url.user is not None or url.password is not None:
        raise AddressError("carries a user name or password; sign the posts instead")
    netloc = host if port is None else f"{host}:{port}"
    return SplitResult(url.scheme, netloc, url.raw_path, url.raw_query_string, "").geturl()


def _normalise_host(host: str) -> str:
    if ":" in host:
        return f"[{ipaddress.IPv6Address(host).compressed}]"
    ascii_host = (host if host.isascii() else idna.encode(host, uts46=True).decode()).lower().removesuffix(".")
    labels = ascii_host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("not a host name")
    if _NUMBER.fullmatch(labels[-1]):
        return str(ipaddress.IPv4Address(ascii_host))
    return ascii_host
