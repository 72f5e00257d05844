"""What a run may ask for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.sandbox.settings import SandboxSettings
from services.sandbox.spec import MAX_CODE_BYTES, MAX_OUTPUT_BYTES, MAX_STDIN_BYTES, Language, RunSpec, check_spec

GOOD = RunSpec(Language.PYTHON, "print(1)")


def fields(spec: RunSpec) -> list[str]:
    return [violation.field for violation in check_spec(spec)]


def test_a_plain_run_is_accepted() -> None:
    assert fields(GOOD) == []


def test_the_limits_themselves_are_accepted() -> None:
    assert fields(replace(GOOD, code="x" * MAX_CODE_BYTES, stdin=bytes(MAX_STDIN_BYTES))) == []
    assert fields(replace(GOOD, timeout_seconds=300.0, max_output_bytes=MAX_OUTPUT_BYTES)) == []


def test_every_wrong_field_is_named_at_once() -> None:
    spec = RunSpec(Language.SHELL, "", bytes(MAX_STDIN_BYTES + 1), {"1A": ""}, -1.0, MAX_OUTPUT_BYTES + 1)

    assert fields(spec) == ["code", "stdin", "timeout_seconds", "max_output_bytes", "environment[1A]"]


def test_code_is_measured_in_bytes_and_not_in_characters() -> None:
    assert fields(replace(GOOD, code="é" * (MAX_CODE_BYTES // 2 + 1))) == ["code"]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 0.0, 300.1])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    assert fields(replace(GOOD, timeout_seconds=seconds)) == ["timeout_seconds"]


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "ENV", "PATH", "HOME", "TMPDIR", "", "A-B", "A B", "É"],
)
def test_a_variable_that_would_run_something_else_is_refused(name: str) -> None:
    assert fields(replace(GOOD, environment={name: "x"})) == [f"environment[{name}]"]


def test_language_and_own_names_may_be_set() -> None:
    assert fields(replace(GOOD, environment={"LANG": "de_DE.UTF-8", "_x1": "", "API_URL": "http://localhost"})) == []


def test_a_value_must_fit_into_an_environment() -> None:
    assert fields(replace(GOOD, environment={"A": "a\x00b"})) == ["environment[A]"]
    assert fields(replace(GOOD, environment={"A": "a" * 40_000})) == ["environment[A]"]
    assert fields(replace(GOOD, environment={f"A{n}": "" for n in range(101)})) == ["environment"]


def test_every_setting_says_what_it_is_for() -> None:
    assert all(field.description for field in SandboxSettings.model_fields.values())
