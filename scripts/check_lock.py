"""Checks that requirements/ locks everything that both pyproject files ask for, at versions that fit them.

``bench.txt`` locks the group ``bench``, and where it names what ``dev.txt`` names too, at the same version.
"""

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


def wanted() -> Iterator[tuple[str, Requirement]]:
    """Yields every requirement of the two distributions, their extras and groups, after the file that locks it."""
    for path in (_ROOT / "pyproject.toml", _ROOT / "sdk" / "pyproject.toml"):
        content = tomllib.loads(path.read_text())
        groups = content.get("dependency-groups", {})
        optional = content["project"].get("optional-dependencies", {})
        lists = [
            ("bench.txt", groups.pop("bench", [])),
            ("dev.txt", content["project"].get("dependencies", [])),
            *(("dev.txt", requirements) for requirements in (*optional.values(), *groups.values())),
        ]
        for file, requirements in lists:
            for requirement in map(Requirement, requirements):
                if canonicalize_name(requirement.name) not in _OWN:
                    yield file, requirement


def locked(file: str) -> dict[str, Version]:
    """Returns the version of each package that a file locks for this Python."""
    versions: dict[str, Version] = {}
    for line in (_ROOT / "requirements" / file).read_text().splitlines():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            [pin] = requirement.specifier
            versions[canonicalize_name(requirement.name)] = Version(pin.version)
    return versions


def main() -> int:
    """Prints what does not fit; returns the exit code."""
    versions = {file: locked(file) for file in ("dev.txt", "bench.txt")}
    faults = []
    for file, requirement in wanted():
        version = versions[file].get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version):
            faults.append(f"{requirement}: {file} locks {version or 'nothing'}")
    for name, version in versions["bench.txt"].items():
        if (shared := versions["dev.txt"].get(name, version)) != version:
            faults.append(f"{name}: bench.txt locks {version}, dev.txt {shared}")
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        print("error: requirements/ does not fit. Run: make lock", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
