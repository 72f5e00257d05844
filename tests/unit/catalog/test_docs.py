"""The documentation of the settings: complete, and what it shows works."""

from __future__ import annotations

import re
from pathlib import Path

from services.catalog.policies import load_policies
from services.catalog.schema import policies_schema

TEXT = (Path(__file__).parents[3] / "docs" / "policies.md").read_text()


def test_every_setting_has_its_place_in_the_documentation() -> None:
    schema = policies_schema()
    sections = [schema, *schema["$defs"].values()]
    settings = {name for section in sections for name in section.get("properties", {})}
    assert settings > {"quiet_hours", "max_attempts", "share", "tenants"}
    code = " ".join(re.findall(r"`([^`\n]+)`", TEXT))
    assert {name for name in settings if not re.search(rf"\b{name}\b", code)} == set()


def test_the_example_is_a_file_that_loads(tmp_path: Path) -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "policies.yaml").write_text(example)
    (tmp_path / "policies.next.yaml").write_text(example[: example.index("shadow:")])
    policies = load_policies(tmp_path / "policies.yaml")
    assert policies.shadow is not None
    assert [policies.scene("spring_sale", tenant).share for tenant in ("acme", "other")] == [1.0, 0.1]
    assert len(policies.scene("spring_sale").policy.quiet_hours) == 2
