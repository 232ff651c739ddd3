"""Problems have epilogues and paddings of each side: those from before have none, and the same on opposite sides."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns; null says of a problem what was true of all of them."""
    op.add_column("problems", sa.Column("pad_h_end", sa.Integer(), comment="null: as pad_h"))
    op.add_column("problems", sa.Column("pad_w_end", sa.Integer(), comment="null: as pad_w"))
    op.add_column("problems", sa.Column("epilogue", sa.String(), comment="as its text; null: none"))
