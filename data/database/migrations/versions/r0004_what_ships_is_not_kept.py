"""What ships is read where it lies: its copies leave the database, and what was measured here stays."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_DEVICE: Final = "82ac9464f7a43903"
"""Fingerprint of the one device whose measurements were imported at the first start until now."""
_UNTIL_US: Final = 1_795_478_400_000_000
"""2026-11-24, after the last of them: whoever has such a device may have gone on with a run of the same name."""
_RUNS: Final = (
    *("nvidia-h200-82ac9464f7a43903-681c3281", "nvidia-h200-82ac9464f7a43903-7eafa8db", "held-out", "more-networks"),
    *("sampled-2", "sampled-3", "sampled-4", "sampled-5", "grouped", "own-kernels", "own-kernels-1", "pointwise"),
    *("zoo-bfloat16", "zoo-float16", "zoo-float32", "zoo-tf32", "zoo-grouped-float32", "zoo-grouped-tf32"),
    *("unsure-2", "unsure-3", "unsure-4", "unsure-float32", "unsure-tf32", "own-grouped-float32", "own-grouped-tf32"),
    *("made-up-grouped", "made-up-grouped-2", "made-up-grouped-3"),
)


def upgrade() -> None:
    """Delete the copies. Their problems stay: others may name them, and looking takes longer than they weigh."""
    measurements = sa.table("measurements", *map(sa.column, ("device", "run_id", "measured_at_us")))
    picks = sa.table("picks", *map(sa.column, ("device", "run_id")))
    for rows in (measurements, picks):
        is_copy = (rows.c.device == _DEVICE) & rows.c.run_id.in_(_RUNS)
        if rows is measurements:
            is_copy &= rows.c.measured_at_us < _UNTIL_US
        op.execute(sa.delete(rows).where(is_copy))
