"""Every table of the database; what changes here needs a migration, in `data/database/migrations`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from conv_advisor.data.problem import FIELDS

METADATA: Final = MetaData()

_ID: Final = BigInteger().with_variant(Integer, "sqlite")

PROBLEMS: Final = Table(
    "problems",
    METADATA,
    Column("key", String, primary_key=True),
    *(Column(name, String if name in ("dtype", "layout") else Integer, nullable=False) for name in FIELDS),
    Column("pad_h_end", Integer, comment="null: as pad_h"),
    Column("pad_w_end", Integer, comment="null: as pad_w"),
    Column("epilogue", String, comment="as its text; null: none"),
)
DEVICES: Final = Table(
    "devices",
    METADATA,
    Column("fingerprint", String, primary_key=True),
    Column("id", String, nullable=False),
    Column("json", String, nullable=False),
)
MEASUREMENTS: Final = Table(
    "measurements",
    METADATA,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("problem_key", ForeignKey(PROBLEMS.c.key), nullable=False),
    Column("variant", String, nullable=False),
    Column("device", ForeignKey(DEVICES.c.fingerprint), nullable=False),
    Column("device_id", String, nullable=False),
    Column("outcome", String, nullable=False),
    Column("detail", String, nullable=False),
    Column("samples_ms", LargeBinary, nullable=False, comment="little-endian float32"),
    Column("time_ms", Float(53), comment="median of the samples"),
    Column("noise", Float(53), comment="relative standard error of time_ms"),
    Column("workspace_bytes", BigInteger),
    Column("max_error", Float(53)),
    Column("plan", String, nullable=False, comment="JSON"),
    Column("l2", String, nullable=False),
    Column("floor_ms", Float(53)),
    Column("clock_start_mhz", Integer),
    Column("clock_end_mhz", Integer),
    Column("measured_at_us", BigInteger, nullable=False, comment="since 1970, UTC"),
    Column("run_id", String, nullable=False),
    Index("measurements_by_problem", "device_id", "problem_key"),
    Index("measurements_by_device", "device", "measured_at_us"),
    Index("measurements_by_run", "run_id"),
)
PICKS: Final = Table(
    "picks",
    METADATA,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("problem_key", ForeignKey(PROBLEMS.c.key), nullable=False),
    Column("device", ForeignKey(DEVICES.c.fingerprint), nullable=False),
    Column("device_id", String, nullable=False),
    Column("source", String, nullable=False),
    Column("variant", String, nullable=False),
    Column("plan", String, nullable=False, comment="JSON"),
    Column("run_id", String, nullable=False),
    Index("picks_by_problem", "device_id", "problem_key"),
)
IMPORTS: Final = Table(
    "imports",
    METADATA,
    Column("sha256", String, primary_key=True, comment="of the imported file"),
    Column("rows", Integer, nullable=False),
)
VERSIONS: Final = Table(
    "versions",
    METADATA,
    Column("device_id", String, primary_key=True),
    Column("version", BigInteger, nullable=False, comment="how often measurements of the device were added"),
)
MODELS: Final = Table(
    "models",
    METADATA,
    Column("device_id", String, primary_key=True),
    Column("model_id", String, primary_key=True),
    Column("card", Text, nullable=False, comment="JSON"),
    Column("tree", LargeBinary, nullable=False, comment="safetensors"),
)
ACTIVE_MODELS: Final = Table(
    "active_models",
    METADATA,
    Column("device_id", String, primary_key=True),
    Column("model_id", String, nullable=False),
    Column("activation", BigInteger, nullable=False, comment="how often a tree of the device was put in charge"),
)
JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("progress", Float, nullable=False, default=0.0),
    Column("message", Text, nullable=False, default=""),
    Column("request", JSON, nullable=False),
    Column("result", JSON),
    Column("error", JSON),
    Column("attempt", Integer, nullable=False, default=0),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("started_at", DateTime(timezone=True)),
    Column("finished_at", DateTime(timezone=True)),
    Column("device_id", String, comment="of the device that must run it; null: any server does"),
    Column("owner", String(64), comment="who runs the attempt"),
    Column("lease_ends_s", Float(53), comment="since 1970, by the database's clock"),
    Column("interruptions", Integer, nullable=False, server_default="0", comment="since it last kept something"),
    Column("revision", Integer, nullable=False, server_default="0", comment="how often the job changed"),
    Column("caller", String(64), nullable=False, server_default="", comment="whose key it is; empty: without a token"),
    Column("idempotency_key", String(255)),
    Column("request_sha256", String(64), comment="of what came with the key"),
    Index("jobs_by_idempotency_key", "caller", "idempotency_key", unique=True),
)
