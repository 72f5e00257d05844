"""Checks that requirements/dev.txt locks everything that both pyproject files ask for, at versions that fit them."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

_ROOT = Path(__file__).resolve().parent.parent
_OWN = {"agent-reach", "agent-reach-services"}


def wanted() -> Iterator[Requirement]:
    """Yields every requirement of the two distributions, their extras and their dependency groups."""
    for path in (_ROOT / "pyproject.toml", _ROOT / "sdk" / "pyproject.toml"):
        content = tomllib.loads(path.read_text())
        lists = [
            content["project"].get("dependencies", []),
            *content["project"].get("optional-dependencies", {}).values(),
            *content.get("dependency-groups", {}).values(),
        ]
        for text in (text for requirements in lists for text in requirements):
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) not in _OWN:
                yield requirement


def locked() -> dict[str, Version]:
    """Returns the locked version of each package that is for this Python."""
    versions: dict[str, Version] = {}
    for line in (_ROOT / "requirements" / "dev.txt").read_text().splitlines():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            [pin] = requirement.specifier
            versions[canonicalize_name(requirement.name)] = Version(pin.version)
    return versions


def main() -> int:
    """Prints what does not fit; returns the exit code."""
    versions = locked()
    faults = [
        f"{requirement}: locked is {versions.get(canonicalize_name(requirement.name), 'nothing')}"
        for requirement in wanted()
        if not requirement.specifier.contains(versions.get(canonicalize_name(requirement.name), Version("0")))
        or canonicalize_name(requirement.name) not in versions
    ]
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        print("error: requirements/dev.txt does not fit. Run: make lock", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
