"""What the pages show can be typed: Python that knows its names, commands and options that there are, policies that load."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from agent_reach.cli.group import load_commands
from services.catalog.catalog import load_catalog
from services.local.data import PACKAGED_CONFIG

ROOT = PACKAGED_CONFIG.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Of these pages so many blocks are whole; the others are cut out of something larger.
_WHOLE = {"durable": 1, "retry": 1}
# What ends a command in a line of a shell.
_ENDS = frozenset({"|", ">", ">>", "&&", "||", ";", "&"})


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in _FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path) -> list[list[str]]:
    """Returns the words of every `reach …` in the shell blocks of a page."""
    found = []
    for block in blocks(page, "sh", ""):
        for line in block.replace("\\\n", " ").splitlines():
            if "reach " not in line or line.startswith((" ", "│", "┌")):
                continue
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;()<>")
            lexer.whitespace_split = True
            words = list(lexer)
            for start, word in enumerate(words):
                first = start == 0 or words[start - 1] in _ENDS or words[start - 1] in {"xargs", "-r"}
                assigned = start > 0 and "=" in words[start - 1] and words[start - 1][:6] == "REACH_"
                if word == "reach" and (first or assigned):
                    end = next((i for i in range(start, len(words)) if words[i] in _ENDS), len(words))
                    found.append(words[start + 1 : end])
    return found


def test_python_compiles_and_every_name_in_it_is_known(tmp_path: Path) -> None:
    for page in PAGES:
        # In their order: a later block goes on from an earlier one.
        code = "\n\n".join(blocks(page, "python")[: _WHOLE.get(page.stem)])
        if code:
            compile(code, str(page), "exec")
            (tmp_path / f"{page.stem}.py").write_text(code)
    assert len(list(tmp_path.iterdir())) > 4
    ruff = Path(sys.executable).parent / "ruff"
    checked = subprocess.run(
        [ruff, "check", "--isolated", "--no-cache", "--select", "F821", "--output-format", "concise", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_every_command_that_is_shown_is_there_with_its_options(page: Path) -> None:
    for words in commands(page):
        command: click.Command = load_commands()
        options: set[str] = set()
        for word in words:
            if isinstance(command, click.Group) and word in command.commands:
                command = command.commands[word]
            elif isinstance(command, click.Group) and not word.startswith("-") and not options:
                pytest.fail(f"{command.name} has no command {word}: reach {' '.join(words)}")
            elif word.startswith("--"):
                options.add(word.partition("=")[0])
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert options <= known | {"--help", "--dsn", "--schema"}, words


def test_there_are_commands_on_the_pages_that_show_some() -> None:
    found = {page.stem: len(commands(page)) for page in PAGES}
    assert found["README"] > 4
    assert found["people"] > 10
    assert found["policies"] > 5


def test_the_policies_that_are_shown_load(tmp_path: Path) -> None:
    (example,) = [text for text in blocks(ROOT / "docs" / "policies.md", "yaml") if "version:" in text]
    config = tmp_path / "config"
    shutil.copytree(PACKAGED_CONFIG, config)
    shutil.copy(config / "policies.yaml", config / "policies.next.yaml")
    (config / "policies.yaml").write_text(example)
    assert load_catalog(config).policies.shadow is not None
