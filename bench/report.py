"""How every benchmark tells what it measured: a table for people, one JSON line for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table


def report(title: str, figures: Mapping[str, float], meanings: Mapping[str, str]) -> None:
    """Prints a table and, as the last line, the figures as one JSON object."""
    table = Table("figure", "value", "meaning", title=title)
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}", meanings.get(name, ""))
    Console().print(table)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))
