"""Timings and jobs, as they were before there were migrations; what a database of that time has already is kept."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SIZES: Final = (
    *("n", "c", "h", "w", "k", "r", "s"),
    *("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups"),
)


def upgrade() -> None:
    """Create whatever of these tables is missing."""
    _create_what_is_measured()
    _create_measurements()
    _create_picks()
    _create_jobs()
    _create_counts()


def _create_what_is_measured() -> None:
    op.create_table(
        "problems",
        sa.Column("key", sa.String(), primary_key=True),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in _SIZES),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("layout", sa.String(), nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "devices",
        sa.Column("fingerprint", sa.String(), primary_key=True),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("json", sa.String(), nullable=False),
        if_not_exists=True,
    )


def _create_measurements() -> None:
    op.create_table(
        "measurements",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("problem_key", sa.String(), sa.ForeignKey("problems.key"), nullable=False),
        sa.Column("variant", sa.String(), nullable=False),
        sa.Column("device", sa.String(), sa.ForeignKey("devices.fingerprint"), nullable=False),
        sa.Column("device_id", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("samples_ms", sa.LargeBinary(), nullable=False, comment="little-endian float32"),
        sa.Column("time_ms", sa.Float(53), comment="median of the samples"),
        sa.Column("noise", sa.Float(53), comment="relative standard error of time_ms"),
        sa.Column("workspace_bytes", sa.BigInteger()),
        sa.Column("max_error", sa.Float(53)),
        sa.Column("plan", sa.String(), nullable=False, comment="JSON"),
        sa.Column("l2", sa.String(), nullable=False),
        sa.Column("floor_ms", sa.Float(53)),
        sa.Column("clock_start_mhz", sa.Integer()),
        sa.Column("clock_end_mhz", sa.Integer()),
        sa.Column("measured_at_us", sa.BigInteger(), nullable=False, comment="since 1970, UTC"),
        sa.Column("run_id", sa.String(), nullable=False),
        if_not_exists=True,
    )
    op.create_index("measurements_by_problem", "measurements", ["device_id", "problem_key"], if_not_exists=True)
    op.create_index("measurements_by_device", "measurements", ["device", "measured_at_us"], if_not_exists=True)
    op.create_index("measurements_by_run", "measurements", ["run_id"], if_not_exists=True)


def _create_picks() -> None:
    op.create_table(
        "picks",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("problem_key", sa.String(), sa.ForeignKey("problems.key"), nullable=False),
        sa.Column("device", sa.String(), sa.ForeignKey("devices.fingerprint"), nullable=False),
        sa.Column("device_id", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("variant", sa.String(), nullable=False),
        sa.Column("plan", sa.String(), nullable=False, comment="JSON"),
        sa.Column("run_id", sa.String(), nullable=False),
        if_not_exists=True,
    )
    op.create_index("picks_by_problem", "picks", ["device_id", "problem_key"], if_not_exists=True)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON()),
        sa.Column("error", sa.JSON()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        if_not_exists=True,
    )
    op.create_index("ix_jobs_state", "jobs", ["state"], if_not_exists=True)


def _create_counts() -> None:
    op.create_table(
        "imports",
        sa.Column("sha256", sa.String(), primary_key=True, comment="of the imported file"),
        sa.Column("rows", sa.Integer(), nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "versions",
        sa.Column("device_id", sa.String(), primary_key=True),
        sa.Column(
            "version", sa.BigInteger(), nullable=False, comment="how often measurements of the device were added"
        ),
        if_not_exists=True,
    )
