"""A second file that is tried beside the one in force."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from services.catalog.catalog import load_catalog
from services.catalog.errors import CatalogError

TEXT = "version: {}\npolicies: {{default: {{user_daily_cap: {}}}}}\nchannels: {{email: {{}}}}\n"


def write(folder: Path, *, shadow: str = "", other: str = TEXT.format(4, 1)) -> None:
    (folder / "policies.yaml").write_text(TEXT.format(3, 3) + shadow)
    (folder / "policies.next.yaml").write_text(other)


def faults(folder: Path) -> list[tuple[str, int | None, str]]:
    with pytest.raises(CatalogError) as caught:
        load_catalog(folder)
    return [(problem.file.name, problem.line, problem.reason) for problem in caught.value.problems]


def test_the_shadow_says_what_its_file_says_and_for_whom_it_is_asked(tmp_path: Path) -> None:
    write(tmp_path, shadow="shadow: {file: policies.next.yaml, share: 0.1, scenes: [sale]}\n")
    catalog = load_catalog(tmp_path)
    assert catalog.shadow is not None
    assert (catalog.shadow.share, catalog.shadow.scenes) == (0.1, frozenset({"sale"}))
    assert catalog.shadow.policies.scene("sale").policy.user_daily_cap == 1
    assert catalog.shadow.policies.revision == 4
    assert catalog.scene("sale").policy.user_daily_cap == 3


def test_without_one_there_is_none_and_by_default_it_is_asked_for_all(tmp_path: Path) -> None:
    write(tmp_path)
    assert load_catalog(tmp_path).shadow is None
    write(tmp_path, shadow="shadow: {file: policies.next.yaml}\n")
    shadow = load_catalog(tmp_path).shadow
    assert shadow is not None
    assert (shadow.share, shadow.scenes) == (1.0, None)


def test_the_shadow_changes_the_catalog_and_not_the_version_of_the_decisions(tmp_path: Path) -> None:
    write(tmp_path)
    alone = load_catalog(tmp_path)
    write(tmp_path, shadow="shadow: {file: policies.next.yaml}\n")
    shadowed = load_catalog(tmp_path)
    write(tmp_path, shadow="shadow: {file: policies.next.yaml}\n", other=TEXT.format(4, 2))
    otherwise = load_catalog(tmp_path)
    assert len({catalog.policy_version for catalog in (alone, shadowed, otherwise)}) == 1
    assert len({catalog.version for catalog in (alone, shadowed, otherwise)}) == 3


def test_a_shadow_that_is_not_there_is_told_where_it_is_named_beside_the_other_faults(tmp_path: Path) -> None:
    write(
        tmp_path, shadow="shadow:\n  share: 0.5\n  file: nope.yaml\nscenes: {alert: {quiet_hours: [22:00, 07:00]}}\n"
    )
    assert [(file, line, reason.partition(";")[0]) for file, line, reason in faults(tmp_path)] == [
        ("policies.yaml", 6, "shadow.file: nope.yaml cannot be read: No such file or directory"),
        ("policies.yaml", 7, "scenes.alert.quiet_hours: has no effect on what is exempt"),
    ]


def test_a_fault_in_the_shadow_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, shadow="shadow: {file: policies.next.yaml}\n", other=TEXT.format(4, -1))
    [(file, line, reason)] = faults(tmp_path)
    assert (file, line) == ("policies.next.yaml", 2)
    assert "user_daily_cap" in reason


def test_a_shadow_has_no_shadow(tmp_path: Path) -> None:
    other = TEXT.format(4, 1) + "shadow: {file: policies.yaml}\n"
    write(tmp_path, shadow="shadow: {file: policies.next.yaml}\n", other=other)
    assert faults(tmp_path) == [
        ("policies.next.yaml", 4, "shadow: a file that is in the shadow of another has none itself")
    ]


def test_faults_of_both_files_are_told_at_once(tmp_path: Path) -> None:
    shadow = "shadow: {file: policies.next.yaml}\nscenes: {verify_code: {digest: {window_seconds: 5}}}\n"
    write(tmp_path, shadow=shadow, other=TEXT.format(4, -1))
    assert {file for file, _, _ in faults(tmp_path)} == {"policies.yaml", "policies.next.yaml"}


def test_the_caps_of_the_shadow_tell_how_long_the_counters_must_look_back(tmp_path: Path) -> None:
    caps = "categories: {{marketing: {{user_window_caps: [{{messages: 1, days: {}}}]}}}}\n"
    write(tmp_path, shadow=caps.format(2) + "shadow: {file: policies.next.yaml}\n", other=TEXT.format(4, 1))
    assert load_catalog(tmp_path).policies.longest_window == timedelta(days=2)
    write(
        tmp_path,
        shadow=caps.format(2) + "shadow: {file: policies.next.yaml}\n",
        other=TEXT.format(4, 1) + caps.format(9),
    )
    assert load_catalog(tmp_path).policies.longest_window == timedelta(days=9)
