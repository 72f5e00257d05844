"""Alembic's entry: the chassis does the work."""

from services.chassis.migrations import run_environment

run_environment()
