"""The normal form of an address on each channel: two ways to write one address compare equal afterwards."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

import phonenumbers
from email_validator import EmailNotValidError, validate_email

from services.chassis.hashing import hash_parts

from .rules import Channel

MAX_ADDRESS_BYTES = 2_048
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class AddressError(ValueError):
    """The address is none on this channel; the message says why, without repeating the address."""


def pseudonym(channel: Channel | None, value: str) -> str:
    """Returns the user that a bare address in normal form stands for; the address does not show in it."""
    return f"address:{hash_parts(channel or '', value).hex()[:32]}"


def normalise(channel: Channel, value: str) -> str:
    """Returns an address in normal form; nothing is looked up.

    - email: in lower case, domain in Unicode form. The local part too: mailboxes that tell cases apart are next to
      extinct, and who unsubscribed must not be written to because of a capital letter;
    - sms: E.164, for example ``+41446681800``;
    - webhook: http or https URL, scheme and host in lower case, no default port, no fragment;
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
    try:
        # Syntax only, DNS is not asked. `test_environment` lets the reserved names below .test pass.
        email = validate_email(value, check_deliverability=False, test_environment=True)
    except EmailNotValidError as error:
        raise AddressError("is no e-mail address") from error
    if "." not in email.domain:
        raise AddressError("is an e-mail address without a full domain")
    return email.normalized.lower()


def _normalise_phone(value: str) -> str:
    try:
        number = phonenumbers.parse(value)
    except phonenumbers.NumberParseException as error:
        raise AddressError("is no phone number in international form, for example +41446681800") from error
    if not phonenumbers.is_possible_number(number):
        raise AddressError("is no possible phone number")
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def _normalise_url(value: str) -> str:
    try:
        url = urlsplit(value)
        port = url.port
        host = _normalise_host(url.hostname or "")
    except ValueError as error:  # UnicodeError is one
        raise AddressError("is no URL with a valid host") from error
    if url.scheme not in _DEFAULT_PORTS:
        raise AddressError("is no http or https URL")
    if any(character.isspace() for character in value):
        raise AddressError("is a URL with spaces")
    if url.username is not None or url.password is not None:
        raise AddressError("carries a user name or password; sign the posts instead")
    netloc = host
    if port is not None and port != _DEFAULT_PORTS[url.scheme]:
        netloc = f"{netloc}:{port}"
    return SplitResult(url.scheme, netloc, url.path or "/", url.query, "").geturl()


def _normalise_host(host: str) -> str:
    if ":" in host:
        return f"[{ipaddress.IPv6Address(host).compressed}]"
    ascii_host = host.encode("idna").decode().lower()
    if not all(_LABEL.fullmatch(label) for label in ascii_host.removesuffix(".").split(".")):
        raise ValueError("not a host name")
    return ascii_host
