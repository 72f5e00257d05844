"""Settings from the environment."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_settings import SettingsError

from services.receipts.settings import ReceiptsSettings


def test_a_provider_has_one_secret_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REACH_RECEIPT_SECRETS", '{"demo": "whsec_one", "mail": ["whsec_old", "whsec_new"]}')

    secrets = read().receipt_secrets

    assert {name: [one.get_secret_value() for one in values] for name, values in secrets.items()} == {
        "demo": ["whsec_one"],
        "mail": ["whsec_old", "whsec_new"],
    }
    assert "whsec_" not in repr(read())


@pytest.mark.parametrize("text", ['{"demo": {"key": "whsec_hidden"}}', '{"demo": "whsec_hidden'])
def test_secrets_that_cannot_be_read_are_not_shown(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("REACH_RECEIPT_SECRETS", text)

    with pytest.raises((ValidationError, SettingsError)) as caught:
        read()

    assert "hidden" not in str(caught.value)


def test_every_setting_says_what_it_is_for() -> None:
    assert all(field.description for field in ReceiptsSettings.model_fields.values())


def read(**given: Any) -> ReceiptsSettings:
    return ReceiptsSettings(**given)
