"""The Python of the pages, run as it stands there against a whole system."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.demo.world import World
from services.demo.zones import day_zone
from services.local.data import PACKAGED_CONFIG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = PACKAGED_CONFIG.parent
PAGES = ("README.md", "docs/agents.md", "docs/people.md", "docs/sandbox.md")


async def test_the_examples_run_as_they_stand_there(short_directory: Path, tmp_path: Path) -> None:
    async with World(short_directory) as world:
        targets = world.stack.endpoints.targets
        ports = {7401: targets["intake"], 7402: targets["policy"], 7404: targets["sandbox"]}
        for page in PAGES:
            # In their order: a later block goes on from an earlier one.
            blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
            code = "\n\n".join(blocks)
            for port, target in ports.items():
                code = code.replace(f"127.0.0.1:{port}", target)
            # By day, else the message waits for the morning, and the example with it.
            code = code.replace("Europe/London", day_zone(datetime.now(UTC)))
            script = tmp_path / "example.py"
            script.write_text(code.replace("reach_…", world.stack.keys.agent))
            environment = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
            process = await asyncio.create_subprocess_exec(
                sys.executable, script, stdout=PIPE, stderr=STDOUT, env=environment
            )
            output, _ = await process.communicate()
            assert process.returncode == 0, f"{page}: {output.decode()}"
            assert output or page == "docs/people.md", page
