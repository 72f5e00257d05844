"""The data directory: one holder, secrets made once and readable for their owner only."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from services.chassis.api_keys import KeyRing
from services.chassis.startup import StartupError
from services.local.data import PACKAGED_CONFIG, TENANT, DataDirectory

_HOLD = """
import sys
from pathlib import Path
from services.local.data import DataDirectory
with DataDirectory(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_told_who_holds_it_and_gets_it_when_that_one_is_killed(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, data.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StartupError, match=f"held by process {holder.pid}, since 20") as caught, data.held():
            pass
        assert "--data" in caught.value.advice
        holder.kill()
        holder.wait()
    with data.held():
        assert json.loads(data.lock_file.read_text())["pid"] == os.getpid()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot be used"), DataDirectory(tmp_path / "file" / "data").held():
        pass


def test_secrets_are_made_once_and_are_for_their_owner_only(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    keys = data.keys()
    assert data.keys() == keys
    assert stat.S_IMODE(data.keys_file.stat().st_mode) == 0o600
    assert keys.agent not in data.api_keys_file.read_text()


def test_the_services_know_the_agent_and_the_operator(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    keys = data.keys()
    ring = KeyRing.load(data.api_keys_file, keys.service)
    assert [ring.authenticate(key).tenant for key in (keys.agent, keys.operator)] == [TENANT, TENANT]
    assert ring.authenticate(keys.agent).role != ring.authenticate(keys.operator).role


def test_damaged_secrets_are_named_with_what_to_do(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    data.keys_file.write_text("{")
    with pytest.raises(StartupError, match=r"keys\.json cannot be read") as caught:
        data.keys()
    assert "remove it" in caught.value.advice


def test_the_configuration_here_goes_before_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    data = DataDirectory(tmp_path / "data")
    data.path.mkdir()
    copy = data.config()
    assert copy == data.path / "config"
    assert (copy / "policies.yaml").read_bytes() == (PACKAGED_CONFIG / "policies.yaml").read_bytes()
    (here / "config").mkdir()
    (here / "config" / "policies.yaml").touch()
    assert data.config() == here / "config"
