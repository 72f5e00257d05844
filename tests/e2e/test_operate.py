"""The commands of those who run the services one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from agent_reach.local import LocalPostgres
from services.chassis.migrations import OWNER_ROLE, SERVICES
from services.commands.operate import ROLES
from services.local.data import PACKAGED_CONFIG
from services.main import ROLE_NAMES

_REACH = Path(sys.executable).parent / "reach"


def _run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
    return subprocess.run(
        [_REACH, *arguments], env={**kept, **environment}, capture_output=True, text=True, check=False, timeout=100
    )


def test_every_role_can_be_served() -> None:
    assert set(ROLES) == set(ROLE_NAMES)


def test_migrations_run_twice_and_from_two_processes_at_once(postgres: LocalPostgres, database: str) -> None:
    owner = postgres.dsn(str(conninfo_to_dict(database)["dbname"]), OWNER_ROLE)
    command = [str(_REACH), "migrate", "--create-roles", database, "--dsn", owner]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        assert output.startswith("Migrated: ")
    assert _run("migrate", REACH_POSTGRES_OWNER_DSN=owner).returncode == 0
    only_roles = _run("migrate", "--create-roles", database)
    assert (only_roles.returncode, only_roles.stdout.partition(".")[0]) == (0, "The three roles are there")
    with psycopg.connect(database) as connection:
        schemas = {row[0] for row in connection.execute("SELECT nspname FROM pg_namespace")}
    assert schemas >= set(SERVICES)


def test_a_database_that_is_not_there_is_told_with_what_to_do() -> None:
    for arguments in (["--dsn", "host=127.0.0.1 port=1"], ["--create-roles", "host=127.0.0.1 port=1", "--dsn", "x=y"]):
        failed = _run("migrate", *arguments)
        assert failed.returncode == 1
        assert failed.stderr.startswith("PostgreSQL: ")
        assert "What to do: " in failed.stderr
        assert "Traceback" not in failed.stderr


def test_a_role_without_its_settings_says_which_one_is_missing() -> None:
    environment: dict[str, str] = {}
    for missing, given, value in (
        ("REACH_GRPC_ADDRESS", "REACH_GRPC_ADDRESS", "127.0.0.1:0"),
        ("REACH_API_KEYS_FILE", "REACH_SERVICE_KEY", "reach_key"),
        ("REACH_POLICY_TARGET", "REACH_POLICY_TARGET", "127.0.0.1:1"),
    ):
        failed = _run("serve", "intake", REACH_CONFIG_DIR=str(PACKAGED_CONFIG), **environment)
        assert failed.returncode == 1
        assert f"set {missing}" in failed.stderr
        assert "Traceback" not in failed.stderr
        environment[given] = value


def test_a_configuration_is_checked_before_it_is_used(tmp_path: Path) -> None:
    for good in (PACKAGED_CONFIG, PACKAGED_CONFIG / "policies.yaml"):
        passed = _run("policy", "check", good)
        assert passed.returncode == 0, passed.stderr
        assert passed.stdout.startswith(f"{PACKAGED_CONFIG / 'policies.yaml'} is good: version ")
        assert "order_shipped" in passed.stdout
    broken = tmp_path / "policies.yaml"
    broken.write_text("version: 3\npolicies:\n  default:\n    user_daily_cap: many\n")
    failed = _run("policy", "check", broken)
    assert failed.returncode == 1
    assert f"{broken}:4: " in failed.stderr


def test_a_check_of_a_file_looks_at_what_lies_beside_it(tmp_path: Path) -> None:
    text = "version: {}\npolicies: {{default: {{}}}}\nchannels: {{email: {{}}}}\n"
    candidate, shadow = tmp_path / "candidate.yaml", tmp_path / "next.yaml"
    candidate.write_text(text.format(1) + "shadow: {file: next.yaml, share: 0.1}\nscenes: {x: {template: nowhere}}\n")
    template = tmp_path / "templates" / "greeting"
    template.mkdir(parents=True)
    (template / "template.yaml").write_text("required: []\n")
    (template / "sms.text.j2").write_text("Hello {{ name }}")
    shadow.write_text(text.format("two"))
    failed = _run("policy", "check", candidate)
    assert failed.returncode == 1
    assert "2 faults" in failed.stderr
    assert f"{shadow}:1: version: " in failed.stderr
    assert f"{template / 'sms.text.j2'}:1: uses name" in failed.stderr
    shadow.write_text(text.format(2))
    (template / "sms.text.j2").write_text("Hello")
    failed = _run("policy", "check", candidate)
    assert failed.returncode == 1
    assert f"{candidate}:5: scenes.x.template: there is no template named nowhere" in failed.stderr
    candidate.write_text(text.format(1) + "shadow: {file: next.yaml, share: 0.1}\n")
    passed = _run("policy", "check", candidate)
    assert passed.returncode == 0, passed.stderr
    assert "In its shadow: version " in passed.stdout
    assert "for 10% of users" in passed.stdout


def test_a_file_that_is_not_there_is_a_wrong_use(tmp_path: Path) -> None:
    assert _run("policy", "check", tmp_path / "nowhere.yaml").returncode == 2
    empty = _run("policy", "check", tmp_path)
    assert empty.returncode == 2
    assert f"there is no policies.yaml in {tmp_path}" in " ".join(empty.stderr.split())


def test_faults_are_told_in_the_order_in_which_they_stand_in_the_file(tmp_path: Path) -> None:
    broken = tmp_path / "policies.yaml"
    broken.write_text(
        "version: 3\npolicies: {default: {user_daily_cap: many}}\nscenes:\n  a: {policy: nowhere}\n"
        "  b: {category: none}\nchannels: {email: {burst: -1}}\ndefault_time_zone: Nowhere\n"
    )
    failed = _run("policy", "check", broken)
    lines = [int(line.split(":")[1]) for line in failed.stderr.splitlines() if line.startswith(f"{broken}:")]
    assert len(lines) > 2
    assert lines == sorted(lines)
