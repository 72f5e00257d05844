"""Whatever a file holds, it is refused with a reason, and before it costs much."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.catalog.errors import CatalogError
from services.catalog.policies import load_policies, parse_policies
from services.catalog.yaml_file import MAX_BYTES

HEAD = "version: 1\npolicies: {default: {user_daily_cap: 3}}\nchannels: {email: {}}\n"


def bomb(line: str) -> str:
    """Returns a file of which every line says the one before ten times."""
    lines = ["a0: &a0 {x: 1}\n"]
    lines += [line.format(here=number + 1, all=", ".join([f"*a{number}"] * 10)) for number in range(30)]
    return "".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (bomb("a{here}: &a{here} [{all}]\n"), 6, "unfolds to more than"),
        (bomb("a{here}: &a{here} {{<<: [{all}], y{here}: 1}}\n"), 6, "unfolds to more than"),
        ("a: &a [*a]\n", 1, "contains itself"),
        ("a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}]\n" for n in range(5_000)), 33, "nested deeper"),
        ("".join(" " * depth + "a:\n" for depth in range(200)), 33, "nested deeper"),
        ("a: " + "[" * 100_000, 1, "nest"),
        ("a: " + "{b: " * 100_000, 1, "nest"),
        (f"version: {'9' * 100_000}", 1, "limit"),
        ("version: !!timestamp 2026-13-45", 1, "month"),
        ("version: !!python/object/apply:os.getcwd []", 1, "could not determine a constructor"),
        ("? [a]\n: b", 1, "unhashable"),
        ("!!timestamp 2026-01-01: b", 1, "2026-01-01: is not a known setting"),
        ("# a\u2028b\x85c\u2029\nfoo: 1", 2, "foo: is not a known setting"),
        ("no: 1\nno: 2", 2, "no: stands here a second time"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: \0", None, "control characters"),
        ("[]", 1, "object"),
        ("", 1, "version"),
    ],
)
def test_a_file_that_would_cost_or_break_us_is_refused(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(CatalogError) as caught:
        parse_policies(text, Path("policies.yaml"))
    found = [(problem.line, problem.reason) for problem in caught.value.problems]
    assert any(at == line and reason in words for at, words in found), found


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(CatalogError, match="larger than 1048576 bytes"):
        load_policies(file)


def test_a_file_that_is_just_not_too_large_loads(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(HEAD + "#" * (MAX_BYTES - len(HEAD)), encoding="utf-8")
    assert load_policies(file).revision == 1


def test_anchors_and_merges_are_at_hand() -> None:
    text = HEAD + "scenes:\n  a: &a {category: marketing, share: 0.5}\n  b: *a\n  c: {<<: *a, share: 0.1}\n"
    policies = parse_policies(text, Path("policies.yaml"))
    assert [policies.scene(name).share for name in "abc"] == [0.5, 0.5, 0.1]


def test_a_name_is_what_is_written_whatever_yaml_makes_of_such_a_value() -> None:
    names = ["on", "yes", "no", "true", "null", "1.10", "1.1", "1e3", "007", "2026-01-01"]
    scenes = ", ".join(f"{name}: {{share: 0.{number}}}" for number, name in enumerate(names))
    policies = parse_policies(f"{HEAD}scenes: {{{scenes}, a: {{<<: {{share: 0.5}}}}}}", Path("policies.yaml"))
    assert [at[-1] for at, _ in policies.declared()] == [*names, "a"]
    assert [policies.scene(name).share for name in [*names, "a"]] == [*(n / 10 for n in range(10)), 0.5]
    with pytest.raises(CatalogError, match=r"policies.yaml:4: scenes\.~: "):
        parse_policies(HEAD + "scenes: {~: {}}", Path("policies.yaml"))


def test_times_need_no_quotes_and_mean_what_an_editor_shows() -> None:
    text = HEAD.replace("user_daily_cap: 3", "quiet_hours: [22:30, 08:00]")
    [window] = parse_policies(text, Path("policies.yaml")).scene("x").policy.quiet_hours
    assert (window.start.hour, window.start.minute, window.end.hour) == (22, 30, 8)


def test_two_thousand_faults_are_all_told() -> None:
    text = HEAD + "scenes:\n" + "".join(f"  s{number}: {{policy: nowhere}}\n" for number in range(2_000))
    with pytest.raises(CatalogError) as caught:
        parse_policies(text, Path("policies.yaml"))
    assert [problem.line for problem in caught.value.problems] == list(range(5, 2_005))
