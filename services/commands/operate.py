"""`reach serve`, `reach migrate`, `reach policy check`: for those who run the services one by one."""

from __future__ import annotations

from pathlib import Path

import click

from agent_reach.cli.decisions import VERSION_DIGITS
from agent_reach.cli.failures import CommandError
from agent_reach.cli.policy import policy

# What these commands do is imported when they run: `reach submit` must not wait for it.
ROLES = ("intake", "policy", "dispatcher", "sandbox", "receipts")


@click.command()
@click.argument("role", type=click.Choice(ROLES))
def serve(role: str) -> None:
    """Runs one role until SIGTERM; its settings come from the environment (REACH_…)."""
    from services.main import serve as run  # noqa: PLC0415 - see above

    run(role)


@click.command()
@click.option("--create-roles", "admin_dsn", metavar="DSN", help="First create the three roles, as this superuser.")
@click.option(
    "--dsn", envvar="REACH_POSTGRES_OWNER_DSN", show_envvar=True, help="Connection string of the role reach_owner."
)
def migrate(admin_dsn: str | None, dsn: str | None) -> None:
    """Brings the database schemas to their newest version; safe to repeat, and from two processes at once."""
    import psycopg  # noqa: PLC0415 - see above

    from services.chassis import migrations  # noqa: PLC0415 - see above

    if not dsn and not admin_dsn:
        raise CommandError("migrations", "no connection string", "set REACH_POSTGRES_OWNER_DSN or --dsn")
    if admin_dsn:
        try:
            migrations.create_roles(admin_dsn)
        except psycopg.Error as error:
            raise CommandError(
                "PostgreSQL", f"the roles cannot be created: {error}", "check --create-roles"
            ) from error
    if not dsn:
        click.echo("The three roles are there. Set their passwords, where your server asks for any.")
        return
    migrations.migrate(dsn)
    click.echo(f"Migrated: {', '.join(migrations.SERVICES)}.")


@policy.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def check(path: Path) -> None:
    """Checks a policies.yaml, or a folder that holds one; with what lies beside it: templates/ and the shadow's file.

    Exits with 1 and names line and reason of every fault.
    """
    from services.catalog.catalog import POLICIES_FILE, load_catalog  # noqa: PLC0415 - see above
    from services.catalog.errors import CatalogError  # noqa: PLC0415 - see above

    file = path / POLICIES_FILE if path.is_dir() else path
    if not file.exists():
        raise click.BadParameter(f"there is no {POLICIES_FILE} in {path}", param_hint="PATH")
    try:
        catalog = load_catalog(file.parent, file.name)
    except CatalogError as error:
        # As somebody reads who mends them: file by file, from the first line on.
        problems = sorted(error.problems, key=lambda problem: (str(problem.file), problem.line or 0))
        faults = "\n".join(map(str, problems))
        raise CommandError(
            "configuration",
            f"{len(problems)} faults\n{faults}" if len(problems) > 1 else faults,
            "mend the named lines",
        ) from error
    policies = catalog.policies
    click.echo(f"{file} is good: version {policies.revision}, hash {policies.version[:VERSION_DIGITS]}.")
    click.echo(f"Templates: {', '.join(sorted(catalog.templates)) or 'none'}.")
    if policies.shadow is not None:
        click.echo(
            f"In its shadow: version {policies.shadow.policies.revision}, for {policies.shadow.share:.0%} of users."
        )
