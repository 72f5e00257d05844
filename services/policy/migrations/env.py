"""Runs the history of the schema `policy`."""

from services.chassis.migrations import run_environment

run_environment()
