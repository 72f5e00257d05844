"""Keys are known by their hash only."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_reach.v1 import access_pb2
from services.chassis.api_keys import ApiKey, KeyRing, hash_api_key, new_api_key, write_api_keys
from services.chassis.errors import UnauthenticatedError
from services.chassis.logs import REDACTED, redact_text
from services.chassis.principal import Principal
from services.chassis.startup import StartupError


def test_a_key_file_holds_no_key_and_opens_the_door_for_its_owner(tmp_path: Path) -> None:
    key, path = new_api_key(), tmp_path / "keys.json"
    write_api_keys(path, [ApiKey(sha256=hash_api_key(key), tenant="acme", subject="bot", role="agent")])
    assert key not in path.read_text()
    ring = KeyRing.load(path, service_key="")
    assert ring.authenticate(key) == Principal("acme", "bot", access_pb2.ROLE_AGENT)
    for wrong in ("", key[:-1], hash_api_key(key), key.upper()):
        with pytest.raises(UnauthenticatedError):
            ring.authenticate(wrong)


def test_new_keys_differ_and_are_seen_by_the_redaction() -> None:
    keys = {new_api_key() for _ in range(100)}
    assert len(keys) == 100
    assert {redact_text(key) for key in keys} == {REDACTED}


def test_an_empty_service_key_opens_nothing() -> None:
    with pytest.raises(UnauthenticatedError):
        KeyRing((), service_key="").authenticate("")


@pytest.mark.parametrize("tenant", ["", "*", "-a", "a b", "a" * 65])
def test_no_agent_can_have_the_tenant_of_the_services(tenant: str) -> None:
    with pytest.raises(ValueError, match="tenant"):
        ApiKey(sha256="0" * 64, tenant=tenant, subject="bot", role="agent")


@pytest.mark.parametrize("content", ["", "{}", '[{"sha256": "x"}]', '[{"key": "reach_raw-key-of-somebody"}]', None])
def test_a_file_that_cannot_be_used_says_what_to_do_and_shows_no_key(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartupError) as caught:
        KeyRing.load(path, service_key="")
    assert "REACH_API_KEYS_FILE" in caught.value.advice
    assert "raw-key" not in str(caught.value)
