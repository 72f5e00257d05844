"""What a run is asked to be, and what it may not ask."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from services.chassis.errors import Violation

MAX_CODE_BYTES = 1024 * 1024
MAX_STDIN_BYTES = 1024 * 1024
MAX_TIMEOUT_SECONDS = 300.0
MAX_OUTPUT_BYTES = 16 * 1024 * 1024
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_OUTPUT_BYTES = 1024 * 1024
MAX_VARIABLES = 100
MAX_VALUE_BYTES = 32 * 1024

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# These are the sandbox's own.
_FIXED_NAMES = frozenset({"PATH", "HOME", "TMPDIR"})
# These run or load something else before the given code, so that a run would not be what its request shows.
_REFUSED_NAMES = frozenset({"ENV", "BASH_ENV", "GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH"})
_REFUSED_PREFIXES = ("LD_", "DYLD_", "PYTHON", "BASH_FUNC_")


class Language(StrEnum):
    """What the code is written in."""

    PYTHON = "python"
    SHELL = "shell"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run.

    Attributes:
        language: what the code is written in.
        code: the whole script.
        stdin: what the code can read from standard input, then it meets the end.
        environment: variables beside the scrubbed ones; `LANG` is the only one of those that it may replace.
        timeout_seconds: how long the code's own process may live.
        max_output_bytes: how much of both streams together is passed on; one byte more ends the run.
    """

    language: Language
    code: str
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES


def check_spec(spec: RunSpec) -> list[Violation]:
    """Returns everything that is wrong with a run, with the fields named as in the contract."""
    violations: list[Violation] = []
    if not spec.code:
        violations.append(Violation("code", "is required"))
    elif len(spec.code.encode()) > MAX_CODE_BYTES:
        violations.append(Violation("code", f"is longer than {MAX_CODE_BYTES} bytes"))
    if len(spec.stdin) > MAX_STDIN_BYTES:
        violations.append(Violation("stdin", f"is longer than {MAX_STDIN_BYTES} bytes"))
    if not math.isfinite(spec.timeout_seconds) or not 0 < spec.timeout_seconds <= MAX_TIMEOUT_SECONDS:
        violations.append(Violation("timeout_seconds", f"must be above 0 and at most {MAX_TIMEOUT_SECONDS:g}"))
    if not 0 < spec.max_output_bytes <= MAX_OUTPUT_BYTES:
        violations.append(Violation("max_output_bytes", f"must be above 0 and at most {MAX_OUTPUT_BYTES}"))
    return violations + _check_environment(spec.environment)


def _check_environment(environment: Mapping[str, str]) -> list[Violation]:
    violations: list[Violation] = []
    if len(environment) > MAX_VARIABLES:
        violations.append(Violation("environment", f"has {len(environment)} variables, at most {MAX_VARIABLES}"))
    for name, value in environment.items():
        path = f"environment[{name[:128]}]"
        if _VARIABLE_NAME.fullmatch(name) is None:
            violations.append(Violation(path, "must be letters, digits and _, not starting with a digit"))
        elif name in _FIXED_NAMES:
            violations.append(Violation(path, "is set by the sandbox and cannot be replaced"))
        elif name in _REFUSED_NAMES or name.startswith(_REFUSED_PREFIXES):
            violations.append(Violation(path, "is refused because it changes what runs before the code"))
        elif "\x00" in value:
            violations.append(Violation(path, "contains a NUL character; remove it"))
        elif len(value.encode()) > MAX_VALUE_BYTES:
            violations.append(Violation(path, f"is longer than {MAX_VALUE_BYTES} bytes"))
    return violations
