"""The configuration in force: swapped as a whole, never by an invalid file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import prometheus_client
import pytest

from services.catalog.catalog import Catalog
from services.catalog.errors import CatalogError
from services.catalog.holder import CatalogHolder
from services.chassis.clock import ManualClock

TEXT = "version: 1\npolicies: {default: {user_daily_cap: 3}}\nchannels: {email: {}}\n"


def write(folder: Path, cap: int | str) -> None:
    (folder / "policies.yaml").write_text(TEXT.replace("3", str(cap)), encoding="utf-8")


def cap(catalog: Catalog) -> int | None:
    return catalog.scene("x").policy.user_daily_cap


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, 3)
    return tmp_path


def test_a_catalog_in_hand_does_not_change_when_another_comes_into_force(folder: Path) -> None:
    holder = CatalogHolder(folder)
    before = holder.current
    write(folder, 4)
    assert holder.reload()
    assert (cap(before), cap(holder.current)) == (3, 4)
    assert before.version != holder.current.version


def test_an_invalid_file_changes_nothing_and_says_why(folder: Path) -> None:
    metrics = prometheus_client.CollectorRegistry()
    holder = CatalogHolder(folder, metrics)
    before = holder.current
    write(folder, "-1")
    assert not holder.reload()
    assert holder.current is before
    assert holder.last_error is not None
    assert holder.last_error.problems[0].line == 2
    assert metrics.get_sample_value("reach_catalog_reloads_total", {"result": "refused"}) == 1
    assert metrics.get_sample_value("reach_catalog_valid") == 0
    assert "policies.yaml:2: " in holder.describe()
    write(folder, 5)
    assert holder.reload()
    assert holder.last_error is None
    assert metrics.get_sample_value("reach_catalog_valid") == 1
    assert "refused" not in holder.describe()


def test_a_file_that_nobody_foresaw_changes_nothing_either(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = CatalogHolder(folder)
    before = holder.current

    def fail(_folder: Path) -> Catalog:
        raise RecursionError

    monkeypatch.setattr("services.catalog.holder.load_catalog", fail)
    assert not holder.reload()
    assert holder.current is before
    assert "cannot be checked: RecursionError" in holder.describe()


def test_what_is_in_force_has_its_time(folder: Path) -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    holder = CatalogHolder(folder, clock=clock)
    clock.advance(3_600)
    holder.reload()
    assert holder.loaded_at == datetime(2026, 3, 1, tzinfo=UTC)
    write(folder, 4)
    holder.reload()
    assert holder.loaded_at == datetime(2026, 3, 1, 1, tzinfo=UTC)


def test_listeners_hear_of_a_change_and_of_a_refusal_and_not_of_the_same_again(folder: Path) -> None:
    holder = CatalogHolder(folder)
    heard: list[int | None] = []
    holder.subscribe(lambda: heard.append(None if holder.last_error else cap(holder.current)))
    for number in (3, 4, 4, -1, -1, 4):
        write(folder, number)
        holder.reload()
    assert heard == [4, None, 4]


def test_without_a_valid_file_there_is_no_start(folder: Path) -> None:
    write(folder, "many")
    with pytest.raises(CatalogError):
        CatalogHolder(folder)


async def changed(holder: CatalogHolder, change: Callable[[], object]) -> Catalog:
    """Makes a change and returns the catalog that comes into force by it."""
    arrived: asyncio.Queue[Catalog] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def arrive() -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, holder.current)

    holder.subscribe(arrive)
    change()
    return await arrived.get()


async def test_a_change_of_a_file_comes_into_force_by_itself(folder: Path) -> None:
    holder = CatalogHolder(folder)
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(holder.watch(stopping))
        assert cap(await changed(holder, lambda: write(folder, 4))) == 4
        stopping.set()


async def test_a_mount_that_is_swapped_as_a_whole_comes_into_force(tmp_path: Path) -> None:
    # As Kubernetes does with a ConfigMap: the files are links into a folder that is replaced by renaming a link.
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        write(tmp_path / f"..{number}", number)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policies.yaml").symlink_to("..data/policies.yaml")
    holder = CatalogHolder(tmp_path)
    assert cap(holder.current) == 1

    def swap() -> None:
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")

    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(holder.watch(stopping))
        assert cap(await changed(holder, swap)) == 2
        stopping.set()


async def test_a_template_behind_a_linked_folder_comes_into_force(tmp_path: Path) -> None:
    text = tmp_path / "elsewhere" / "greeting" / "sms.text.j2"
    text.parent.mkdir(parents=True)
    text.with_name("template.yaml").write_text("required: []\n")
    text.write_text("Hello")
    folder = tmp_path / "config"
    folder.mkdir()
    write(folder, 3)
    (folder / "templates").symlink_to(text.parent.parent)
    holder = CatalogHolder(folder)
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(holder.watch(stopping))
        catalog = await changed(holder, lambda: text.write_text("Hallo"))
        assert catalog.templates["greeting"].parts["sms", "text"] == "Hallo"
        stopping.set()


async def test_a_watch_outlives_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    write(folder, 3)
    holder = CatalogHolder(folder)
    stopping = asyncio.Event()
    folder.rename(tmp_path / "away")
    async with asyncio.TaskGroup() as group:
        group.create_task(holder.watch(stopping))

        def back() -> None:
            write(tmp_path / "away", 4)
            (tmp_path / "away").rename(folder)

        assert cap(await changed(holder, back)) == 4
        stopping.set()
