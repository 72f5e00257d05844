"""The published JSON Schema says what the loader says, as far as a schema can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from services.catalog.errors import CatalogError
from services.catalog.policies import load_policies, parse_policies
from services.catalog.schema import policies_schema

CONFIG = Path(__file__).parents[3] / "config"
HEAD: dict[str, Any] = {"version": 1, "policies": {"default": {}}, "channels": {"email": {}}}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((CONFIG / "policies.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_published_schema_is_that_of_the_loader() -> None:
    assert json.loads((CONFIG / "policies.schema.json").read_text()) == policies_schema()


def test_the_shipped_file_fits_its_schema_and_points_to_it(validator: jsonschema.Draft202012Validator) -> None:
    text = (CONFIG / "policies.yaml").read_text()
    validator.validate(yaml.safe_load(text))
    assert text.startswith("# yaml-language-server: $schema=policies.schema.json\n")


def test_every_setting_is_described() -> None:
    schema = policies_schema()
    for name, section in {"file": schema, **schema["$defs"]}.items():
        for setting, described in section.get("properties", {}).items():
            assert described.get("description"), (name, setting)


GOOD: dict[str, Any] = {
    "quiet_hours": [["22:30", "08:00"], ["20:00", "24:00"], [{"from": "22:00", "to": "24:00", "days": ["mon"]}], None],
    "user_daily_cap": [0, None],
    "user_channel_daily_cap": [{"sms": 1, "email": None}],
    "user_window_caps": [[], [{"messages": 2, "days": 7}, {"messages": 1, "seconds": 5}]],
    "retry": [{}, {"max_attempts": 1, "base_seconds": 0.5}],
    "task_ttl_seconds": [90_000],
    "dedupe_window_seconds": [None, 5],
    "quiet_exempt": [True, False],
    "unknown_send": ["again", "fail"],
    "intent_key_window_seconds": [1],
    "opt_in": [True],
    "category": ["marketing"],
    "channels": [["email"], None],
    "template": ["x", None],
    "policy": ["default"],
    "digest": [{"window_seconds": 5}, {"window_seconds": 5, "max_items": 2}, None],
    "share": [0, 0.5, 1],
}
BAD: dict[str, Any] = {
    "quiet_hours": [
        [],
        ["22:30"],
        ["22:30", "24:01"],
        ["24:00", "08:00"],
        "22:30",
        [{"from": "22:30"}],
        [{"from": 1, "to": "08:00"}],
    ],
    "user_daily_cap": [-1, "3", 1.5, 10**13],
    "user_channel_daily_cap": [{"pigeon": 1}, {"sms": -1}, None],
    "user_window_caps": [[{"messages": 2}], [{"messages": 2, "days": 1, "seconds": 1}], [{"days": 1}], None],
    "retry": [None, {"max_attempts": 0}, {"jitter_ratio": 2}, {"attempts": 1}],
    "task_ttl_seconds": [0, None, 10**9],
    "dedupe_window_seconds": [0],
    "quiet_exempt": [None, "yes"],
    "unknown_send": [None, "maybe"],
    "intent_key_window_seconds": [0],
    "opt_in": [1],
    "category": ["spam", None],
    "channels": [[], ["email", "email"], ["pigeon"], "email"],
    "template": ["Not A Name"],
    "policy": [None, ""],
    "digest": [{}, {"window_seconds": 0}, {"window_seconds": 5, "max_items": 1}],
    "share": [-0.1, 1.1, None],
    "user_dayly_cap": [3],
}


def loads(tree: dict[str, Any]) -> bool:
    try:
        parse_policies(yaml.safe_dump(tree), Path("policies.yaml"))
    except CatalogError:
        return False
    return True


def test_no_setting_of_a_scene_is_left_out_here() -> None:
    assert GOOD.keys() == policies_schema()["$defs"]["SceneSection"]["properties"].keys()


@pytest.mark.parametrize("setting", BAD)
def test_schema_and_loader_agree_on_a_scene(validator: jsonschema.Draft202012Validator, setting: str) -> None:
    for values, right in ((GOOD.get(setting, []), True), (BAD[setting], False)):
        for value in values:
            tree = {**HEAD, "scenes": {"x": {setting: value}}}
            assert (validator.is_valid(tree), loads(tree)) == (right, right), value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 0),
        ("version", None),
        ("policies", {}),
        ("policies", {"default": {}, "Not A Name": {}}),
        ("policies", {"default": {"tenant_daily_quota": -1}}),
        ("channels", {}),
        ("channels", {"pigeon": {}}),
        ("channels", {"email": {"burst": 0}}),
        ("channels", {"email": {"rate_per_sec": 0}}),
        ("channels", {"email": {"speed": 1}}),
        ("categories", {"spam": {}}),
        ("categories", {"marketing": {"category": "alert"}}),
        ("scenes", {"Not A Name": {}}),
        ("tenants", {"-": {}}),
        ("tenants", {"acme": {"channels": {}}}),
        ("tenants", {"acme": {"scenes": {"x": {"share": 2}}}}),
        ("shadow", {}),
        ("shadow", {"file": "../policies.yaml"}),
        ("strict_scenes", "yes"),
        ("unknown", 1),
    ],
)
def test_schema_and_loader_refuse_the_same(
    validator: jsonschema.Draft202012Validator, path: str, value: object
) -> None:
    tree = {**HEAD, path: value}
    assert (validator.is_valid(tree), loads(tree)) == (False, False)


def test_what_the_shipped_file_says_is_in_force() -> None:
    assert load_policies(CONFIG / "policies.yaml").revision == 3
