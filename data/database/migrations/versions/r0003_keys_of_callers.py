"""An idempotency key is its caller's: two callers may use the same one for two jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the callers; keys from before are those of callers without a token."""
    op.add_column(
        "jobs",
        sa.Column(
            "caller",
            sa.String(64),
            nullable=False,
            server_default="",
            comment="whose key it is; empty: without a token",
        ),
    )
    op.drop_index("jobs_by_idempotency_key", "jobs")
    op.create_index("jobs_by_idempotency_key", "jobs", ["caller", "idempotency_key"], unique=True)
