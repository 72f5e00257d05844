"""The data directory of a local system: who holds it, its keys, where everything lies in it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from services.chassis.api_keys import ApiKey, hash_api_key, new_api_key, write_api_keys
from services.chassis.startup import StartupError

TENANT = "dev"
PACKAGED_CONFIG = Path(__file__).resolve().parent.parent.parent / "config"


@dataclass(frozen=True, slots=True)
class Keys:
    """The secrets of one local system, made once.

    Attributes:
        agent: API key of the development agent.
        operator: API key of the development operator.
        service: key by which the services know each other.
        receipts: Standard Webhooks secret (``whsec_…``) of the development provider.
    """

    agent: str
    operator: str
    service: str
    receipts: str

    @classmethod
    def generate(cls) -> Keys:
        """Makes fresh ones."""
        return cls(
            agent=new_api_key(),
            operator=new_api_key(),
            service=new_api_key(),
            receipts=f"whsec_{b64encode(secrets.token_bytes(32)).decode()}",
        )


class DataDirectory:
    """One directory that holds all of a local system and is kept between its runs.

    Args:
        path: the directory; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @property
    def postgres(self) -> Path:
        """PostgreSQL's data."""
        return self.path / "postgres"

    @property
    def redis(self) -> Path:
        """Redis' log and socket; it keeps no data."""
        return self.path / "redis"

    @property
    def logs(self) -> Path:
        """One log file per role."""
        return self.path / "logs"

    @property
    def mail(self) -> Path:
        """The development mailbox."""
        return self.path / "mail"

    @property
    def keys_file(self) -> Path:
        """The secrets."""
        return self.path / "keys.json"

    @property
    def api_keys_file(self) -> Path:
        """The API keys as the services read them: hashes only."""
        return self.path / "api_keys.json"

    @property
    def lock_file(self) -> Path:
        """Names the process that holds the directory."""
        return self.path / "lock"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the directory for this process.

        Raises:
            StartupError: another process holds it, or it cannot be used.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(
                "data directory", f"{self.path} cannot be used: {error.strerror}", "name another one with --data"
            ) from error
        # The lock belongs to the open file: it is gone with its holder, however that one ended. The file stays.
        with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._taken(file.read()) from None
            file.truncate()
            json.dump({"pid": os.getpid(), "started_at": datetime.now(UTC).isoformat(timespec="seconds")}, file)
            file.flush()
            yield

    def keys(self) -> Keys:
        """Returns the secrets; makes them at the first time.

        Raises:
            StartupError: the file is damaged.
        """
        if self.keys_file.exists():
            try:
                keys = Keys(**json.loads(self.keys_file.read_bytes()))
            except (OSError, ValueError, TypeError) as error:
                raise StartupError(
                    "keys", f"{self.keys_file} cannot be read: {error}", "remove it, and new keys are made"
                ) from error
        else:
            keys = Keys.generate()
            descriptor = os.open(self.keys_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(keys), file, indent=2)
        write_api_keys(
            self.api_keys_file,
            [
                ApiKey(sha256=hash_api_key(keys.agent), tenant=TENANT, subject="dev-agent", role="agent"),
                ApiKey(sha256=hash_api_key(keys.operator), tenant=TENANT, subject="dev-operator", role="operator"),
            ],
        )
        return keys

    def config(self) -> Path:
        """Returns the configuration: REACH_CONFIG_DIR, else ``config/`` here, else a copy of the default."""
        if named := os.environ.get("REACH_CONFIG_DIR"):
            return Path(named).resolve()
        here = Path.cwd() / "config"
        if (here / "policies.yaml").exists():
            return here
        copy = self.path / "config"
        if not copy.exists():
            shutil.copytree(PACKAGED_CONFIG, copy)
        return copy

    def _taken(self, holder: str) -> StartupError:
        try:
            known = json.loads(holder)
            who = f"process {known['pid']}, since {known['started_at']}"
        except (ValueError, KeyError, TypeError):
            # The holder has the lock and has not written its name yet.
            who = "another process"
        return StartupError(
            "data directory",
            f"{self.path} is held by {who}",
            "stop that one (Ctrl-C in its terminal), or name another directory with --data and --port-base 0",
        )
