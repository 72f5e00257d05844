"""Settings that every service has; each service's own are a subclass in its room."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ChassisSettings(BaseSettings):
    """What every service needs to know, from the environment (prefix ``REACH_``)."""

    model_config = SettingsConfigDict(env_prefix="REACH_", frozen=True, extra="ignore")

    deployment: str = Field("dev", description="Name of this installation; prefixes every key in Redis.")
    grpc_address: str = Field(
        "127.0.0.1:0", description="Address the gRPC server listens on; port 0 takes a free one."
    )
    admin_address: str = Field("127.0.0.1:0", description="Address of the admin port, which serves /metrics.")
    postgres_engine_dsn: SecretStr = Field(
        SecretStr(""), description="PostgreSQL, role engine: claims and batches across tenants. May be a pooler."
    )
    postgres_api_dsn: SecretStr = Field(
        SecretStr(""),
        description="PostgreSQL, role api: reads for one tenant under row-level security. May be a pooler.",
    )
    postgres_direct_dsn: SecretStr = Field(
        SecretStr(""), description="PostgreSQL, role engine, without a pooler between: LISTEN and heartbeats."
    )
    postgres_owner_dsn: SecretStr = Field(
        SecretStr(""), description="PostgreSQL, role owner, without a pooler between: migrations only."
    )
    postgres_pool_size: int = Field(8, ge=1, le=100, description="Connections in each pool, at most.")
    redis_url: SecretStr = Field(SecretStr(""), description="Redis; everything in it can be rebuilt.")
    config_dir: Path = Field(Path("config"), description="Folder of policies.yaml and templates/.")
    api_keys_file: Path | None = Field(
        None, description="JSON list of API keys: {sha256, tenant, subject, role}; the keys themselves are not in it."
    )
    service_key: SecretStr = Field(
        SecretStr(""), description="Key by which the services know each other; the same everywhere."
    )
    intake_target: str = Field("", description="gRPC target of intake, for example dns:///intake:7400.")
    policy_target: str = Field("", description="gRPC target of policy.")
    dispatcher_target: str = Field("", description="gRPC target of dispatcher.")
    receipts_target: str = Field("", description="gRPC target of receipts.")
    sandbox_target: str = Field("", description="gRPC target of sandbox.")
    max_message_bytes: int = Field(8 * 1024 * 1024, ge=65_536, description="Largest gRPC message in either direction.")
    max_deadline_seconds: float = Field(
        60.0, gt=0, description="Longest time that a unary call may take, whatever deadline the caller sets."
    )
    drain_delay_seconds: float = Field(
        0.0, ge=0, description="Time after SIGTERM in which calls are still taken, while load balancers learn of it."
    )
    drain_seconds: float = Field(20.0, ge=0, description="Time for running calls to end after SIGTERM.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="Log format; auto is console on a terminal and JSON elsewhere."
    )
    otlp_endpoint: str = Field("", description="OTLP/gRPC collector for traces; empty exports none.")
