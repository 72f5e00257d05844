"""Imports: batches under way together, good rows beside bad ones, and where to go on after a break."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from agent_reach.cli import imports
from agent_reach.cli.failures import CommandError
from agent_reach.cli.imports import Importer, import_file
from agent_reach.client import people
from agent_reach.client.errors import InvalidArgumentError, UnavailableError, Violation
from agent_reach.v1 import profile_pb2

Profiles = Sequence[profile_pb2.Profile]


def build(values: Mapping[str, str]) -> profile_pb2.Profile | None:
    return None if values["locale"] == "gone" else people.profile(values["user_id"], locale=values["locale"])


def importer(send: Callable[[Profiles], int], *, ordered: bool = True) -> Importer[profile_pb2.Profile]:
    return Importer(
        columns=("user_id", "locale"),
        ignored=(),
        verbatim=("user_id",),
        build=build,
        key=lambda profile: profile.user_id if ordered else "",
        send=send,
        field="profiles",
        column=lambda _, field: field,
    )


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    def write(*rows: tuple[str, str]) -> str:
        path = tmp_path / "profiles.csv"
        path.write_text("user_id,locale\n" + "".join(f"{user},{locale}\n" for user, locale in rows))
        return str(path)

    return write


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three rows, and no patience."""
    monkeypatch.setattr(imports, "_MAX_BATCH_ROWS", 3)
    monkeypatch.setattr(imports, "_PATIENCE_SECONDS", 0.0)


class Service:
    """Refuses locales that begin with `bad`, and names two rows at most, as the real one names what fits."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, batch: Profiles) -> int:
        with self.lock:
            self.calls += 1
            wrong = [index for index, profile in enumerate(batch) if profile.locale.startswith("bad")]
            if wrong:
                violations = [Violation(f"profiles[{index}].locale", "is no language tag") for index in wrong[:2]]
                raise InvalidArgumentError("wrong", violations=violations)
            self.stored |= {profile.user_id: profile.locale for profile in batch}
            return 1


def test_every_good_row_is_stored_and_every_bad_one_told(
    file: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service, rejects = Service(), tmp_path / "rejects.csv"
    rows = [(f"u{number}", "bad" if number % 10 in {1, 2, 3, 4} else "de") for number in range(40)]
    tally = import_file(importer(service), file(*rows), None, 1, str(rejects))
    assert (tally.stored, tally.refused) == (24, 16)
    assert set(service.stored) == {user for user, locale in rows if locale == "de"}
    told = re.findall(r"line (\d+): locale: is no language tag", capsys.readouterr().err)
    assert told == [str(number + 2) for number in range(40) if rows[number][1] == "bad"], "in the order of the file"
    assert rejects.read_text().splitlines()[:2] == [
        "user_id,locale,line,reason,raw",
        "u1,bad,3,locale: is no language tag,",
    ]


def test_refused_rows_can_be_mended_and_imported_again(file: Callable[..., str], tmp_path: Path) -> None:
    service, rejects = Service(), tmp_path / "rejects.csv"
    import_file(importer(service), file(("ann", "bad"), ("bob", "de")), None, 1, str(rejects))
    rejects.write_text(rejects.read_text().replace("ann,bad", "ann,fr"))
    assert import_file(importer(service), str(rejects), None, 1, None).stored == 1
    assert service.stored == {"ann": "fr", "bob": "de"}


@pytest.mark.parametrize("name", ["rejects.csv", "rejects.jsonl"])
def test_rows_that_could_not_be_read_are_kept_as_they_stood_and_can_be_mended(tmp_path: Path, name: str) -> None:
    service, rejects, path = Service(), tmp_path / name, tmp_path / "profiles.csv"
    path.write_bytes(b'user_id,locale\nann,de\nbob\ncarol,"d\ndora,fr\nM\xfcller\n')
    tally = import_file(importer(service), str(path), None, 1, str(rejects))
    assert (tally.stored, tally.refused) == (2, 3)
    kept = rejects.read_bytes()
    assert all(raw in kept for raw in (b"bob", b"carol,", b"M\xfcller"))
    again = tmp_path / f"again.{name}"
    assert import_file(importer(service), str(rejects), None, 1, str(again)).refused == 3
    assert b"bob" in again.read_bytes(), "nothing is lost by importing it before it is mended"
    mended = {
        "rejects.csv": kept.replace(b",,3,", b"bob,en,3,").replace(b",,4,", b"carol,de,4,"),
        "rejects.jsonl": kept.replace(b'{"line":"3"', b'{"user_id":"bob","locale":"en","line":"3"').replace(
            b'{"line":"4"', b'{"user_id":"carol","locale":"de","line":"4"'
        ),
    }
    rejects.write_bytes(mended[name])
    assert import_file(importer(service), str(rejects), None, 1, None).stored == 2
    assert service.stored == {"ann": "de", "bob": "en", "carol": "de", "dora": "fr"}


def test_blanks_that_belong_to_a_user_are_kept_and_others_are_not(file: Callable[..., str]) -> None:
    service = Service()
    import_file(importer(service), file((" lead", " de ")), None, 1, None)
    assert service.stored == {" lead": "de"}


def test_a_row_that_no_request_can_carry_is_refused_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profiles.csv"
    path.write_bytes(b"user_id,locale\nM\xfcller,de\nann,de\n")
    service = Service()
    assert import_file(importer(service), str(path), None, 1, None).refused == 1
    assert "line 2: user_id: contains a lone surrogate" in capsys.readouterr().err
    assert set(service.stored) == {"ann"}


def test_only_the_first_refusals_are_shown(file: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    import_file(importer(Service()), file(*((f"u{number}", "bad") for number in range(50))), None, 1, None)
    shown = capsys.readouterr().err
    assert shown.count("line ") == 20
    assert "30 more lines were refused" in shown


def test_of_two_rows_of_one_user_the_later_one_counts_however_many_are_under_way(file: Callable[..., str]) -> None:
    running: set[str] = set()
    service, lock = Service(), threading.Lock()

    def send(batch: Profiles) -> int:
        users = {profile.user_id for profile in batch}
        with lock:
            assert not users & running, "one user twice at the same time"
            running.update(users)
        service(batch)
        with lock:
            running.difference_update(users)
        return 0

    rows = [(f"u{number % 7}", f"l{number}") for number in range(100)]
    import_file(importer(send), file(*rows), None, 1, None)
    assert service.stored == dict(rows)


def test_several_batches_are_under_way_at_once(file: Callable[..., str]) -> None:
    together = threading.Barrier(4, timeout=20)

    def send(batch: Profiles) -> int:
        together.wait()
        return 0

    rows = [(f"u{number}", "de") for number in range(24)]
    assert import_file(importer(send), file(*rows), None, 1, None).stored == 24


def test_after_a_break_it_says_where_to_go_on_and_going_on_completes_it(
    file: Callable[..., str], tmp_path: Path
) -> None:
    service, rejects = Service(), tmp_path / "rejects.csv"
    path = file(("u0", "bad"), *((f"u{number}", "de") for number in range(1, 30)))

    def breaks(batch: Profiles) -> int:
        if any(profile.user_id == "u10" for profile in batch):
            raise UnavailableError("the service is away")
        return service(batch)

    with pytest.raises(CommandError, match="the service is away") as caught:
        import_file(importer(breaks), path, None, 1, str(rejects))
    assert "u0,bad,2," in rejects.read_text(), "what was refused before the break is kept"
    found = re.search(r"--from-line (\d+)", caught.value.advice)
    assert found is not None
    line = int(found[1])
    assert {f"u{number}" for number in range(1, line - 2)} <= set(service.stored)
    import_file(importer(service), path, None, line, None)
    assert len(service.stored) == 29


def test_a_refusal_that_names_no_row_stops_the_import(file: Callable[..., str]) -> None:
    def send(batch: Profiles) -> int:
        raise InvalidArgumentError("tenant: is required", violations=[Violation("tenant", "is required")])

    with pytest.raises(CommandError, match="tenant"):
        import_file(importer(send), file(("ann", "de")), None, 1, None)


def test_rows_that_mean_nothing_here_are_left_out(file: Callable[..., str]) -> None:
    service = Service()
    tally = import_file(importer(service), file(("ann", "gone"), ("bob", "de")), None, 1, None)
    assert (tally.stored, tally.left_out, tally.in_flight) == (1, 1, 1)


def test_what_counts_is_the_size_of_a_batch_in_bytes_too(
    file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_MAX_BATCH_BYTES", 25)
    sizes: list[int] = []

    def send(batch: Profiles) -> int:
        sizes.append(len(batch))
        return 0

    import_file(importer(send, ordered=False), file(*(("u" * 20, "de") for _ in range(4))), None, 1, None)
    assert sizes == [1, 1, 1, 1]
