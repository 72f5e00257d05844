"""`reach retry …`: look at the tasks of `agent_reach.retry`, and steer them. Needs the extra ``agent-reach[retry]``."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
from rich.console import Console
from rich.table import Table

from . import words
from .failures import CommandError

if TYPE_CHECKING:
    from agent_reach.retry import Operations

_STATES = ("WAITING", "RUNNING", "SUCCEEDED", "EXHAUSTED", "GIVEN_UP", "UNREADABLE", "EXPIRED", "CANCELLED")
_ENDED = click.Choice(_STATES[2:], case_sensitive=False)
_STYLES = {
    "SUCCEEDED": "green",
    "RUNNING": "cyan",
    "EXHAUSTED": "bold red",
    "GIVEN_UP": "red",
    "UNREADABLE": "bold red",
}


@click.group()
@click.option("--dsn", help="Connection string of the application's PostgreSQL. [env: REACH_RETRY_DSN]")
@click.option("--schema", default="reach_retry", show_default=True, help="Where the library's tables are.")
@click.pass_context
def retry(ctx: click.Context, dsn: str | None, schema: str) -> None:
    """Shows and steers retry tasks."""
    ctx.obj = (dsn or os.environ.get("REACH_RETRY_DSN"), schema)


@retry.command()
@click.option("--print", "only_print", is_flag=True, help="Print the SQL instead of running it.")
@click.pass_context
def install(ctx: click.Context, only_print: bool) -> None:  # noqa: FBT001 - click gives it by name
    """Creates or upgrades the library's tables."""
    _need_library()
    from agent_reach.retry import install as install_tables  # noqa: PLC0415 - an extra that need not be there
    from agent_reach.retry import install_sql  # noqa: PLC0415 - an extra that need not be there

    if only_print:
        click.echo(install_sql(ctx.obj[1]), nl=False)
        return
    versions = _guarded(lambda: install_tables(_dsn(ctx), ctx.obj[1]))
    click.echo(f"installed version {', '.join(map(str, versions))}" if versions else "nothing to do")


@retry.command("list")
@click.option("--code", help="Only tasks of this code.")
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="Only tasks in this state.")
@click.option("--older-than", type=words.Duration(), help="Only tasks registered longer ago, for example 2h.")
@click.option("--error", help="Only tasks whose last error holds this text.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_context
def list_tasks(
    ctx: click.Context,
    code: str | None,
    state: str | None,
    older_than: timedelta | None,
    error: str | None,
    limit: int,
    as_json: bool,  # noqa: FBT001 - click gives it by name
) -> None:
    """Lists tasks, the newest first."""
    operations = _operations(ctx)
    from agent_reach.retry import State  # noqa: PLC0415 - an extra that need not be there

    page = _guarded(
        lambda: operations.find(
            code=code, state=State(state.upper()) if state else None, older_than=older_than, error=error, limit=limit
        )
    )
    if as_json:
        for task in page.tasks:
            click.echo(_json(task))
        return
    table = Table(box=None, header_style="bold")
    for name in ("id", "code", "state", "attempts", "planned", "last error"):
        table.add_column(name, no_wrap=name == "id")
    for task in page.tasks:
        table.add_row(
            str(task.id),
            words.printable(task.code),
            f"[{_STYLES.get(task.state, 'default')}]{task.state}",
            f"{task.attempts}/{task.max_attempts}",
            _moment(task.run_at),
            _plain((task.last_error or "")[:80]),
        )
    console = Console(highlight=False)
    console.print(table)
    if page.next is not None:
        console.print(f"There are more than {limit}.")


@retry.command()
@click.argument("task_id", type=click.UUID)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_context
def show(ctx: click.Context, task_id: UUID, as_json: bool) -> None:  # noqa: FBT001 - click gives it by name
    """Shows a task, its parameter and its attempts."""
    operations = _operations(ctx)
    task, attempts = _guarded(lambda: operations.show(task_id))
    if as_json:
        click.echo(json.dumps({**json.loads(_json(task)), "log": [json.loads(_json(each)) for each in attempts]}))
        return
    console = Console(highlight=False, markup=False)
    for name in task.__slots__:
        value = getattr(task, name)
        if value is not None:
            shown = _moment(value) if isinstance(value, datetime) else value
            shown = json.dumps(value, ensure_ascii=False) if name == "payload" else shown
            console.print(f"{name + ':':24}{words.printable(str(shown))}", soft_wrap=True)
    for attempt in attempts:
        took = "" if attempt.duration_seconds is None else f" {attempt.duration_seconds:.3f} s"
        outcome = words.printable(attempt.error or "succeeded")
        console.print(f"attempt {attempt.attempt}: {_moment(attempt.ended_at)}{took} {outcome}", soft_wrap=True)


@retry.command("retry")
@click.argument("task_ids", type=click.UUID, nargs=-1, required=True)
@click.pass_context
def retry_tasks(ctx: click.Context, task_ids: tuple[UUID, ...]) -> None:
    """Puts tasks before all others, now; ended ones that did not succeed get fresh attempts."""
    operations = _operations(ctx)
    _tell(task_ids, _guarded(lambda: operations.retry(task_ids)), "is next", "runs, has succeeded, or is not there")


@retry.command()
@click.argument("task_ids", type=click.UUID, nargs=-1, required=True)
@click.option("--reason", default="cancelled", show_default=True, help="Kept with the task.")
@click.pass_context
def cancel(ctx: click.Context, task_ids: tuple[UUID, ...], reason: str) -> None:
    """Ends tasks for good. One that runs is told to stop."""
    operations = _operations(ctx)
    _tell(
        task_ids, _guarded(lambda: operations.cancel(task_ids, reason)), "is cancelled", "has ended, or is not there"
    )


@retry.command()
@click.option("--older-than", type=words.Duration(), required=True, help="Those that ended longer ago, such as 30d.")
@click.option("--state", "states", type=_ENDED, multiple=True, help="Only those in this state; may be repeated.")
@click.option("--code", help="Only tasks of this code.")
@click.pass_context
def purge(ctx: click.Context, older_than: timedelta, states: tuple[str, ...], code: str | None) -> None:
    """Deletes ended tasks, with their attempts."""
    operations = _operations(ctx)
    from agent_reach.retry import State  # noqa: PLC0415 - an extra that need not be there

    named = [State(state.upper()) for state in states] or None
    deleted = _guarded(lambda: operations.purge(older_than, states=named, code=code))
    click.echo(f"{deleted} tasks deleted")


@retry.command()
@click.pass_context
def stats(ctx: click.Context) -> None:
    """Counts tasks by code and state."""
    operations = _operations(ctx)
    found = _guarded(operations.stats)
    table = Table(box=None, header_style="bold")
    for name in ("code", "state", "tasks"):
        table.add_column(name, justify="right" if name == "tasks" else "left")
    for (code, state), count in found.counts.items():
        table.add_row(_plain(code), str(state), str(count))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"The oldest due task has waited {found.oldest_due_seconds:.1f} s.")
    console.print(f"Workers: {_plain(', '.join(found.instances)) or 'none'}")


def _need_library() -> None:
    try:
        import agent_reach.retry  # noqa: F401, PLC0415 - an extra that need not be there
    except ImportError as error:
        raise CommandError(
            "retry", f"the library is not installed ({error.name} is missing)", "pip install 'agent-reach[cli,retry]'"
        ) from error


def _operations(ctx: click.Context) -> Operations:
    _need_library()
    from agent_reach.retry import Operations  # noqa: PLC0415 - an extra that need not be there

    return Operations(_dsn(ctx), ctx.obj[1])


def _dsn(ctx: click.Context) -> str:
    dsn: str | None = ctx.obj[0]
    if not dsn:
        raise CommandError("retry", "no database is named", "set REACH_RETRY_DSN, or give `reach retry --dsn`")
    return dsn


def _guarded(act: Any) -> Any:
    """Does something with the database; tells its failures in the user's words, without the connection string."""
    import psycopg  # noqa: PLC0415 - an extra that need not be there

    try:
        return act()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise CommandError("retry", "the tables are not there", "run `reach retry install`") from error
    except psycopg.OperationalError as error:
        raise CommandError(
            "PostgreSQL", "it does not answer, or refuses the login", "check --dsn and that it runs, then try again"
        ) from error
    except ValueError as error:
        raise CommandError("retry", str(error), "correct what is named and try again") from error


def _tell(asked: tuple[UUID, ...], done: list[UUID], yes: str, no: str) -> None:
    for task_id in asked:
        click.echo(f"{task_id} {yes if task_id in done else no}")
    if set(asked) - set(done):
        raise SystemExit(1)


def _json(item: Any) -> str:
    return json.dumps({name: getattr(item, name) for name in item.__slots__}, default=str, ensure_ascii=False)


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + moment.strftime(" %z")


def _plain(text: str) -> str:
    return words.printable(text).replace("[", "\\[")
