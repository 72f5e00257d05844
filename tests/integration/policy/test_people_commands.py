"""`reach suppressions`, `reach profiles`, `reach preferences`, as an operator types them, against the real service."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from click.testing import CliRunner, Result

from agent_reach import AsyncReach, preference, profile, suppression, suppression_query
from agent_reach.cli import imports
from agent_reach.cli.group import load_commands

from .support import Served
from .test_server import AGENT, OPERATOR, STRANGER

_REACH = Path(sys.executable).parent / "reach"
Reach = Callable[..., Coroutine[Any, Any, Result]]


@pytest.fixture
def reach(served: Served) -> Iterator[Reach]:
    async def run(*arguments: str | Path, key: str = OPERATOR, stdin: str | None = None) -> Result:
        environment = {"REACH_TARGET": served.target, "REACH_API_KEY": key, "COLUMNS": "300"}
        # In a thread: the service runs in the loop of this one.
        return await asyncio.to_thread(
            CliRunner().invoke, load_commands(), [str(each) for each in arguments], env=environment, input=stdin
        )

    # The service's log would stand between what the command prints.
    with structlog.testing.capture_logs():
        yield run


async def listed(reach: Reach, *filters: str, key: str = OPERATOR) -> list[dict[str, str]]:
    result = await reach("suppressions", "list", "--json", "--limit", "5000", *filters, key=key)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_suppressions_are_added_checked_listed_and_lifted(reach: Reach) -> None:
    added = await reach(
        "suppressions", "add", "--address", "Ann@Example.com", "--category", "marketing", "--note", "by \x1b phone"
    )
    assert added.exit_code == 0, added.stderr
    assert "email:ann@example.com  only marketing  operator by acme-operator  by \\x1b phone" in added.stdout
    checked = await reach("suppressions", "check", "--address", "ann@example.com", "--category", "marketing")
    assert checked.stdout.startswith("withheld: address_suppressed\n")
    # Without a category, each of them.
    everything = (await reach("suppressions", "check", "--address", "ann@example.com")).stdout.splitlines()
    assert [line for line in everything if line.startswith(("marketing", "notification"))] == [
        "notification no suppression or opt-out withholds it",
        "marketing    withheld: address_suppressed",
    ]
    nothing = (await reach("suppressions", "check", "--user", "ann", "--category", "alert")).stdout
    assert nothing == "no suppression or opt-out withholds it\n"
    (entry,) = await listed(reach, "--address", "ann@example.com", "--source", "operator")
    lifted = await reach("suppressions", "lift", "-", stdin=f"{entry['suppression_id']}\n\n")
    assert lifted.stdout == "1 lifted\n"
    assert not await listed(reach)
    with_lifted = (await reach("suppressions", "list", "--include-lifted")).stdout
    assert "lifted 2" in with_lifted
    assert "by acme-operator" in with_lifted


async def test_an_agent_may_not_lift(reach: Reach) -> None:
    result = await reach("suppressions", "lift", "0198b2a0-0000-7000-8000-000000000000", key=AGENT)
    assert result.exit_code == 1
    assert "use the key of an operator" in result.stderr


async def test_an_import_stores_the_good_lines_and_names_the_bad_ones(reach: Reach, tmp_path: Path) -> None:
    path, rejects = tmp_path / "list.csv", tmp_path / "rejects.jsonl"
    path.write_text(
        "user_id,address,category,source,note\n"
        "ann,,marketing,unsubscribe,by link\n"
        "bob,email:bob@example.com,,,\n"
        "carol,,fun,,\n"
        ",sms:+41446681800,,,\n"
        ",email:nobody,,,\n"
        "dora,,,hearsay,\n"
        "erin,,,,\n"
        "fred,,marketing\n"
    )
    result = await reach("suppressions", "import", path, "--rejects", rejects)
    assert result.exit_code == imports.SOME_REFUSED
    assert result.stdout == "3 stand, 5 refused\n"
    for told in (
        "line 3: user_id: set either this or address",
        "line 4: category: 'fun' is not one of verification, alert, notification, marketing",
        "line 6: address: is no e-mail address",
        "line 7: source: 'hearsay' is not one of",
        "line 9: has 3 fields, the header has 5",
    ):
        assert told in result.stderr
    assert {(entry.get("user_id"), entry["source"]) for entry in await listed(reach)} == {
        ("ann", "SUPPRESSION_SOURCE_UNSUBSCRIBE"),
        (None, "SUPPRESSION_SOURCE_IMPORT"),
        ("erin", "SUPPRESSION_SOURCE_IMPORT"),
    }
    again = await reach("suppressions", "import", path, "--source", "complaint", "--from-line", "8")
    assert (again.exit_code, again.stdout) == (imports.SOME_REFUSED, "1 stand, 1 refused\n")
    assert len(await listed(reach)) == 4
    kept = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [each["line"] for each in kept] == ["3", "4", "6", "7", "9"]
    assert kept[-1]["raw"] == "fred,,marketing"


async def test_an_import_can_be_repeated_and_comes_from_standard_input_too(reach: Reach) -> None:
    lines = "".join(json.dumps({"user_id": f"u{number}"}) + "\n" for number in range(2_500))
    for _ in range(2):
        result = await reach("suppressions", "import", "-", "--format", "jsonl", stdin=lines)
        assert (result.exit_code, result.stdout) == (0, "2,500 stand, 0 refused\n"), result.stderr
    assert len(await listed(reach)) == 2_500


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
async def test_what_was_exported_can_be_imported_elsewhere_and_what_was_lifted_stays_lifted(
    reach: Reach, tmp_path: Path, kind: str
) -> None:
    source = tmp_path / "in.csv"
    source.write_text(
        "user_id,address,channel,category,source,note\n"
        'ann,,sms,marketing,complaint,"a ""note"", with\nlines"\n'
        ",email:müller@example.com,,,bounce,\n"
        "lifted,,,,,\n"
    )
    await reach("suppressions", "import", source)
    (gone,) = await listed(reach, "--user", "lifted")
    await reach("suppressions", "lift", gone["suppression_id"])
    exported = tmp_path / f"out.{kind}"
    written = await reach("suppressions", "export", exported, "--include-lifted")
    assert written.stderr.endswith("3 written\n")
    elsewhere = await reach("suppressions", "import", exported, key=STRANGER)
    assert elsewhere.stdout == "2 stand, 0 refused, 1 left out (lifted)\n", elsewhere.stderr

    def content(entry: dict[str, str]) -> dict[str, str]:
        return {name: entry[name] for name in entry.keys() - {"suppression_id", "created_by", "created_at"}}

    theirs, ours = await listed(reach, key=STRANGER), await listed(reach)
    assert sorted(map(repr, map(content, theirs))) == sorted(map(repr, map(content, ours)))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
async def test_an_export_keeps_every_character_of_a_user_and_of_a_note(
    reach: Reach, tmp_path: Path, kind: str
) -> None:
    source, exported = tmp_path / "in.jsonl", tmp_path / f"out.{kind}"
    source.write_text(json.dumps({"user_id": " lead ", "note": "  as told\n"}) + "\n")
    await reach("suppressions", "import", source)
    await reach("suppressions", "export", exported)
    assert (await reach("suppressions", "import", exported)).stdout == "1 stand, 0 refused\n"
    assert [(entry["user_id"], entry["note"]) for entry in await listed(reach)] == [(" lead ", "  as told\n")]


async def test_an_address_is_not_suppressed_on_a_channel_that_is_not_its_own(reach: Reach, tmp_path: Path) -> None:
    told = "channel: is another one than that of the address"
    added = await reach("suppressions", "add", "--address", "ada@example.com", "--channel", "sms")
    assert (added.exit_code, told in added.stderr) == (1, True)
    path = tmp_path / "list.csv"
    path.write_text("address,channel\nemail:ada@example.com,sms\nemail:ada@example.com,email\n")
    result = await reach("suppressions", "import", path)
    assert (result.stdout, f"line 2: {told}" in result.stderr) == ("1 stand, 1 refused\n", True)
    assert [entry["channel"] for entry in await listed(reach)] == ["CHANNEL_EMAIL"]


async def test_an_unknown_column_stops_an_import_before_anything_is_stored(reach: Reach) -> None:
    result = await reach("suppressions", "import", "-", stdin="user\nann\n")
    assert result.exit_code == 1
    assert "there is no column 'user'" in result.stderr
    assert not await listed(reach)


async def test_profiles_are_imported_with_their_bad_lines_named_and_exported_again(
    reach: Reach, tmp_path: Path
) -> None:
    path, exported = tmp_path / "profiles.csv", tmp_path / "out.jsonl"
    path.write_text(
        "user_id,email,sms,locale,time_zone\n"
        "ann,Ann@Example.com,+41 44 668 18 00,de-CH,Europe/Zurich\n"
        "bob,bob@example.com,12,en,Asia/Nowhere\n"
        "carol,,,,\n"
        "carol,carol@example.com,,fr,\n"
    )
    result = await reach("profiles", "import", path)
    assert result.exit_code == imports.SOME_REFUSED
    assert result.stdout == "3 stored, 1 refused\n"
    assert "line 3: time_zone: is no known IANA time zone" in result.stderr
    assert "sms: is no phone number" in result.stderr
    shown = (await reach("profiles", "show", "ann")).stdout
    assert "email      ann@example.com\nsms        +41446681800\n" in shown
    assert json.loads((await reach("profiles", "show", "carol", "--json")).stdout)["locale"] == "fr"
    missing = await reach("profiles", "show", "bob")
    assert (missing.exit_code, "there is none of this user" in missing.stderr) == (1, True)
    assert (await reach("profiles", "export", exported)).exit_code == 0
    assert (await reach("profiles", "import", exported, key=STRANGER)).stdout == "2 stored, 0 refused\n"
    assert (await reach("profiles", "show", "ann", key=STRANGER)).stdout == shown


async def test_an_export_of_profiles_goes_on_from_page_to_page(reach: Reach, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"user_id": f"u{number}"}) + "\n" for number in range(2_345))
    await reach("profiles", "import", "-", "--format", "jsonl", stdin=lines)
    exported = (await reach("profiles", "export", "-")).stdout.splitlines()
    assert len(set(exported)) == len(exported) == 2_346


async def test_preferences_are_set_and_shown(reach: Reach) -> None:
    assert (await reach("preferences", "show", "ann")).stdout == "no choice is stored\n"
    chosen = await reach("preferences", "set", "ann", "opt-out", "--category", "marketing", "--channel", "sms")
    assert "opted out  marketing, sms" in chosen.stdout
    await reach("preferences", "set", "ann", "opt-in")
    shown = (await reach("preferences", "show", "ann")).stdout
    assert "opted in  every category, every channel" in shown
    assert "by acme-operator" in shown
    await reach("preferences", "set", "ann", "none")
    assert "opted in" not in (await reach("preferences", "show", "ann")).stdout


async def test_the_client_for_asyncio_does_the_same(served: Served) -> None:
    async with AsyncReach(served.target, api_key=OPERATOR) as client:
        await client.upsert_profiles([profile("ann", addresses=["ann@example.com"])])
        assert [each.user_id async for each in client.list_profiles(page_size=1)] == ["ann"]
        stored = await client.suppress_many(
            [suppression(address="ann@example.com", source="bounce"), suppression(user_id="bob")]
        )
        assert len(stored.suppressions) == 2
        set_ = await client.set_preferences([preference("carol", opt_in=False, category="marketing")])
        assert set_.in_flight == 0
        assert [each.user_id for each in await client.get_preferences(["carol", "ann"])] == ["carol"]
        answers = await client.check_suppressions(
            [
                suppression_query(user_id="ann", channel="email"),
                suppression_query(user_id="bob", category="verification"),
                suppression_query(user_id="carol", category="marketing"),
            ]
        )
        assert [answer.reason for answer in answers] == ["address_bounced", "", "preference_opted_out"]
        bounces = [each async for each in client.list_suppressions(source="bounce", page_size=1)]
        assert await client.lift([each.suppression_id for each in bounces]) == 1
        lifted = [each.lifted_by async for each in client.list_suppressions(source="bounce", include_lifted=True)]
        assert lifted == [OPERATOR]


_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], check=False).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_list_of_a_hundred_thousand_is_imported_and_exported_in_the_memory_of_a_short_one(
    served: Served, tmp_path: Path
) -> None:
    async def measured(*arguments: str | Path) -> int:
        """Runs the command in a process of its own; returns the KiB that it took at most."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _MEASURED, _REACH, *map(str, arguments),
            env={**os.environ, "REACH_TARGET": served.target, "REACH_API_KEY": OPERATOR},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
        code, kibibytes = output.decode().split()[-2:]
        assert code == "0", output
        return int(kibibytes)

    peaks = {}
    for lines in (10_000, 100_000):
        path, exported = tmp_path / f"{lines}.csv", tmp_path / f"{lines}.jsonl"
        with path.open("w") as file:
            file.write("user_id,address,category\n")
            for number in range(0, lines, 2):
                file.write(f"u{number},,marketing\n,email:u{number}@example.com,\n")
        peaks[lines] = [
            await measured("suppressions", "import", path),
            await measured("suppressions", "export", exported),
        ]
        with exported.open() as file:
            assert sum(1 for _ in file) == lines
    grown = [long - short for short, long in zip(*peaks.values(), strict=True)]
    assert max(grown) < 20 * 1024, f"KiB by import and export: {peaks}"
