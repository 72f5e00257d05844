"""Files that commands write."""

from __future__ import annotations

import os
from pathlib import Path

import click

from .failures import CommandError

force_option = click.option("--force", is_flag=True, help="Replace a file that is there already.")


def check_free(path: str, *, force: bool) -> None:
    """Checks that an export takes nobody's file away.

    Raises:
        CommandError: a file of that name is there, and nobody said that it may be replaced.
    """
    if path != "-" and not force and Path(path).exists():
        raise CommandError("file", f"{path} is there already", "name another one, or replace it with --force")


def create(path: Path, wanted: str) -> int:
    """Creates a file anew, readable for its owner only, in place of one that was left there.

    Args:
        path: of the file.
        wanted: the name under which the user asked for it.

    Returns:
        Its descriptor, to be written to and closed.

    Raises:
        CommandError: it cannot be written there.
    """
    try:
        path.unlink(missing_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CommandError(
            "file",
            f"{wanted} cannot be written: {error.strerror}",
            "name a file in a folder that is there, and in which you may write",
        ) from error
