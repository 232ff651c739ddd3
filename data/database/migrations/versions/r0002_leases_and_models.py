"""Jobs are leased, answer to idempotency keys and are counted by revision; trained trees are in the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the tables of models, and the columns of leases, keys and revisions."""
    op.create_table(
        "models",
        sa.Column("device_id", sa.String(), primary_key=True),
        sa.Column("model_id", sa.String(), primary_key=True),
        sa.Column("card", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("tree", sa.LargeBinary(), nullable=False, comment="safetensors"),
    )
    op.create_table(
        "active_models",
        sa.Column("device_id", sa.String(), primary_key=True),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column(
            "activation",
            sa.BigInteger(),
            nullable=False,
            comment="how often a tree of the device was put in charge",
        ),
    )
    for column in (
        sa.Column("device_id", sa.String(), comment="of the device that must run it; null: any server does"),
        sa.Column("owner", sa.String(64), comment="who runs the attempt"),
        sa.Column("lease_ends_s", sa.Float(53), comment="since 1970, by the database's clock"),
        sa.Column(
            "interruptions",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="since it last kept something",
        ),
        sa.Column("revision", sa.Integer(), nullable=False, server_default="0", comment="how often the job changed"),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("request_sha256", sa.String(64), comment="of what came with the key"),
    ):
        op.add_column("jobs", column)
    op.create_index("jobs_by_idempotency_key", "jobs", ["idempotency_key"], unique=True)
