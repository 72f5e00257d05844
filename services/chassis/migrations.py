"""Migrations: one schema and one Alembic history per service, run as the owner on a direct connection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psycopg
import sqlalchemy
from alembic import command, context
from alembic.config import Config
from psycopg import sql

from .startup import StartupError

ENGINE_ROLE = "reach_engine"
API_ROLE = "reach_api"
OWNER_ROLE = "reach_owner"
SERVICES = ("intake", "policy", "dispatcher", "receipts")

# Any number that nothing else of the database takes; held by whoever migrates.
_LOCK = 0x52454143_48
_FOLDER = Path(__file__).resolve().parent.parent

_CREATE_ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {name}) THEN
        CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;  -- another process was faster
END
$$
"""


def create_roles(admin_dsn: str) -> None:
    """Creates the three roles where they are missing and lets the owner make schemas in this database.

    Passwords are the operator's business (``ALTER ROLE … PASSWORD``): a trusted local socket needs none.
    """
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        for role in (OWNER_ROLE, ENGINE_ROLE, API_ROLE):
            connection.execute(sql.SQL(_CREATE_ROLE).format(name=sql.Literal(role), role=sql.Identifier(role)))
        connection.execute(
            sql.SQL("GRANT CREATE, CONNECT ON DATABASE {} TO {}").format(
                sql.Identifier(connection.info.dbname), sql.Identifier(OWNER_ROLE)
            )
        )


def migrate(owner_dsn: str, services: Sequence[str] = SERVICES) -> None:
    """Brings the schemas of the named services to their newest version; safe to repeat, and from two processes.

    Raises:
        StartupError: the database cannot be reached.
    """
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(owner_dsn), poolclass=sqlalchemy.pool.NullPool
    )
    try:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
            connection.commit()
            try:
                for service in services:
                    _migrate_service(connection, service)
            finally:
                connection.rollback()
                connection.execute(sqlalchemy.text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})
                connection.commit()
    except (sqlalchemy.exc.DBAPIError, psycopg.Error) as error:
        cause = getattr(error, "orig", None) or error
        raise StartupError(
            "PostgreSQL", f"migrations cannot run: {cause}", "check REACH_POSTGRES_OWNER_DSN"
        ) from error
    finally:
        engine.dispose()


def run_environment() -> None:
    """Is what each service's Alembic `env.py` does: run the history in the schema and connection it was given."""
    attributes = context.config.attributes
    context.configure(connection=attributes["connection"], version_table_schema=attributes["schema"])
    with context.begin_transaction():
        context.run_migrations()


def _migrate_service(connection: sqlalchemy.Connection, service: str) -> None:
    statements = f"""
        CREATE SCHEMA IF NOT EXISTS {service};
        GRANT USAGE ON SCHEMA {service} TO {ENGINE_ROLE}, {API_ROLE};
        ALTER DEFAULT PRIVILEGES IN SCHEMA {service}
            GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {ENGINE_ROLE}, {API_ROLE};
        ALTER DEFAULT PRIVILEGES IN SCHEMA {service}
            GRANT USAGE, SELECT ON SEQUENCES TO {ENGINE_ROLE}, {API_ROLE};
    """
    connection.execute(sqlalchemy.text(statements))
    connection.commit()
    config = Config()
    config.set_main_option("script_location", str(_FOLDER / service / "migrations"))
    config.attributes.update(connection=connection, schema=service)
    command.upgrade(config, "head")
    connection.commit()
