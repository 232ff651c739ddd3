"""The tiles of the implicit GEMM that the tensor memory accelerator feeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType

ROW_BYTES: Final = (64, 128)
"""Bytes of the channels of one tap in a stage: as many as a swizzle spans."""
ALIGNMENT: Final = 1024
"""What stages in shared memory are aligned to."""
GROUPS: Final = 2
"""Groups of 128 threads that multiply; another one loads."""
THREADS: Final = 128 * (1 + GROUPS)
BOX: Final = 64
"""Pixels of a box of y."""
BOX_ROW_BYTES: Final = 128
"""Bytes of the filters of a pixel in a box."""
BOXES_BYTES: Final = GROUPS * 2 * BOX * BOX_ROW_BYTES
"""Boxes of y in shared memory: two of each group."""


@dataclass(frozen=True)
class Tile:
    """What a block computes at a time: `bf` filters of `bp` pixels.

    Parameters
    ----------
    bp, bf : int
    stages : int
        In shared memory at a time, of 128 bytes a row.
    """

    bp: int
    bf: int
    stages: int

    def defines(self, row_bytes: int, *, is_dense: bool) -> dict[str, int]:
        """What the source is compiled with."""
        return {
            "BP": self.bp,
            "BF": self.bf,
            "STAGES": self.stages * ROW_BYTES[1] // row_bytes,
            "ROW_BYTES": row_bytes,
            "IS_DENSE": int(is_dense),
        }

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: stages, then boxes of y."""
        return ALIGNMENT + self.stages * (self.bp + self.bf) * ROW_BYTES[1] + BOXES_BYTES


TILES: Final = (
    Tile(128, 256, stages=4),
    Tile(256, 128, stages=4),
    Tile(128, 192, stages=4),
    Tile(128, 128, stages=6),
    Tile(256, 64, stages=4),
    Tile(128, 64, stages=8),
)
DTYPES: Final = (DType.TF32, DType.FLOAT16, DType.BFLOAT16)


def row_bytes_of(problem: ConvProblem) -> int:
    """Bytes of a row of a stage: those of all channels of a tap where these are few."""
    return ROW_BYTES[0] if problem.c * problem.dtype.itemsize_bytes <= ROW_BYTES[0] else ROW_BYTES[1]
