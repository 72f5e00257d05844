"""`reach retry …`: look at the tasks of `agent_reach.retry`, and steer them. Needs the extra ``agent-reach[retry]``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from . import words
from .failures import CommandError

if TYPE_CHECKING:
    from agent_reach.retry import Attempt, Operations, Page, Task

_STATES = ("WAITING", "RUNNING", "SUCCEEDED", "EXHAUSTED", "GIVEN_UP", "UNREADABLE", "EXPIRED", "CANCELLED")
_ENDED = click.Choice(_STATES[2:], case_sensitive=False)
_COLOURS = {"SUCCEEDED": "green", "RUNNING": "cyan", "EXHAUSTED": "red", "GIVEN_UP": "red", "UNREADABLE": "red"}
_MAX_ERROR_SHOWN = 120
_SHOWN = 50
_PAGE = 1000


@click.group()
@click.option("--dsn", help="Connection string of the application's PostgreSQL. [env: REACH_RETRY_DSN]")
@click.option("--schema", default="reach_retry", show_default=True, help="Where the library's tables are.")
@click.pass_context
def retry(ctx: click.Context, dsn: str | None, schema: str) -> None:
    """Shows and steers retry tasks."""
    ctx.obj = (dsn or os.environ.get("REACH_RETRY_DSN"), schema)


@retry.command()
@click.option("--print", "only_print", is_flag=True, help="Print the SQL instead of running it.")
@click.option("--after", type=int, help="With --print: the version that is installed already.")
@click.option("--grant-to", help="A role that registers tasks and does them: it gets the rights for that.")
@click.pass_context
def install(
    ctx: click.Context,
    only_print: bool,  # noqa: FBT001 - click gives it by name
    after: int | None,
    grant_to: str | None,
) -> None:
    """Creates or upgrades the library's tables."""
    _need_library()
    from agent_reach.retry import install as install_tables  # noqa: PLC0415 - an extra that need not be there
    from agent_reach.retry import install_sql  # noqa: PLC0415 - an extra that need not be there

    if only_print:
        click.echo(_guarded(lambda: install_sql(ctx.obj[1], after or 0, grant_to=grant_to)), nl=False)
        return
    if after is not None:
        raise click.UsageError("--after goes with --print: an installation finds out by itself what is there")
    versions = _guarded(lambda: install_tables(_dsn(ctx), ctx.obj[1], grant_to=grant_to))
    done = [f"installed version {', '.join(map(str, versions))}"] if versions else []
    done += [f"granted to {grant_to}"] if grant_to is not None else []
    click.echo("; ".join(done) or "nothing to do")


@retry.command("list")
@click.option("--code", help="Only tasks of this code.")
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="Only tasks in this state.")
@click.option("--older-than", type=words.Duration(), help="Only tasks registered longer ago, for example 2h.")
@click.option("--newer-than", type=words.Duration(), help="Only tasks registered less long ago.")
@click.option("--error", help="Only tasks whose last error holds this text, in upper or lower case.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.  [default: 50; with --json all]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_context
def list_tasks(
    ctx: click.Context,
    code: str | None,
    state: str | None,
    older_than: timedelta | None,
    newer_than: timedelta | None,
    error: str | None,
    limit: int | None,
    as_json: bool,  # noqa: FBT001 - click gives it by name
) -> None:
    """Lists tasks, the newest first."""
    operations = _operations(ctx)
    from agent_reach.retry import State  # noqa: PLC0415 - an extra that need not be there

    limit = _SHOWN if limit is None and not as_json else limit
    pages = _pages(
        operations,
        limit,
        code=code,
        state=State(state.upper()) if state else None,
        older_than=older_than,
        newer_than=newer_than,
        error=error,
    )
    rows: list[tuple[str, ...]] = []
    more = False
    for page in pages:
        more = page.next is not None
        if as_json:
            for task in page.tasks:
                click.echo(_json(task))
        else:
            rows += map(_row, page.tasks)
    if rows:
        _print_table(("id", "code", "state", "attempts", "planned (UTC)", "last error"), rows)
    elif not as_json:
        click.echo("no such tasks", err=True)
    if more:
        click.echo(f"There are more than {limit}: narrow it down, or raise --limit.", err=True)


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
    for name in task.__slots__:
        value = getattr(task, name)
        if value is not None:
            shown = _moment(value) if isinstance(value, datetime) else value
            shown = json.dumps(value, ensure_ascii=False) if name == "payload" else shown
            click.echo(f"{name + ':':24}{words.printable(str(shown))}")
    if attempts:
        click.echo()
        _print_table(("attempt", "planned", "late", "took", "outcome"), [_log_line(attempt) for attempt in attempts])


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
    click.echo(f"{deleted} task{'' if deleted == 1 else 's'} deleted")


@retry.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_context
def stats(ctx: click.Context, as_json: bool) -> None:  # noqa: FBT001 - click gives it by name
    """Counts tasks by code and state."""
    operations = _operations(ctx)
    found = _guarded(operations.stats)
    if as_json:
        counts = [
            {"code": code, "state": state.value, "tasks": count} for (code, state), count in found.counts.items()
        ]
        told = {"counts": counts, "oldest_due_seconds": found.oldest_due_seconds, "workers": found.instances}
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    _print_table(
        ("code", "state", "tasks"),
        [(code, state.value, str(count)) for (code, state), count in found.counts.items()],
    )
    late = found.oldest_due_seconds
    click.echo(f"The oldest due task has waited {late:.1f} s." if late else "No task is due.")
    click.echo(f"Workers: {words.printable(', '.join(found.instances)) or 'none'}")


def _need_library() -> None:
    try:
        import agent_reach.retry  # noqa: F401, PLC0415 - an extra that need not be there
    except ImportError as error:
        raise CommandError(
            "retry",
            f"the library is not installed ({error.name} is missing)",
            "pip install '/path/to/agent-reach/sdk[cli,retry]'",
        ) from error


def _operations(ctx: click.Context) -> Operations:
    _need_library()
    from agent_reach.retry import Operations  # noqa: PLC0415 - an extra that need not be there

    made: Operations = _guarded(lambda: Operations(_dsn(ctx), ctx.obj[1]))
    return made


def _pages(operations: Operations, limit: int | None, **conditions: Any) -> Iterator[Page]:
    """Reads tasks page by page, so many of them at most."""
    left, after = limit, None
    while True:
        page: Page = _guarded(partial(operations.find, **conditions, after=after, limit=left or _PAGE))
        yield page
        left, after = None if left is None else left - len(page.tasks), page.next
        if after is None or left == 0:
            return


def _row(task: Task) -> tuple[str, ...]:
    return (
        str(task.id),
        task.code,
        task.state.value,
        f"{task.attempts}/{task.max_attempts}",
        f"{task.run_at.astimezone(UTC):%m-%d %H:%M:%S}",
        _shortened(task.last_error or ""),
    )


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
        raise CommandError(
            "retry", "the tables are not there", "run `reach retry install`, or name another --schema"
        ) from error
    except psycopg.errors.UndefinedColumn as error:
        raise CommandError("retry", "the tables are of an older version", "run `reach retry install`") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise CommandError(
            "PostgreSQL",
            f"the role may not do this ({error.diag.message_primary})",
            "use the role that owns the tables, or let it run `reach retry install --grant-to ROLE`",
        ) from error
    except psycopg.errors.UndefinedObject as error:
        raise CommandError("PostgreSQL", str(error.diag.message_primary), "name one that is there") from error
    except psycopg.OperationalError as error:
        raise CommandError(
            "PostgreSQL", "it does not answer, or refuses the login", "check --dsn and that it runs, then try again"
        ) from error
    except psycopg.Error as error:
        raise CommandError(
            "PostgreSQL",
            str(error.diag.message_primary or type(error).__name__),
            "correct what is named and try again",
        ) from error
    except ValueError as error:
        raise CommandError("retry", str(error), "correct what is named and try again") from error


def _tell(asked: tuple[UUID, ...], done: list[UUID], yes: str, no: str) -> None:
    for task_id in asked:
        click.echo(f"{task_id} {yes if task_id in done else no}")
    if set(asked) - set(done):
        raise SystemExit(1)


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints one line for each row, however narrow the terminal is: for eyes, `grep` and `cut` alike."""
    shown = [[words.printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(names), *shown]) for column in range(len(names) - 1)]
    click.secho("  ".join([*map(str.ljust, names, widths), names[-1]]), bold=True)
    for row in shown:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        cells = [click.style(cell, fg=_COLOURS.get(cell.strip())) for cell in padded]
        click.echo("  ".join([*cells, row[-1]]).rstrip())


def _log_line(attempt: Attempt) -> tuple[str, ...]:
    outcome = _shortened(attempt.error or "succeeded")
    late = None if attempt.started_at is None else (attempt.started_at - attempt.planned_at).total_seconds()
    return (
        str(attempt.attempt),
        _moment(attempt.planned_at),
        _seconds(late),
        _seconds(attempt.duration_seconds),
        f"waited {attempt.waits} times: {outcome}" if attempt.waits else outcome,
    )


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_ERROR_SHOWN else f"{line[: _MAX_ERROR_SHOWN - 1]}…"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{max(0.0, seconds):.3f} s"


def _json(item: Any) -> str:
    def other(value: Any) -> str:
        return value.isoformat() if isinstance(value, datetime) else str(value)

    return json.dumps({name: getattr(item, name) for name in item.__slots__}, default=other, ensure_ascii=False)


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03} UTC"
