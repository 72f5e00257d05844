"""The terminal of `reach up` tells when a changed configuration is refused, and when it is in force."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from services.chassis.background import background
from services.local.configuration import ConfigurationWatch
from services.local.data import PACKAGED_CONFIG


async def test_a_fault_is_told_with_its_line_and_so_is_its_end(tmp_path: Path) -> None:
    config = tmp_path / "config"
    shutil.copytree(PACKAGED_CONFIG, config)
    policies, template = config / "policies.yaml", config / "templates" / "alert" / "email.text.j2"
    good = policies.read_text()
    told: asyncio.Queue[str] = asyncio.Queue()
    async with background(ConfigurationWatch(config, told.put_nowait).run()):
        policies.write_text(good.replace("user_daily_cap: 3", "user_daily_cap: many"))
        line = await told.get()
        assert line.startswith(f"configuration refused, the one before stays in force: {policies}:")
        assert "user_daily_cap" in line
        # Another comment says nothing else.
        policies.write_text("# A comment.\n" + good.replace("version: 3", "version: 4"))
        mended = await told.get()
        assert mended.startswith("configuration in force: version 4, hash ")
        policies.write_text(good.replace("version: 3", "version: 4"))
        template.write_text("Other words")
        assert await told.get() == mended
        assert told.empty()
