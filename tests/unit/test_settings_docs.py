"""Every setting is documented, and read from the environment under its own name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
from pydantic_settings import BaseSettings

import services
from services.chassis.settings import ChassisSettings


def settings_classes() -> list[type[ChassisSettings]]:
    found: dict[str, type[ChassisSettings]] = {}
    for room in pkgutil.iter_modules(services.__path__, "services."):
        if not room.ispkg or importlib.util.find_spec(f"{room.name}.settings") is None:
            continue
        module = importlib.import_module(f"{room.name}.settings")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, BaseSettings) and kind is not BaseSettings:
                assert issubclass(kind, ChassisSettings), f"{kind.__name__} is no ChassisSettings"
                found[kind.__name__] = kind
    return list(found.values())


CLASSES = settings_classes()
FIELDS = sorted(
    {(kind, name) for kind in CLASSES for name in kind.model_fields}, key=lambda item: (str(item[0]), item[1])
)


def test_the_chassis_and_each_service_have_their_settings() -> None:
    assert "ChassisSettings" in {kind.__name__ for kind in CLASSES}


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_every_setting_says_what_it_is_for(kind: type[ChassisSettings], name: str) -> None:
    description = kind.model_fields[name].description
    assert description
    assert description.endswith(".")
    assert not kind.model_fields[name].is_required(), "a setting has a default, and the start says what is missing"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_every_setting_comes_from_the_environment_with_our_prefix(
    kind: type[ChassisSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kind.model_config.get("env_prefix") == "REACH_"
    monkeypatch.setenv("REACH_DEPLOYMENT", "from-the-environment")
    monkeypatch.setenv("DEPLOYMENT", "wrong")
    assert kind().deployment == "from-the-environment"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_secrets_are_not_shown(kind: type[ChassisSettings]) -> None:
    shown = repr(kind(service_key="reach_very-secret", postgres_engine_dsn="postgresql://u:pw-of-u@h/d"))
    assert "very-secret" not in shown
    assert "pw-of-u" not in shown
