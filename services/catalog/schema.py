"""The JSON Schema of `policies.yaml`, for editors and checkers: ``python -m services.catalog.schema`` prints it."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from .sections import PoliciesFile


class _Draft(GenerateJsonSchema):
    """Names the draft, leaves out titles, which only repeat the names, and takes no name but those of the pattern."""

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> dict[str, Any]:
        return {"$schema": self.schema_dialect, **super().generate(schema, mode)}

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        made = super().dict_schema(schema)
        return {**made, "additionalProperties": False} if "patternProperties" in made else made

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's own
        return False


def policies_schema() -> dict[str, Any]:
    """Returns the JSON Schema of `policies.yaml`: what the loader refuses, as far as a schema can say it."""
    schema = PoliciesFile.model_json_schema(schema_generator=_Draft)
    return {**schema, "title": "policies.yaml of Agent-Reach"}


def main() -> None:
    """Prints the schema."""
    json.dump(policies_schema(), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
