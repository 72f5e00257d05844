"""The example of the durable engine does what it says, on a real database."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg

PAGE = Path(__file__).parents[2] / "docs" / "durable.md"


def test_the_example_of_the_durable_engine_makes_its_calls(database: str, tmp_path: Path) -> None:
    example, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    dsn = "postgresql://shop@localhost/shop"
    assert dsn in example
    script = tmp_path / "calls.py"
    # Its lines are busy by chance; here the first one is, once.
    chance = "random.random() < 0.5"
    assert chance in example
    busy = "import itertools\nbusy = itertools.chain([True], itertools.repeat(False))\n"
    script.write_text(busy + example.replace(dsn, database).replace(chance, "next(busy)"))
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        made = "SELECT count(*) FROM shop.calls WHERE made_at IS NOT NULL AND finished_at IS NOT NULL"
        while (calls := _count(database, made)) < 2 and run.poll() is None:
            time.sleep(0.05)  # what is asked lies in a database, which sets no event
        run.send_signal(signal.SIGKILL)
        output, _ = run.communicate()
    assert calls == 2, output


def _count(dsn: str, query: str) -> int:
    with psycopg.connect(dsn) as connection:
        try:
            row = connection.execute(query).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return 0
    return int(row[0]) if row else 0
