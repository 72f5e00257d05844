"""`reach serve`, `reach migrate`, `reach policy check`: for those who run the services one by one."""

from __future__ import annotations

from pathlib import Path

import click

from agent_reach.cli.failures import CommandError

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


@click.group()
def policy() -> None:
    """Works with the policy that decides who may be told what, and when."""


@policy.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def check(path: Path) -> None:
    """Checks a policies.yaml, or a folder with policies.yaml and templates/."""
    from services.catalog.catalog import load_catalog  # noqa: PLC0415 - see above
    from services.catalog.errors import CatalogError  # noqa: PLC0415 - see above
    from services.catalog.policies import load_policies  # noqa: PLC0415 - see above

    try:
        version = load_catalog(path).version if path.is_dir() else load_policies(path).version
    except CatalogError as error:
        raise CommandError("configuration", str(error), "mend the named lines") from error
    click.echo(f"{path} is good, version {version}.")
